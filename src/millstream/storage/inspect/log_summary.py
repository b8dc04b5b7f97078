"""Summary of a log, without opening it.

Opening a store reads the seals of all logs, so segments, sizes and end offsets are known. Only
deletions by key have to be searched in the records, which happens when a log is opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.storage.files.index import NO_TIME
from millstream.storage.files.names import LogName
from millstream.storage.retention.size_caps import record_count
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.log_state import DeletedOffsets
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment
from millstream.storage.store import Store


class SegmentSummary(NamedTuple):
    """One segment."""

    base_offset: int
    end_offset: int
    bytes: int
    records: int
    """In its file, including records that were deleted by key and not reclaimed yet."""
    timestamp_min: int | None
    timestamp_max: int | None
    is_sealed: bool
    is_cold: bool
    """Whether its records are in a cold store only."""
    deleted_records: int | None
    """`None` if unknown without opening the log; the same for `reclaimable_bytes`."""
    reclaimable_bytes: int | None


class LogSummary(NamedTuple):
    """A log, open or not."""

    segments: Sequence[Segment]
    end_offset: int
    masks: Mapping[int, DeletedOffsets] | None
    """Records deleted by key, by base offset; `None` if unknown."""

    @property
    def bytes(self) -> int:
        """Size of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def records(self) -> int | None:
        """Records in all segments, without those deleted by key; `None` if unknown."""
        if self.masks is None:
            return None
        hidden = sum(len(mask.offsets) for mask in self.masks.values())
        return sum(map(record_count, self.segments)) - hidden

    def page(self, after: int, count_max: int) -> list[SegmentSummary]:
        """Return at most `count_max` segments whose base offset is greater than `after`."""
        begin = bisect_right(self.segments, after, key=lambda segment: segment.base_offset)
        return [self._segment(segment) for segment in self.segments[begin : begin + count_max]]

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
            is_cold=isinstance(segment, ColdSegment),
            deleted_records=deleted,
            reclaimable_bytes=reclaimable,
        )


EMPTY_SUMMARY = LogSummary((), 0, {})
"""Summary of a log that was never used, which has no file."""


def summarize_log(store: Store, name: LogName) -> LogSummary | None:
    """Return the summary of a log; `None` if its files are damaged."""
    if (log := store.find(name)) is not None:
        return LogSummary(log.segments, log.end_offset, log.masks)
    recovered = store.recovered_log(name)
    if recovered is None:
        return None if store.is_failed(name) else EMPTY_SUMMARY
    segments, start = recovered.segments, recovered.partition.start_offset
    end = max(segments[-1].next_offset if segments else start, recovered.end_offset)
    is_unknown = recovered.partition.deletions or recovered.damage or recovered.offline
    return LogSummary(segments, max(start, end), None if is_unknown else {})


def _timestamp_min(segment: Segment) -> int:
    if isinstance(segment, SealedSegment):
        return segment.seal.timestamp_min
    assert isinstance(segment, GrowingSegment)
    return segment.stats.timestamp_min
