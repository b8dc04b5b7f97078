"""How much a log holds, for logs that refuse what does not fit.

What counts is what a reader could still see: segments and parts of segments before the first offset
do not, though their files may be there for a while. So deleting from the front makes room at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from millstream.config.schema import Discard, LogConfig
from millstream.storage.retention.eviction import check_capacity, record_count
from millstream.storage.segment.log_state import LogSnapshot, LogState, committed_size
from millstream.storage.segment.segment import Segment


def has_size_limit(config: LogConfig) -> bool:
    """Whether a log with these settings ever refuses a batch for what it holds."""
    has_limit = config.retention_bytes is not None or config.retention_records is not None
    return has_limit and config.discard is Discard.REJECT


class SizeLimit:
    """The room in one log that can be full."""

    def __init__(self, name: str, state: LogState, config: LogConfig) -> None:
        self._name = name
        self._state = state
        self._config = config
        self._seen: tuple[tuple[Segment, ...], int, int] = ((), -1, -1)
        self._settled = (0, 0)
        """Bytes and records of all segments that are committed whole, in the state seen last."""

    def check(self, *, unflushed: int, next_offset: int, size: int, records: int) -> None:
        """Raise `LogFull` if a batch of `size` bytes with so many records does not fit.

        `unflushed` are the bytes that were admitted before it and are not committed yet,
        `next_offset` is the offset that follows theirs.
        """
        snapshot = self._state.snapshot
        held_bytes, held_records = self._held(snapshot)
        written = (
            snapshot.segments[-1].next_offset if snapshot.segments else snapshot.committed.offset
        )
        check_capacity(
            self._name,
            self._config,
            bytes=held_bytes + unflushed,
            records=held_records + next_offset - written,
            batch_bytes=size,
            batch_records=records,
        )

    def _held(self, snapshot: LogSnapshot) -> tuple[int, int]:
        """Return the bytes that are committed and the records that are written."""
        segments, mark = snapshot.segments, snapshot.committed.segment
        settled = bisect_left(snapshot.bases, mark)
        if self._seen[0] is not segments or self._seen[1:] != (snapshot.start, mark):
            self._seen = (segments, snapshot.start, mark)
            self._settled = _sum(snapshot, segments[:settled])
        size, records = _sum(snapshot, segments[settled:])
        return self._settled[0] + size, self._settled[1] + records


def _sum(snapshot: LogSnapshot, segments: Sequence[Segment]) -> tuple[int, int]:
    """Return the committed bytes and the written records of segments, from the first offset on."""
    size = records = 0
    for segment in segments:
        if segment.next_offset > snapshot.start:
            size += committed_size(snapshot, segment)
            records += record_count(segment)
        if segment.base_offset < snapshot.start < segment.next_offset:
            size -= segment.index().for_offset(snapshot.start).position
            # What compaction has removed leaves offsets without records.
            records = min(records, segment.next_offset - snapshot.start)
    return size, records
