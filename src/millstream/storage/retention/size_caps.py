r"""Caps of a log: the first offset that its limits of bytes and records leave to readers.

    +-----------------+ +-----------------+ +------------
    | b b b b b b b b | | b b b b b b b b | | b b b b b b
    +-----------------+ +-----------------+ +------------
                              first        \__ committed end
                               \_____________/
                                at most the limit

The files of what is before it are removed later, by whole segments.

- Bytes: the longest run of whole batches at the end of the log that has at most this many bytes.
  The newest batch always stays.
- Records: the last so many records, also within a batch. Transaction markers, and records deleted
  by key and not reclaimed yet, count too. If compaction has removed records from the segment in
  which the limit is reached, all of that segment stays.

The result depends on nothing but the committed log, so it is the same after a crash.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from itertools import accumulate

from millstream.config.schema import Discard, LogConfig
from millstream.errors import CorruptData
from millstream.records.record import BYTES, RECORDS
from millstream.storage.files.partition_metadata import NO_CAPS, Caps
from millstream.storage.segment.log_state import LogSnapshot, committed_size
from millstream.storage.segment.reader import batch_ends
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment

logger = logging.getLogger(__name__)

_SEEK_BYTES = 1024 * 1024
"""A distance that is not walked from batch to batch, but found in the index."""


def caps_of(config: LogConfig) -> Caps:
    """Return the caps of a log with these settings; a log that rejects never exceeds a limit."""
    if config.discard is not Discard.OLD:
        return NO_CAPS
    return Caps(config.retention_bytes, config.retention_records)


def record_count(segment: Segment) -> int:
    """Return the number of records in the file of a segment."""
    if isinstance(segment, SealedSegment):
        return segment.seal.record_count
    assert isinstance(segment, GrowingSegment)
    return segment.stats.record_count


class SizeCaps:
    """The caps of one log, and how far they have moved its start."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._segments: tuple[Segment, ...] | None = None
        self._bytes_before: list[int] = []
        """Bytes in the segments before each segment."""
        self._records_before: list[int] = []
        """Records in the segments before each segment."""
        self._cursor = (0, 0)
        """Bytes before the first batch that stays, and its offset."""
        self._ahead: deque[tuple[int, int]] = deque()
        """Bytes and offset at the end of the batches from there on, as far as they were read."""

    def first_offset(self, snapshot: LogSnapshot) -> tuple[int, str]:
        """Return the first offset that stays, and which limit decides that.

        It may be before the start of the log, if that was moved for other reasons.
        """
        if snapshot.committed.segment < 0:
            return snapshot.start, BYTES
        if snapshot.segments is not self._segments:
            self._read_segments(snapshot.segments)
        by_bytes = by_records = 0
        if self._caps.bytes_max is not None:
            by_bytes = self._by_bytes(snapshot, self._caps.bytes_max)
        if self._caps.records_max is not None:
            by_records = self._by_records(snapshot, self._caps.records_max)
        return (by_records, RECORDS) if by_records >= by_bytes else (by_bytes, BYTES)

    def _read_segments(self, segments: tuple[Segment, ...]) -> None:
        """Start again with another list of segments: positions before one may have changed."""
        self._segments = segments
        self._bytes_before = list(accumulate((s.size for s in segments[:-1]), initial=0))
        self._records_before = list(accumulate(map(record_count, segments[:-1]), initial=0))
        self._cursor = (0, segments[0].base_offset)
        self._ahead.clear()

    def _by_records(self, snapshot: LogSnapshot, records_max: int) -> int:
        """Return the first offset that the limit of records leaves."""
        segments, end, before = snapshot.segments, snapshot.committed, self._records_before
        last = bisect_right(snapshot.bases, end.segment) - 1
        excess = before[last] + _committed_records(segments[last], end.offset) - records_max
        if excess <= 0:
            return segments[0].base_offset
        number = min(bisect_right(before, excess) - 1, last)
        segment = segments[number]
        next_offset = end.offset if number == last else segment.next_offset
        is_dense = next_offset - segment.base_offset == _committed_records(segment, next_offset)
        return segment.base_offset + (excess - before[number] if is_dense else 0)

    def _by_bytes(self, snapshot: LogSnapshot, bytes_max: int) -> int:
        """Return the first offset that the limit of bytes leaves."""
        last = bisect_right(snapshot.bases, snapshot.committed.segment) - 1
        excess = self._bytes_before[last] + snapshot.committed.position - bytes_max
        ahead = self._ahead
        while self._cursor[0] < excess:
            if not ahead and not self._read_ahead(snapshot, excess):
                break
            if ahead[0][1] >= snapshot.committed.offset:
                break  # The newest batch stays.
            self._cursor = ahead.popleft()
        return self._cursor[1]

    def _read_ahead(self, snapshot: LogSnapshot, excess: int) -> bool:
        """Read the ends of the next batches; return whether there are any."""
        if excess - self._cursor[0] > _SEEK_BYTES:
            self._seek(snapshot, excess)
        position = self._cursor[0]
        number = bisect_right(self._bytes_before, position) - 1
        segment, before = snapshot.segments[number], self._bytes_before[number]
        limit = committed_size(snapshot, segment)
        try:
            ends = batch_ends(segment, position - before, self._cursor[1], limit=limit)
        except (CorruptData, OSError) as error:
            # Its readers get the same error. The start moves on when all of the segment may go.
            logger.debug("limit of bytes: %s", error)
            return self._skip_damaged(number, excess)
        self._ahead.extend((before + end, next_offset) for end, next_offset in ends)
        return bool(ends)

    def _seek(self, snapshot: LogSnapshot, excess: int) -> None:
        """Move the cursor to a batch before the limit, by the index of its segment."""
        number = bisect_right(self._bytes_before, excess) - 1
        before = self._bytes_before[number]
        entry = snapshot.segments[number].index().for_position(excess - before)
        if before + entry.position > self._cursor[0]:
            self._cursor = (before + entry.position, entry.offset)

    def _skip_damaged(self, number: int, excess: int) -> bool:
        assert self._segments is not None
        if number + 1 >= len(self._segments) or self._bytes_before[number + 1] > excess:
            return False
        self._ahead.append((self._bytes_before[number + 1], self._segments[number + 1].base_offset))
        return True


def _committed_records(segment: Segment, end_offset: int) -> int:
    """Return the records of a segment before `end_offset`, the end of its committed records.

    At least so many, if compaction removed some and the visible limit is inside the segment.
    """
    return max(0, record_count(segment) - (segment.next_offset - end_offset))
