"""Memory of partitions, unused and written to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale

from subjects.kafka.client import LONE_SIZE, connect, make_topic, produce_frame, receive_frame
from subjects.kafka.processes import node_command
from subjects.log.common import make_batch
from subjects.memory.processes import running_node
from subjects.start.data import make_partitions
from subjects.start.processes import started

KB = 1_000
AHEAD = 100
"""Requests in flight while partitions are written to."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    some = scale.pick(smoke=10, quick=1_000, full=1_000)
    many = scale.pick(smoke=20, quick=10_000, full=10_000)
    written = scale.pick(smoke=10, quick=1_000, full=10_000)
    numbers = itertools.count()
    for name, count in (("one", 1), ("some", some), ("many", many)):
        make_partitions(folder / name, count)

    def resident(name: str) -> int:
        with started(node_command(folder / name)) as start:
            return start.resident_bytes

    def there() -> Figures:
        one = resident("one")
        return {
            "some": max(1, resident("some") - one) / some / KB,
            "many": max(1, resident("many") - one) / many / KB,
        }

    def used() -> Figures:
        with running_node(folder / f"used-{next(numbers)}") as node:
            topic = make_topic(node.kafka, partitions=written)
            before = node.resident_bytes
            write_to_all(node.kafka, topic, written)
            grown = node.resident_bytes - before
        return {"used": max(1, grown) / written / KB, "written": written}

    yield there, used


def write_to_all(port: int, topic: str, count: int) -> None:
    """Write one record to each partition of a topic."""
    batch = make_batch(LONE_SIZE, value_size=100)
    with connect(port) as connection:
        for first in range(0, count, AHEAD):
            some = range(first, min(first + AHEAD, count))
            connection.sendall(
                b"".join(produce_frame(topic, batch, acks=-1, partition=n) for n in some)
            )
            for _ in some:
                receive_frame(connection)


_row = partial(Row, unit="kB each")

PARTITIONS = Experiment(
    title="partitions",
    note=(
        "What the resident memory of a node grows by for each partition. `There`: a node that was"
        " started with 1,000 or 10,000 partitions of one record, closed cleanly, beside one that"
        " was started with one. `Written to`: one record to each, acks=all, 1,000 of them, or"
        " 10,000 in a full run; their open files are not memory of the process."
    ),
    rows=(
        _row(name="1,000 partitions that are there", ours="some"),
        _row(name="10,000 partitions that are there", ours="many"),
        _row(name="partitions that were written to", ours="used"),
        Row(name="partitions that were written to: how many", unit="", ours="written"),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_quick=2,
    repetitions_full=3,
)
