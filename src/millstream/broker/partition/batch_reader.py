"""Reading batches of a partition for consumers.

Some batches have no records: those that compaction or deletion has emptied, and filler batches in
place of removed ones. Kafka's clients skip them if other batches follow, but differ if a response
contains nothing else: some stay at their offset and fetch again. So a response starts with a batch
that has a record. If no batch up to the end has one, a single empty batch moves the reader there.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right

from millstream.broker.partition.results import FetchResult
from millstream.errors import DamagedRecords, TierUnavailable
from millstream.records.batch import HEADER_SIZE, LENGTH_END, BatchHeader, decode_header, split
from millstream.records.filter.batch_filter import FilterRules, filler_batches, filter_batches
from millstream.storage.log import Log

_LENGTH = struct.Struct(">i")
_LENGTH_AT = LENGTH_END - _LENGTH.size
_COUNT = struct.Struct(">i")
_COUNT_AT = HEADER_SIZE - _COUNT.size


class FirstBatchCache:
    """The batch in which a log starts, without its records before the start. Threads may share it.

    It is built by decoding the batch, which is done once, and not on the event loop.
    """

    def __init__(self) -> None:
        self._cached: tuple[tuple[int, int], memoryview] | None = None

    def get(self, start_offset: int, header: BatchHeader, batch: memoryview) -> memoryview:
        """Return `batch` without the records before `start_offset`."""
        key, cached = (start_offset, header.base_offset), self._cached
        if cached is not None and cached[0] == key:
            return cached[1]
        rules = FilterRules(start_offset=start_offset, producers=frozenset({header.base_offset}))
        remaining = memoryview(b"".join(filter_batches(batch, rules).pieces))
        self._cached = key, remaining
        return remaining


def read_batches(
    log: Log,
    offset: int,
    *,
    end_offset: int,
    size_max: int,
    is_first: bool,
    first_batch: FirstBatchCache,
) -> FetchResult:
    """Return the batches from the one that contains `offset` to the last before `end_offset`.

    Together they have at most `size_max` bytes; with `is_first`, a single larger batch is returned.
    An offset before the start of the log means the start. The batch in which the log starts is then
    returned without its records before the start, because no reader would know to skip them.

    Raises `DamagedRecords` if the first batch is damaged; a damaged one behind it is the end.
    """
    parts: list[memoryview] = []
    blank: memoryview | None = None
    start_offset = log.start_offset
    position, size = max(offset, start_offset), 0
    while position < end_offset and (size < size_max or (is_first and not parts)):
        if log.masks:
            position = min(_after_deleted(log, position), end_offset - 1)
        try:
            chunk = log.read(position, size_max=max(0, size_max - size))
        except (DamagedRecords, TierUnavailable):
            if not parts and blank is None:
                raise
            end_offset = position  # A read from there reports it.
            break
        data, next_offset = chunk.data, chunk.next_offset
        if next_offset > end_offset:
            data, next_offset = cut_at(data, end_offset)
        if not data:
            break
        if offset < start_offset and not parts:
            data, next_offset = _starting_at(start_offset, data, next_offset, first_batch)
        if not parts:
            start, last = _skip_empty(data)
            if start == len(data):
                blank, position = data[last:], next_offset
                continue
            data = data[start:]
        if size + len(data) > size_max and (parts or not is_first):
            break
        parts.append(data)
        position, size = next_offset, size + len(data)
    if parts or position == offset or position < end_offset:
        return FetchResult(tuple(parts), position if parts else offset, size)
    if blank is None:  # All records were deleted, and no emptied batch is left of them.
        epoch = log.partition.epoch_at(position)
        blank = memoryview(filler_batches(position - 1, position, leader_epoch=epoch))
    return FetchResult((blank,), position, len(blank), is_blank=True)


def _after_deleted(log: Log, offset: int) -> int:
    """Return the first offset from `offset` on that was not deleted by key.

    Stepping over deleted records batch by batch would take as long as reading them.
    """
    segments = log.segments
    at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    for segment in segments[max(at, 0) :]:
        mask = log.masks.get(segment.base_offset)
        if mask is None:
            break
        first = bisect_left(mask.offsets, offset)
        # Offsets follow each other without a gap as long as they rise no faster than their places.
        run = range(first, len(mask.offsets))
        offset += bisect_right(run, offset - first, key=lambda at: mask.offsets[at] - at)
        if offset < segment.next_offset:
            break
    return offset


def _starting_at(
    offset: int, data: memoryview, next_offset: int, first_batch: FirstBatchCache
) -> tuple[memoryview, int]:
    """Return `data`, or only its first batch if that has records before `offset`, without those."""
    header = decode_header(data)
    if header.base_offset >= offset or not header.record_count:
        return data, next_offset
    return first_batch.get(offset, header, data[: header.size]), header.next_offset


def cut_at(data: memoryview, end_offset: int) -> tuple[memoryview, int]:
    """Return the batches of `data` that begin before `end_offset`, and the next offset."""
    size, next_offset = 0, end_offset
    for header, batch in split(data):
        if header.base_offset >= end_offset:
            break
        size += len(batch)
        next_offset = header.next_offset
    return data[:size], next_offset


def _skip_empty(data: memoryview) -> tuple[int, int]:
    """Return the positions of the first batch with a record and of the batch before it.

    If no batch has a record, the first is the end of `data`.
    """
    position = last = 0
    while position < len(data) and _COUNT.unpack_from(data, position + _COUNT_AT)[0] == 0:
        last = position
        position += LENGTH_END + _LENGTH.unpack_from(data, position + _LENGTH_AT)[0]
    return position, last
