"""What readers see of a log: its segments, where it starts and how far they are committed.

The writer publishes a new state in one step, and a reader takes the state once and works with
that, so no lock is needed: any number of threads may read while the one writer appends. Deleting
and rewriting publish first and remove files afterwards; a reader that was quicker than the one and
slower than the other finds a file gone, looks at the newer state, and answers by that.

Records that were deleted by key are masked: they are in a file, and nobody is shown them.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from millstream.errors import (
    CorruptFile,
    InvalidAddress,
    MillstreamError,
    OffsetOutOfRange,
    StorageFailed,
)
from millstream.records.batch import decode_header
from millstream.storage.segment.reader import (
    Address,
    Slice,
    TimestampedOffset,
    batches_since,
    find_latest,
    find_timestamp,
    read_at,
    read_slice,
)
from millstream.storage.segment.segment import SealedSegment, Segment
from millstream.storage.segment.stripped_batches import DeletedRecordFilter, StrippedBatchCache

T = TypeVar("T")

_TRIES_MAX = 100
"""How often a reader may find that the file it wanted was replaced: far more than can happen."""


class LogPosition(NamedTuple):
    """A point in a log: an offset, and where its batch would start."""

    offset: int
    segment: int
    position: int


class DeletedOffsets(NamedTuple):
    """Records of one segment that were deleted by key and are still in its file."""

    offsets: array[int]
    """Sorted."""
    bytes: int
    """How much of the file they take; an estimate where it was rewritten in part."""
    damage: MillstreamError | None = None
    """Why it is not known what else was deleted. Nothing of the segment can be read then: what was
    deleted must not come back because something is damaged."""


class LogSnapshot(NamedTuple):
    """One published state. Segments behind the mark are whole, those after it are not there."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    committed: LogPosition
    start: int
    """The first offset of the log, at the start of the first segment or inside it; it can be read
    unless its segment was lost."""
    eviction_floor: int = 0
    """All before it went without anyone asking for that; at most `start`."""
    masks: Mapping[int, DeletedOffsets] = {}
    """By base offset of the segment; only of segments in which anything is masked, or may be."""


