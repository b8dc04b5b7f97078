"""Batches whose records are to be looked at, opened a group at a time.

What sifting and the table of keys share. A kernel is called for a whole group, so that its call
costs nothing; only one group is unpacked at a time, so that little memory is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from millstream.errors import CorruptBatch
from millstream.records.batch import HEADER_SIZE, BatchHeader, Bytes, check_batch, split
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX, Codec

_GROUP_SIZE_MAX = 4 * 1024 * 1024


class LocatedBatch(NamedTuple):
    """A batch, and where it lies in the data that it came in."""

    start: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Position after the batch."""
        return self.start + self.header.size


class OpenedBatch(NamedTuple):
    """A batch, its place, and its records one after the other, unpacked."""

    start: int
    header: BatchHeader
    records: Bytes

    @property
    def position(self) -> int:
        """Where the records start in the data; -1 where they had to be unpacked."""
        return self.start + HEADER_SIZE if self.header.codec == Codec.NONE else -1


def checked_batches(data: Bytes) -> Iterator[tuple[LocatedBatch, memoryview]]:
    """Cut `data` into its batches, and verify the sum of each."""
    start = 0
    for header, batch in split(data):
        check_batch(header, batch)
        yield LocatedBatch(start, header), batch
        start += header.size


def open_groups(data: Bytes, batches: Iterable[LocatedBatch]) -> Iterator[list[OpenedBatch]]:
    """Open batches of `data` in order, in groups of a few MB or of one larger batch.

    One that cannot be opened is left out.
    """
    group: list[OpenedBatch] = []
    size = 0
    for opened in _opened(memoryview(data), batches):
        if group and size + len(opened.records) > _GROUP_SIZE_MAX:
            yield group
            group, size = [], 0
        group.append(opened)
        size += len(opened.records)
    if group:
        yield group


def record_count(group: Sequence[OpenedBatch]) -> int:
    """How many records the batches of a group claim to have."""
    return sum(opened.header.record_count for opened in group)


def _opened(data: memoryview, batches: Iterable[LocatedBatch]) -> Iterator[OpenedBatch]:
    for batch in batches:
        try:
            records = open_body(batch.header, data[batch.start : batch.end], size_max=BODY_SIZE_MAX)
        except CorruptBatch:
            continue
        yield OpenedBatch(batch.start, batch.header, records)
