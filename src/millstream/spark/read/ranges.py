"""Division of offset ranges into tasks, and limits of a micro-batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.positions import Offsets

if TYPE_CHECKING:
    from millstream.lake.deletions import PendingDeletion

RANGES_MAX = 100_000
"""Tasks of one query: far more than a driver can plan quickly."""


@dataclass(frozen=True, slots=True)
class HistoryFiles:
    """Files of a lake table that have the offsets of a range."""

    table: str
    paths: tuple[str, ...]
    deletions: tuple[PendingDeletion, ...] = ()
    """Deletions by key that the files do not have behind them."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, from `start` to `end`, exclusive."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: uuid.UUID | None = None
    """Topic that the offsets belong to, if it is known."""
    history: HistoryFiles | None = None
    """Where the records are, if they are read from a lake table; `None` for the log."""

    @property
    def count(self) -> int:
        """Number of offsets. There may be fewer records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ReadTask(InputPartition):
    """Ranges that one task reads, in order."""

    ranges: tuple[OffsetRange, ...]


def split(
    ranges: Iterable[OffsetRange],
    *,
    offset_bytes: Mapping[TopicPartition, float],
    partition_bytes: int,
    partitions_min: int,
) -> list[OffsetRange]:
    """Split ranges into pieces of about `partition_bytes`, at least `partitions_min` in all.

    `offset_bytes` is the approximate number of bytes per offset. Empty ranges are dropped.
    """
    nonempty = [range_ for range_ in ranges if range_.count > 0]
    sizes = [range_.count * offset_bytes.get(range_.partition, 1.0) for range_ in nonempty]
    total = sum(sizes)
    size_max = max(1.0, min(float(partition_bytes), total / max(1, partitions_min)))
    size_max = max(size_max, total / RANGES_MAX)
    return [
        piece
        for range_, size in zip(nonempty, sizes, strict=True)
        for piece in _cut(range_, max(1, round(size / size_max)))
    ]


def gather(
    ranges: Iterable[OffsetRange],
    *,
    offset_bytes: Mapping[TopicPartition, float],
    task_bytes_min: int,
) -> list[ReadTask]:
    """Combine small ranges into tasks of about `task_bytes_min`.

    A task costs Spark more than reading a few records.
    """
    tasks: list[ReadTask] = []
    gathered: list[OffsetRange] = []
    total = 0.0
    for range_ in ranges:
        gathered.append(range_)
        total += range_.count * offset_bytes.get(range_.partition, 1.0)
        if total >= task_bytes_min:
            tasks.append(ReadTask(tuple(gathered)))
            gathered, total = [], 0.0
    if gathered:
        tasks.append(ReadTask(tuple(gathered)))
    return tasks


def _cut(range_: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = min(pieces, range_.count)
    edges = [range_.start + range_.count * number // pieces for number in range(pieces + 1)]
    return [replace(range_, start=start, end=end) for start, end in pairwise(edges)]


def limit_records(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """Return end offsets so that at most `records_max` offsets are read.

    Each partition gets a share in proportion to its backlog. The remainder goes to the partitions
    with the smallest share, and among those to the one with the lowest offset, so that none
    starves.
    """
    waiting = {partition: end[partition] - start[partition] for partition in end}
    total = sum(waiting.values())
    if total <= records_max:
        return dict(end)
    shares = {partition: count * records_max // total for partition, count in waiting.items()}
    remaining = records_max - sum(shares.values())
    for partition in sorted(waiting, key=lambda partition: (shares[partition], start[partition])):
        if remaining and shares[partition] < waiting[partition]:
            shares[partition] += 1
            remaining -= 1
    return {partition: start[partition] + shares[partition] for partition in end}


def limit_bytes(
    start: Offsets, end: Offsets, bytes_max: int, offset_bytes: Mapping[TopicPartition, float]
) -> Offsets:
    """Return end offsets so that about `bytes_max` bytes are read, and at least one record."""
    sizes = {
        partition: (end[partition] - start[partition]) * offset_bytes.get(partition, 1.0)
        for partition in end
    }
    total = sum(sizes.values())
    if total <= bytes_max:
        return dict(end)
    count = sum(end[partition] - start[partition] for partition in end)
    return limit_records(start, end, max(1, int(count * bytes_max / total)))