class LogState:
    """The readable side of a log."""

    def __init__(
        self,
        directory: str,
        segments: Sequence[Segment],
        committed: LogPosition,
        *,
        start_offset: int,
        eviction_floor: int = 0,
        masks: Mapping[int, DeletedOffsets] | None = None,
    ) -> None:
        self._directory = directory
        self._stripped = StrippedBatchCache()
        self.snapshot = LogSnapshot((), (), committed, start_offset, eviction_floor, {})
        self.replace_segments(segments)
        self.mask_deleted(masks or {})
        self.lost: MillstreamError | None = None
        """Why nothing can be read at the end of the log, or at all: bytes are damaged, or gone."""

    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """Publish other segments: one began, was sealed, opened again or removed."""
        bases = tuple(segment.base_offset for segment in segments)
        masks = self.snapshot.masks
        if masks:
            kept = masks.keys() & set(bases)
            masks = {base: mask for base, mask in masks.items() if base in kept}
        self.snapshot = self.snapshot._replace(segments=tuple(segments), bases=bases, masks=masks)

    def replace_segment_run(
        self, old: Sequence[SealedSegment], new: SealedSegment, removed: array[int]
    ) -> None:
        """Publish that `old`, which follow each other, were rewritten as `new`.

        What was masked in them and is not among the `removed` offsets is masked in `new`. Where
        the log ends in the last of them, it ends in `new`.
        """
        snapshot = self.snapshot
        first = snapshot.segments.index(old[0])
        assert list(snapshot.segments[first : first + len(old)]) == list(old), "they lie together"
        segments = (*snapshot.segments[:first], new, *snapshot.segments[first + len(old) :])
        masks = dict(snapshot.masks)
        before = [masks.pop(s.base_offset) for s in old if s.base_offset in masks]
        left = subtract_offsets(merge_deleted_offsets(before), removed)
        if left.offsets or left.damage is not None:
            masks[new.base_offset] = left
        committed = snapshot.committed
        if committed.segment in [segment.base_offset for segment in old]:
            assert committed.offset == new.next_offset, "what is rewritten is committed"
            committed = LogPosition(committed.offset, new.base_offset, new.size)
        bases = tuple(segment.base_offset for segment in segments)
        self.snapshot = snapshot._replace(
            segments=segments, bases=bases, masks=masks, committed=committed
        )

    def commit(self, committed: LogPosition) -> None:
        """Publish that the log is committed up to a mark.

        One that says no more than is known does nothing: its segment may be rewritten since.
        """
        assert committed.offset >= self.snapshot.committed.offset, "what was committed stays so"
        if committed.offset > self.snapshot.committed.offset:
            self.snapshot = self.snapshot._replace(committed=committed)

    def start_at(self, offset: int, *, eviction_floor: int | None = None) -> None:
        """Publish that all before `offset` is deleted, and up to which offset it was evicted."""
        assert self.start_offset <= offset <= self.end_offset, "what was deleted stays so"
        floor = self.snapshot.eviction_floor if eviction_floor is None else eviction_floor
        assert self.snapshot.eviction_floor <= floor <= offset, "what was evicted stays so"
        self.snapshot = self.snapshot._replace(start=offset, eviction_floor=floor)

    def mask_deleted(self, masks: Mapping[int, DeletedOffsets]) -> None:
        """Publish masks of some segments, by base offset; each holds what was masked there before.

        Masks of segments that are not there any more are left out.
        """
        if masks:
            snapshot = self.snapshot
            there = {base: mask for base, mask in masks.items() if base in snapshot.bases}
            self.snapshot = snapshot._replace(masks={**snapshot.masks, **there})

    def let_go(self, why: MillstreamError) -> None:
        """Publish that nothing can be read any more: another log may soon lie in its place."""
        self.lost = why
        self.replace_segments(())

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self.snapshot.start

    @property
    def end_offset(self) -> int:
        """The first offset that cannot be read yet."""
        return self.snapshot.committed.offset

    @property
    def eviction_floor(self) -> int:
        """The offset before which all was evicted."""
        return self.snapshot.eviction_floor

    def read(
        self, offset: int, *, size_max: int, records_max: int | None, is_checked: bool
    ) -> Slice:
        """Return committed batches from the one that holds `offset` on; empty at the end."""
        tries = 0
        while True:
            snapshot = self.snapshot
            if not snapshot.start <= offset <= snapshot.committed.offset:
                raise _out_of_range(offset, snapshot)
            if offset == snapshot.committed.offset:
                if self.lost is not None:
                    raise self.lost
                address = Address(snapshot.committed.segment, snapshot.committed.position)
                return Slice(memoryview(b""), offset, address)
            segment = self._segment_of(offset, snapshot)
            masked = self._deleted_filter(snapshot, segment) if snapshot.masks else None
            try:
                return read_slice(
                    segment,
                    offset,
                    limit=committed_size(snapshot, segment),
                    size_max=size_max,
                    records_max=records_max,
                    is_checked=is_checked,
                    masked=masked,
                )
            except OSError as error:
                tries += 1
                self._check_gone(segment, error, tries)

    def _segment_of(self, offset: int, snapshot: LogSnapshot) -> Segment:
        found = bisect_right(snapshot.bases, offset) - 1
        if not snapshot.segments and self.lost is not None:
            raise self.lost
        if found < 0 or offset >= snapshot.segments[found].next_offset:
            raise CorruptFile(f"{self._directory}: offset {offset} has no segment")
        return snapshot.segments[found]

    def read_at(self, address: Address) -> Slice:
        """Return the committed batch at a physical address."""
        return self._query(lambda snapshot: self._read_at(address, snapshot))

    def _read_at(self, address: Address, snapshot: LogSnapshot) -> Slice:
        found = bisect_right(snapshot.bases, address.segment) - 1
        if found < 0 or snapshot.bases[found] != address.segment:
            raise InvalidAddress(f"{self._directory}: no segment starts at {address.segment}")
        segment = snapshot.segments[found]
        with _naming_segment(segment):
            limit, masked = (
                committed_size(snapshot, segment),
                self._deleted_filter(snapshot, segment),
            )
            batch = read_at(segment, address.position, limit=limit, masked=masked)
        if batch.next_offset <= snapshot.start:
            raise InvalidAddress(
                f"{segment.path}: byte {address.position}: the batch there is deleted"
            )
        return batch

    def find_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """Return the first committed record that is as late as `timestamp_ms` or later."""
        return self._query(lambda snapshot: self._find_timestamp(timestamp_ms, snapshot))

    def _find_timestamp(self, timestamp_ms: int, snapshot: LogSnapshot) -> TimestampedOffset | None:
        for segment in visible_segments(snapshot):
            if segment.timestamp_max < timestamp_ms:
                continue
            with _naming_segment(segment):
                found = find_timestamp(
                    segment,
                    timestamp_ms,
                    start=snapshot.start,
                    limit=committed_size(snapshot, segment),
                    masked=self._deleted_filter(snapshot, segment),
                )
                if found:
                    return found
        return None

    def find_latest(self) -> TimestampedOffset | None:
        """Return the committed record with the greatest timestamp; of several, the first."""
        return self._query(self._find_latest)

    def _find_latest(self, snapshot: LogSnapshot) -> TimestampedOffset | None:
        latest: TimestampedOffset | None = None
        for segment in sorted(
            visible_segments(snapshot), key=lambda s: (-s.timestamp_max, s.base_offset)
        ):
            if latest and segment.timestamp_max < latest.timestamp_ms:
                break
            with _naming_segment(segment):
                limit, masked = (
                    committed_size(snapshot, segment),
                    self._deleted_filter(snapshot, segment),
                )
                found = find_latest(segment, start=snapshot.start, limit=limit, masked=masked)
                latest = min(filter(None, (latest, found)), key=_latest_first, default=None)
        return latest

    def batches_since(self, timestamp_ms: int) -> Iterator[memoryview]:
        """Go over all committed batches that hold a record of `timestamp_ms` or later.

        The first may hold records before the start of the log too.
        """
        first, tries = 0, 0
        while True:
            try:
                for batch in self._batches_since(timestamp_ms, first, self.snapshot):
                    yield batch
                    first = decode_header(batch).next_offset
            except _SegmentGone as gone:
                tries += 1
                self._check_gone(gone.segment, gone.error, tries)
            else:
                return

    def _batches_since(
        self, timestamp_ms: int, first: int, snapshot: LogSnapshot
    ) -> Iterator[memoryview]:
        for segment in visible_segments(snapshot):
            if segment.next_offset > first and segment.timestamp_max >= timestamp_ms:
                with _naming_segment(segment):
                    yield from batches_since(
                        segment,
                        timestamp_ms,
                        start=max(first, snapshot.start),
                        limit=committed_size(snapshot, segment),
                        masked=self._deleted_filter(snapshot, segment),
                    )

    def _deleted_filter(
        self, snapshot: LogSnapshot, segment: Segment
    ) -> DeletedRecordFilter | None:
        """Return what must not be seen of a segment; raises where that is not known."""
        mask = snapshot.masks.get(segment.base_offset)
        if mask is None:
            return None
        if mask.damage is not None:
            raise CorruptFile(
                f"{segment.path}: it cannot be told what was deleted in it: {mask.damage}"
            ) from mask.damage
        return DeletedRecordFilter(mask.offsets, self._stripped)

    def _query(self, question: Callable[[LogSnapshot], T]) -> T:
        """Ask a question of the state, and again where a file went before it was answered."""
        tries = 0
        while True:
            try:
                return question(self.snapshot)
            except _SegmentGone as gone:
                tries += 1
                self._check_gone(gone.segment, gone.error, tries)

    def _check_gone(self, segment: Segment, error: OSError, tries: int) -> None:
        """Return if a segment that cannot be read is not part of the log any more; else raise."""
        if segment in self.snapshot.segments or tries >= _TRIES_MAX:
            raise StorageFailed(f"{segment.path} cannot be read: {error}") from error


