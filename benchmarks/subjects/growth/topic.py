"""Cost of produce, fetch, lookup by time and the start of a node, by the length of a topic."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_most

from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from subjects.growth.engine import LONG, PLACES, SHORT
from subjects.growth.sparse import make_long_log, timestamp_of
from subjects.kafka.client import (
    FETCH_VERSION,
    LONE_SIZE,
    framed,
    make_topic,
    produce_frame,
    send_each,
)
from subjects.kafka.processes import ServerProcess, node, node_command
from subjects.log.common import MIB, TOPIC, make_batch
from subjects.start.processes import started

LIST_OFFSETS_VERSION = 5


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=10, quick=200, full=1_000)
    short = scale.pick(smoke=10, quick=SHORT, full=SHORT)
    long = scale.pick(smoke=300, quick=LONG, full=LONG)
    figures: dict[str, float] = {}
    arms: list[Arm] = []
    with ExitStack() as stack:
        for name, batches in (("short", short), ("long", long)):
            data = folder / name
            with node(data) as server:
                make_topic(server.port, name=TOPIC)
            make_long_log(data, batches)
            with started(node_command(data)) as start:
                figures[f"{name} start"] = start.cpu_seconds
            server = stack.enter_context(node(data))
            places = random.Random(7).sample(range(batches), min(PLACES, batches))
            visits = random.Random(8).choices(places, k=count)
            arms.append(partial(_turn, name, server, visits))
        yield lambda: figures, *arms


def _turn(name: str, server: ServerProcess, visits: Sequence[int]) -> Figures:
    batch = make_batch(LONE_SIZE, value_size=100)
    # Cheap beside the others, and syncs in the background fall on some of them: so ten times more.
    produces = [produce_frame(TOPIC, batch, acks=1)] * (10 * len(visits))
    fetches = [_fetch_frame(offset) for offset in visits]
    lookups = [_lookup_frame(offset) for offset in visits]
    figures: dict[str, float] = {}
    for what, frames in (("produce", produces), ("fetch", fetches), ("lookup", lookups)):
        send_each(server.port, frames)
        used = server.cpu_seconds()
        took = send_each(server.port, frames)
        cpu = server.cpu_seconds() - used
        figures[f"{name} {what}"] = statistics.median(took) * 1e3
        figures[f"{name} {what} CPU"] = cpu / len(frames) * 1e6
    return figures


def _fetch_frame(offset: int) -> bytes:
    part = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    return framed(
        FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=MIB,
            topics=(FetchRequestTopic(topic=TOPIC, partitions=(part,)),),
        ),
        FETCH_VERSION,
    )


def _lookup_frame(offset: int) -> bytes:
    part = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp_of(offset))
    topic = ListOffsetsRequestTopic(name=TOPIC, partitions=(part,))
    return framed(ListOffsetsRequest(topics=(topic,)), LIST_OFFSETS_VERSION)


_time = partial(Row, unit="ms", limit_name="1 GB", goal=ratio_at_most(1.25))
_cpu = partial(Row, unit="µs", limit_name="1 GB", goal=ratio_at_most(1.25))

LARGE_TOPIC = Experiment(
    title="a topic of 100 GB",
    note=(
        "A node with a topic of 100 GB beside a node with one of 1 GB, made as above. One request"
        " at a time: produces of one record of 100 bytes, acks=1; fetches of the one batch of 1 MB"
        " that holds an offset, verified, and offsets by timestamp, at 256 places all over the"
        " log. CPU is that of the node. The start is `millstream serve` after a clean stop."
    ),
    rows=(
        _time(name="produce, p50, 100 GB", ours="long produce", limit="short produce"),
        _cpu(name="produce, CPU, 100 GB", ours="long produce CPU", limit="short produce CPU"),
        _time(name="fetch anywhere, p50, 100 GB", ours="long fetch", limit="short fetch"),
        _cpu(name="fetch anywhere, CPU, 100 GB", ours="long fetch CPU", limit="short fetch CPU"),
        _time(name="offset by time, p50, 100 GB", ours="long lookup", limit="short lookup"),
        _cpu(name="offset by time, CPU, 100 GB", ours="long lookup CPU", limit="short lookup CPU"),
        Row(
            name="start of the node, 100 GB, CPU",
            unit="s",
            ours="long start",
            limit="short start",
            limit_name="1 GB",
        ),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_quick=3,
    repetitions_full=7,
)
