"""Appends of a replica: slices of its leader's log, written as they are.

The leader has decided everything: offsets, epochs, and where segments begin and end. A replica
checks that a slice continues its own log, at the same position of the same segment, and writes it.
It never starts or finishes a segment by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millstream.errors import ReplicaMismatch
from millstream.records.batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader
from millstream.storage.append.pending_append import AppendWaiter, OnAdmit, PendingAppend
from millstream.storage.disk.filesystem import File, write_all
from millstream.storage.segment.counters import LogCounters, StoreTotals
from millstream.storage.segment.reader import Address
from millstream.storage.segment.replica_slice import ReplicaPosition, ReplicaSlice
from millstream.storage.segment.segment import GrowingSegment, SealedSegment

_NO_HEADER = BatchHeader(0, 0, 0, 2, 0, 0, -1, NO_TIMESTAMP, NO_TIMESTAMP, -1, -1, -1, 0)


class ReplicaAppend(PendingAppend):
    """A slice and the waiter that receives its outcome."""

    __slots__ = ("headers", "position", "segment", "source")

    def __init__(
        self,
        source: ReplicaSlice,
        headers: list[BatchHeader],
        waiter: AppendWaiter,
        on_admit: OnAdmit | None = None,
    ) -> None:
        # For the queue, a slice is one batch with all its offsets.
        first = headers[0] if headers else _NO_HEADER
        header = first._replace(
            last_offset_delta=source.next_offset - source.offset - 1,
            record_count=sum(header.record_count for header in headers),
        )
        super().__init__(header, source.data, waiter, on_admit)
        self.source = source
        self.headers = headers
        self.segment = self.position = -1
        """Where it is written: base offset of the segment, and position. -1 until admitted."""

    @property
    def origin(self) -> tuple[int, int] | None:
        """The segment of the leader that it comes from, if that was rewritten."""
        return _origin(self.source)


class ReplicaTail:
    """The end of a replica, including slices that are admitted and not written yet."""

    def __init__(
        self,
        offset: int,
        pending: Sequence[PendingAppend],
        last: GrowingSegment | SealedSegment | None,
    ) -> None:
        self.offset = offset
        self.segment, self.position, self.leader_epoch = -1, 0, -1
        self.is_open = True
        self.origin: tuple[int, int] | None = None
        """The segment of the leader from which the last one is copied, if that was rewritten."""
        if last is not None:
            self.segment, self.position = last.base_offset, last.size
            self.leader_epoch = last.leader_epoch if last.size else -1
            if isinstance(last, GrowingSegment):
                self.is_open = last.sealed_ms is None
                self.origin = last.origin
        if pending and isinstance(append := pending[-1], ReplicaAppend):
            self.segment, self.position = append.segment, append.position + append.size
            self.leader_epoch = append.source.leader_epoch
            self.is_open = not append.source.is_last_of_segment
            self.origin = append.origin

    def place(self, source: ReplicaSlice) -> tuple[int, int]:
        """Return the segment and the position at which a slice is to be written.

        Raises `ReplicaMismatch` if it does not continue the log.
        """
        if source.offset != self.offset:
            raise self._mismatch("the slice does not begin at the end of the replica", source)
        if source.leader_epoch < self.leader_epoch:
            raise self._mismatch(
                f"the slice has epoch {source.leader_epoch}, the replica has {self.leader_epoch}",
                source,
            )
        has_epoch = self.leader_epoch in (-1, source.leader_epoch)
        if source.generation > 0:
            # Positions differ, so only the origin tells whether the last segment goes on.
            if self.is_open and self.origin == _origin(source) and has_epoch:
                return self.segment, self.position
            return self.offset, 0
        if source.segment == self.segment and self.origin is None:
            if not self.is_open:
                raise self._mismatch("the segment was finished", source)
            if source.position != self.position:
                raise self._mismatch("positions differ", source)
            if not has_epoch:
                raise self._mismatch("a segment has one epoch", source)
            return self.segment, self.position
        if source.segment != self.offset or source.position != 0:
            raise self._mismatch("a segment begins at the end of the replica", source)
        return self.offset, 0

    def _mismatch(self, what: str, source: ReplicaSlice) -> ReplicaMismatch:
        own = ReplicaPosition(self.offset, self.segment, self.position)
        return ReplicaMismatch(what, own=own, given=source.given)


def _origin(source: ReplicaSlice) -> tuple[int, int] | None:
    return (source.segment, source.generation) if source.generation > 0 else None


def gather_slices(pending: deque[PendingAppend], segment: GrowingSegment) -> list[ReplicaAppend]:
    """Return the pending slices of `segment`, for one write; at least one."""
    appends: list[ReplicaAppend] = []
    for append in pending:
        assert isinstance(append, ReplicaAppend), "a replica has no other appends"
        if append.segment != segment.base_offset:
            break
        appends.append(append)
        if append.source.is_last_of_segment:
            break
    return appends


def write_slices(file: File, segment: GrowingSegment, appends: list[ReplicaAppend]) -> None:
    """Write slices at the end of the segment. After an `OSError`, any part may be in the file."""
    assert appends[0].position == segment.size, "a slice is written where it was placed"
    size = sum(append.size for append in appends)
    segment.reserve(segment.size + size)
    write_all(file, segment.size, [append.batch for append in appends])


def record_slices(
    segment: GrowingSegment,
    appends: list[ReplicaAppend],
    counters: LogCounters,
    totals: StoreTotals,
) -> None:
    """Record slices that were written: in the segment, in themselves and in the counters."""
    records, size = segment.stats.record_count, segment.size
    for append in appends:
        append.address = Address(segment.base_offset, append.position)
        view, position = memoryview(append.batch), 0
        for header in append.headers:
            segment.add(header, header.size, view[position : position + HEADER_SIZE])
            position += header.size
            totals.batch_bytes.observe(header.size)
            totals.batch_records.observe(header.record_count)
        counters.appends += len(append.headers)
    counters.writes += 1
    records, size = segment.stats.record_count - records, segment.size - size
    counters.records += records
    counters.bytes += size
    totals.records += records
    totals.bytes += size
