"""Cost of a metrics scrape for a node with the maximum number of listed partitions."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale
from prometheus_client import CollectorRegistry, generate_latest

from millstream import LogConfig, Store
from millstream.config.schema import Durability
from millstream.observe.metrics.store import LOGS, StoreCollector, listed_logs
from subjects.kafka.client import make_topic
from subjects.kafka.processes import ServerProcess
from subjects.log.common import MB, UnsyncedFilesystem, opened
from subjects.memory.partitions import write_to_all
from subjects.memory.processes import running_node

CONFIG = LogConfig(durability=Durability.DISK)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=10, quick=1_000, full=1_000)
    with ExitStack() as stack:
        node = stack.enter_context(running_node(folder / "node"))
        write_to_all(node.kafka, make_topic(node.kafka, partitions=count), count)
        logs = stack.enter_context(
            opened(folder / "store", CONFIG, filesystem=UnsyncedFilesystem())
        )
        logs.logs(count)
        store = logs.store

        def scrape() -> Figures:
            server = ServerProcess(node.pid, 0)
            used = server.cpu_seconds()
            with urllib.request.urlopen(f"http://127.0.0.1:{node.http}/metrics") as answer:
                size = len(answer.read())
            return {"scrape": (server.cpu_seconds() - used) * 1e3, "size": size / MB}

        yield scrape, lambda: _texts(store)


def _texts(store: Store) -> Figures:
    """Write the metrics of the same logs in both ways; return the time of each line."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))
    started = time.thread_time()
    text = "".join(LOGS.text(listed_logs(store)))
    ours = time.thread_time() - started
    started = time.thread_time()
    theirs_text = generate_latest(registry)
    theirs = time.thread_time() - started
    return {
        "text": ours / text.count("\n") * 1e6,
        "prometheus_client": theirs / theirs_text.count(b"\n") * 1e6,
    }


SCRAPE = Experiment(
    title="a scrape",
    note=(
        "GET /metrics of a node with 1,000 partitions that were written to, the most that it lists:"
        " the node's CPU for one scrape. Then, embedded, one line of metrics of 1,000 logs as text"
        " of ours and by prometheus_client, which has some lines more."
    ),
    rows=(
        Row(name="a scrape, 1,000 partitions, server CPU", unit="ms", ours="scrape"),
        Row(name="a scrape, 1,000 partitions, size", unit="MB", ours="size"),
        Row(
            name="a line of metrics",
            unit="µs",
            ours="text",
            limit="prometheus_client",
            limit_name="prometheus_client",
        ),
    ),
    arms=_arms,
)
