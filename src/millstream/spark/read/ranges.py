"""Which offsets one task reads, and how much of a log a micro-batch takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.positions import Offsets

RANGES_MAX = 100_000
"""Tasks of one query: far beyond what a driver plans with pleasure."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, from `start` up to, not including, `end`."""

    where: TopicPartition
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many offsets it covers; there may be fewer records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ReadTask(InputPartition):
    """What one task reads: ranges, one after the other."""

    ranges: tuple[OffsetRange, ...]


def split(
    ranges: Iterable[OffsetRange],
    *,
    offset_bytes: Mapping[TopicPartition, float],
    partition_bytes: int,
    partitions_min: int,
) -> list[OffsetRange]:
    """Cut ranges into pieces of about `partition_bytes`, and into `partitions_min` at the least.

    `offset_bytes` is about how much of the log an offset takes. Empty ranges go.
    """
    whole = [one for one in ranges if one.count > 0]
    sizes = [one.count * offset_bytes.get(one.where, 1.0) for one in whole]
    total = sum(sizes)
    size_max = max(1.0, min(float(partition_bytes), total / max(1, partitions_min)))
    size_max = max(size_max, total / RANGES_MAX)
    return [
        piece
        for one, size in zip(whole, sizes, strict=True)
        for piece in _cut(one, max(1, round(size / size_max)))
    ]


def gather(
    ranges: Iterable[OffsetRange],
    *,
    offset_bytes: Mapping[TopicPartition, float],
    task_bytes_min: int,
) -> list[ReadTask]:
    """Have one task read several small ranges, until it has about `task_bytes_min`.

    A task costs Spark more than it takes to read a few records.
    """
    tasks: list[ReadTask] = []
    gathered: list[OffsetRange] = []
    total = 0.0
    for one in ranges:
        gathered.append(one)
        total += one.count * offset_bytes.get(one.where, 1.0)
        if total >= task_bytes_min:
            tasks.append(ReadTask(tuple(gathered)))
            gathered, total = [], 0.0
    if gathered:
        tasks.append(ReadTask(tuple(gathered)))
    return tasks


def _cut(one: OffsetRange, pieces: int) -> list[OffsetRange]:
    pieces = min(pieces, one.count)
    edges = [one.start + one.count * number // pieces for number in range(pieces + 1)]
    return [OffsetRange(one.where, start, end) for start, end in pairwise(edges)]


def limit_records(start: Offsets, end: Offsets, records_max: int) -> Offsets:
    """Return where to end so that no more than `records_max` offsets lie between.

    Each partition gets its share of the limit by what it has; what is left over goes to those with
    the smallest share, and among them to who has come least far, so that none starves.
    """
    waiting = {one: end[one] - start[one] for one in end}
    total = sum(waiting.values())
    if total <= records_max:
        return dict(end)
    shares = {one: count * records_max // total for one, count in waiting.items()}
    left = records_max - sum(shares.values())
    for one in sorted(waiting, key=lambda one: (shares[one], start[one])):
        if left and shares[one] < waiting[one]:
            shares[one] += 1
            left -= 1
    return {one: start[one] + shares[one] for one in end}


def limit_bytes(
    start: Offsets, end: Offsets, bytes_max: int, offset_bytes: Mapping[TopicPartition, float]
) -> Offsets:
    """Return where to end so that about `bytes_max` of the log lie between, one record at least."""
    sizes = {one: (end[one] - start[one]) * offset_bytes.get(one, 1.0) for one in end}
    total = sum(sizes.values())
    if total <= bytes_max:
        return dict(end)
    count = sum(end[one] - start[one] for one in end)
    return limit_records(start, end, max(1, int(count * bytes_max / total)))
