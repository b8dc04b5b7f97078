"""What a log holds, told without opening it: for those who look, and change nothing.

Opening a store reads the seals of all logs, so segments, sizes and the end are known of each. Only
what was deleted by key has to be looked for in the records, which is done when a log is opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.storage.files.index import NO_TIME
from millstream.storage.retention.eviction import record_count
from millstream.storage.segment.log_state import DeletedOffsets
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment
from millstream.storage.store import LogName, Store


class SegmentSummary(NamedTuple):
    """One segment."""

    base_offset: int
    end_offset: int
    bytes: int
    records: int
    """In its file, with those that were deleted by key and are not reclaimed yet."""
    timestamp_min: int | None
    timestamp_max: int | None
    is_sealed: bool
    deleted_records: int | None
    """`None` where it is not known without opening the log; so with the next."""
    reclaimable_bytes: int | None


class LogSummary(NamedTuple):
    """A log, open or not."""

    segments: Sequence[Segment]
    end_offset: int
    masks: Mapping[int, DeletedOffsets] | None
    """What was deleted by key, by base offset; `None` where that is not known."""

    @property
    def bytes(self) -> int:
        """Of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def records(self) -> int | None:
        """In all segments, without those that were deleted by key; `None` where not known."""
        if self.masks is None:
            return None
        hidden = sum(len(mask.offsets) for mask in self.masks.values())
        return sum(map(record_count, self.segments)) - hidden

    def page(self, after: int, count_max: int) -> list[SegmentSummary]:
        """Return the segments whose base offset comes after `after`, some at the most."""
        begin = bisect_right(self.segments, after, key=lambda segment: segment.base_offset)
        return [self._segment(one) for one in self.segments[begin : begin + count_max]]

    def _segment(self, segment: Segment) -> SegmentSummary:
        deleted = reclaimable = None
        if self.masks is not None:
            mask = self.masks.get(segment.base_offset)
            deleted = 0 if mask is None else len(mask.offsets)
            reclaimable = 0 if mask is None else mask.bytes
        records = record_count(segment)
        is_dated = records > 0 and segment.timestamp_max != NO_TIME
        return SegmentSummary(
            base_offset=segment.base_offset,
            end_offset=segment.next_offset,
            bytes=segment.size,
            records=records,
            timestamp_min=_timestamp_min(segment) if is_dated else None,
            timestamp_max=segment.timestamp_max if is_dated else None,
            is_sealed=isinstance(segment, SealedSegment),
            deleted_records=deleted,
            reclaimable_bytes=reclaimable,
        )


EMPTY_SUMMARY = LogSummary((), 0, {})
"""A log that nobody has used yet: it has no file."""


def summarize_log(store: Store, name: LogName) -> LogSummary | None:
    """Return what a log holds; `None` where it cannot be told, because its files are damaged."""
    if (log := store.find(name)) is not None:
        return LogSummary(log.segments, log.end_offset, log.masks)
    found = store.recovered_log(name)
    if found is None:
        return None if store.is_failed(name) else EMPTY_SUMMARY
    segments, start = found.segments, found.partition.start_offset
    end = segments[-1].next_offset if segments else start
    is_unknown = found.partition.deletions or found.damage or found.offline
    return LogSummary(segments, max(start, end), None if is_unknown else {})


def _timestamp_min(segment: Segment) -> int:
    if isinstance(segment, SealedSegment):
        return segment.seal.timestamp_min
    assert isinstance(segment, GrowingSegment)
    return segment.stats.timestamp_min