class _SegmentGone(Exception):
    """A segment cannot be read. It may have been removed or replaced."""

    def __init__(self, segment: Segment, error: OSError) -> None:
        super().__init__(str(error))
        self.segment = segment
        self.error = error


@contextlib.contextmanager
def _naming_segment(segment: Segment) -> Iterator[None]:
    """Name the segment in what the operating system says of it."""
    try:
        yield
    except OSError as error:
        raise _SegmentGone(segment, error) from error


def merge_deleted_offsets(masks: Sequence[DeletedOffsets]) -> DeletedOffsets:
    """Return one mask that hides what several do, which have no offset in common."""
    joined, is_sorted = array("q"), True
    for mask in masks:
        is_sorted &= not joined or not mask.offsets or joined[-1] < mask.offsets[0]
        joined.extend(mask.offsets)
    damage = next((mask.damage for mask in masks if mask.damage is not None), None)
    offsets = joined if is_sorted else array("q", sorted(joined))
    return DeletedOffsets(offsets, sum(mask.bytes for mask in masks), damage)


def subtract_offsets(mask: DeletedOffsets, removed: array[int]) -> DeletedOffsets:
    """Return what is left of a mask without some offsets; its bytes are then an estimate."""
    if mask.offsets == removed:  # As nearly always; and there may be millions.
        return mask._replace(offsets=array("q"), bytes=0)
    gone = set(removed)
    left = array("q", (offset for offset in mask.offsets if offset not in gone))
    size = mask.bytes * len(left) // max(1, len(mask.offsets))
    return mask._replace(offsets=left, bytes=size)


def _out_of_range(offset: int, snapshot: LogSnapshot) -> OffsetOutOfRange:
    return OffsetOutOfRange(offset, start=snapshot.start, end=snapshot.committed.offset)


def _latest_first(found: TimestampedOffset) -> tuple[int, int]:
    return -found.timestamp_ms, found.offset


def visible_segments(snapshot: LogSnapshot) -> list[Segment]:
    """Segments with at least one committed batch that was not deleted."""
    return [
        segment
        for segment in snapshot.segments
        if segment.next_offset > snapshot.start and committed_size(snapshot, segment) > 0
    ]


def committed_size(snapshot: LogSnapshot, segment: Segment) -> int:
    """End of the committed bytes of a segment."""
    if segment.base_offset < snapshot.committed.segment:
        return segment.size
    return snapshot.committed.position if segment.base_offset == snapshot.committed.segment else 0
