"""Batches opened in groups, for record filters and the key table.

A kernel is called for a group of batches, so that the cost of its call is negligible; only one
group is decompressed at a time, so that little memory is needed.
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
    """A batch header, and the position of the batch in the data."""

    start: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Position after the batch."""
        return self.start + self.header.size


class OpenedBatch(NamedTuple):
    """A batch, its position, and its encoded records, back to back and decompressed."""

    start: int
    header: BatchHeader
    records: Bytes

    @property
    def position(self) -> int:
        """Position of the records in the data; -1 if they were compressed."""
        return self.start + HEADER_SIZE if self.header.codec == Codec.NONE else -1


def checked_batches(data: Bytes) -> Iterator[tuple[LocatedBatch, memoryview]]:
    """Split `data` into its batches, and verify the checksum of each."""
    start = 0
    for header, batch in split(data):
        check_batch(header, batch)
        yield LocatedBatch(start, header), batch
        start += header.size


def open_groups(data: Bytes, batches: Iterable[LocatedBatch]) -> Iterator[list[OpenedBatch]]:
    """Open batches of `data` in order, in groups of a few MB or of one larger batch.

    Batches that cannot be opened are left out.
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
    """Return the number of records in a group, according to the headers."""
    return sum(opened.header.record_count for opened in group)


def _opened(data: memoryview, batches: Iterable[LocatedBatch]) -> Iterator[OpenedBatch]:
    for batch in batches:
        try:
            records = open_body(batch.header, data[batch.start : batch.end], size_max=BODY_SIZE_MAX)
        except CorruptBatch:
            continue
        yield OpenedBatch(batch.start, batch.header, records)
