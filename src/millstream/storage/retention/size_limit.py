"""Size limit of a log that rejects records when it is full.

Only records that a reader can still see count. Segments, or parts of them, before the start offset
do not, though their files may exist for a while. So deletion at the front frees capacity at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from millstream.config.schema import Discard, LogConfig
from millstream.storage.retention.eviction import check_capacity
from millstream.storage.retention.size_caps import record_count
from millstream.storage.segment.log_state import LogSnapshot, LogState, durable_size
from millstream.storage.segment.segment import Segment


def has_size_limit(config: LogConfig) -> bool:
    """Whether a log with these settings ever rejects a batch because of its size."""
    has_limit = config.retention_bytes is not None or config.retention_records is not None
    return has_limit and config.discard is Discard.REJECT


class SizeLimit:
    """The remaining capacity of one log with a size limit."""

    def __init__(self, name: str, state: LogState, config: LogConfig) -> None:
        self._name = name
        self._state = state
        self._config = config
        self._seen: tuple[tuple[Segment, ...], int, int] = ((), -1, -1)
        self._settled = (0, 0)
        """Bytes and records of all fully committed segments, in the last snapshot seen."""

    def check(self, *, unflushed: int, next_offset: int, size: int, records: int) -> None:
        """Raise `LogFull` if a batch of `size` bytes and `records` records does not fit.

        `unflushed` is the size of the batches that were admitted before it and are not committed
        yet, `next_offset` is the offset after them.
        """
        snapshot = self._state.snapshot
        held_bytes, held_records = self._held(snapshot)
        written = (
            snapshot.segments[-1].next_offset if snapshot.segments else snapshot.durable.offset
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
        """Return the durable bytes and the written records."""
        segments, mark = snapshot.segments, snapshot.durable.segment
        settled = bisect_left(snapshot.bases, mark)
        if self._seen[0] is not segments or self._seen[1:] != (snapshot.start, mark):
            self._seen = (segments, snapshot.start, mark)
            self._settled = _sum(snapshot, segments[:settled])
        size, records = _sum(snapshot, segments[settled:])
        return self._settled[0] + size, self._settled[1] + records


def _sum(snapshot: LogSnapshot, segments: Sequence[Segment]) -> tuple[int, int]:
    """Return the durable bytes and the written records of segments, from the start offset on."""
    size = records = 0
    for segment in segments:
        if segment.next_offset > snapshot.start:
            size += durable_size(snapshot, segment)
            records += record_count(segment)
        if segment.base_offset < snapshot.start < segment.next_offset:
            size -= segment.index().for_offset(snapshot.start).position
            # Compaction leaves offsets without records, so this is an upper bound.
            records = min(records, segment.next_offset - snapshot.start)
    return size, records
