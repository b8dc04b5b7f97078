"""The readable state of a log: its segments, its start and its committed end.

The writer publishes a new snapshot in one step, and a reader takes the snapshot once and works with
it. So no lock is needed: any number of threads may read while the one writer appends. Deleting and
rewriting publish a new snapshot first and remove files afterwards; a reader that finds a file gone
takes the newer snapshot and tries again.

Records that were deleted by key are masked: they are still in a file, but no reader sees them.

A log with replicas has two ends. What is *durable* here may still be taken back, as long as other
replicas do not have it. So the committed end, up to which readers see, is then the *visible limit*
(the high watermark) or the durable end, whichever comes first. Without a limit the two are one.

Damage is local. A read that begins with records that are lost raises `DamagedRecords`; all others
return what they find. Damage changes neither start nor end of the log.
"""

from __future__ import annotations

import contextlib
import errno
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from millstream.errors import (
    CorruptData,
    DamagedRecords,
    InvalidAddress,
    MillstreamError,
    OffsetOutOfRange,
    StorageFailed,
    again,
)
from millstream.records.batch import decode_header
from millstream.records.record import RETENTION
from millstream.storage.segment.cold_segment import COLD_READ_BYTES_MAX, ColdSegment
from millstream.storage.segment.reader import (
    Address,
    Slice,
    TimestampedOffset,
    batch_start,
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
"""How often a reader retries because its file was replaced: far more often than that can
happen.
"""

_LOST_ERRNOS = frozenset(
    {errno.EIO, errno.ENOENT, errno.ENODATA, errno.EUCLEAN, errno.EBADMSG, errno.EILSEQ}
)
"""Errors of the kernel after which the bytes of a file are lost, for all that is known: a bad
sector, a file that is gone, a checksum of the file system. Not those of a process that has too many
files open or too little memory.
"""

_DAMAGE_MAX = 100
"""Damaged ranges of a log that are kept for reports."""


class LogPosition(NamedTuple):
    """A point in a log: an offset, and the segment and byte position at which its batch starts."""

    offset: int
    segment: int
    position: int


class DeletedOffsets(NamedTuple):
    """Records of one segment that were deleted by key and are still in its file."""

    offsets: array[int]
    """Sorted."""
    bytes: int
    """Bytes of the file that they use; an estimate if some of them were removed by a rewrite."""
    damage: MillstreamError | None = None
    """Why it is not known what else was deleted.

    The segment cannot be read then: a deleted record must not come back because of damage.
    """


class LogSnapshot(NamedTuple):
    """One published state. Bytes and segments after `committed` do not exist for readers."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    committed: LogPosition
    start: int
    """First offset of the log, at the start of the first segment or inside it.

    It can be read unless its segment was lost.
    """
    eviction_floor: int = 0
    """Records before this offset were evicted by retention; at most `start`."""
    eviction_reason: str = RETENTION
    """Why they were evicted."""
    masks: Mapping[int, DeletedOffsets] = {}
    """By base offset of the segment; only segments in which something is, or may be, masked."""
    hidden_end: LogPosition | None = None
    """The durable end, if it is beyond `committed` because of the visible limit."""
    truncations: int = 0
    """How often files of the log were cut or replaced under their names since it was opened.

    What a reader of an older snapshot takes for damage may be a file that was cut.
    """

    @property
    def durable(self) -> LogPosition:
        """The end of what the durability class of the log protects."""
        return self.hidden_end or self.committed


class LogState:
    """The current snapshot of a log, and the reads on it."""

    def __init__(
        self,
        directory: str,
        segments: Sequence[Segment],
        committed: LogPosition,
        *,
        start_offset: int,
        eviction_floor: int = 0,
        eviction_reason: str = RETENTION,
        masks: Mapping[int, DeletedOffsets] | None = None,
    ) -> None:
        self._directory = directory
        self._stripped = StrippedBatchCache()
        self.snapshot = LogSnapshot(
            (), (), committed, start_offset, eviction_floor, eviction_reason, {}
        )
        self.replace_segments(segments)
        self.mask_deleted(masks or {})
        self.lost: MillstreamError | None = None
        """Why there may have been records behind the end of the log, or why it is gone."""
        self.on_damage: Callable[[DamagedRecords], None] = lambda _: None
        """Called once for each damaged range that a reader meets, in the thread of the reader."""
        self._damage: dict[tuple[int, int], DamagedRecords] = {}
        self.visible_limit: int | None = None
        """The offset that readers do not pass; `None` if they see all that is durable."""
        self._hidden: deque[LogPosition] = deque()
        """Durable ends beyond the committed end, in order: the limit will likely stop at these."""

    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """Publish another list of segments: one was started, sealed, reopened or removed."""
        bases = tuple(segment.base_offset for segment in segments)
        masks = self.snapshot.masks
        if masks:
            kept = masks.keys() & set(bases)
            masks = {base: mask for base, mask in masks.items() if base in kept}
        self.snapshot = self.snapshot._replace(segments=tuple(segments), bases=bases, masks=masks)

    def replace_segment_run(
        self, old: Sequence[SealedSegment], new: SealedSegment, removed: array[int]
    ) -> None:
        """Publish that the adjacent segments `old` were rewritten as `new`.

        Masked offsets that are not among the `removed` ones stay masked in `new`. If the log ends
        in the last of `old`, it ends in `new`.
        """
        snapshot = self.snapshot
        first = snapshot.segments.index(old[0])
        assert list(snapshot.segments[first : first + len(old)]) == list(old), (
            "the segments are adjacent"
        )
        segments = (*snapshot.segments[:first], new, *snapshot.segments[first + len(old) :])
        masks = dict(snapshot.masks)
        before = [masks.pop(s.base_offset) for s in old if s.base_offset in masks]
        remaining = subtract_offsets(merge_deleted_offsets(before), removed)
        if remaining.offsets or remaining.damage is not None:
            masks[new.base_offset] = remaining
        committed = snapshot.committed
        if committed.segment in [segment.base_offset for segment in old]:
            assert committed.offset == new.next_offset, "only committed segments are rewritten"
            committed = LogPosition(committed.offset, new.base_offset, new.size)
        bases = tuple(segment.base_offset for segment in segments)
        self.snapshot = snapshot._replace(
            segments=segments, bases=bases, masks=masks, committed=committed
        )

    def install(self, new: SealedSegment) -> None:
        """Publish a segment that continues the log, or that takes the place of all in its range.

        What was damaged or masked there is not any more. If the log ended in its range, it ends in
        the new segment.
        """
        snapshot = self.snapshot

        def is_replaced(base_offset: int) -> bool:
            return new.base_offset <= base_offset < new.next_offset

        def relocate(position: LogPosition) -> LogPosition:
            if not is_replaced(position.segment):
                return position
            start, offset = batch_start(new, position.offset, limit=new.size)
            return LogPosition(offset, new.base_offset, start)

        kept = [s for s in snapshot.segments if not is_replaced(s.base_offset)]
        segments = sorted([*kept, new], key=lambda segment: segment.base_offset)
        self._damage = {
            key: damage
            for key, damage in self._damage.items()
            if not new.base_offset <= damage.from_offset < new.next_offset
        }
        self._hidden = deque(map(relocate, self._hidden))
        self.snapshot = snapshot._replace(
            segments=tuple(segments),
            bases=tuple(segment.base_offset for segment in segments),
            masks={base: mask for base, mask in snapshot.masks.items() if not is_replaced(base)},
            committed=relocate(snapshot.committed),
            hidden_end=snapshot.hidden_end and relocate(snapshot.hidden_end),
            truncations=snapshot.truncations + 1,
        )
        if new.next_offset > snapshot.durable.offset:
            self.commit(LogPosition(new.next_offset, new.base_offset, new.size))

    def truncate(self, segments: Sequence[Segment], end: LogPosition) -> None:
        """Publish that the log ends at `end`, with these segments."""
        snapshot = self.snapshot
        assert snapshot.start <= end.offset <= snapshot.durable.offset, "a truncation removes"
        masks = {}
        for base, mask in snapshot.masks.items():
            kept = mask.offsets[: bisect_left(mask.offsets, end.offset)]
            if base < end.offset and (kept or mask.damage is not None):
                size = mask.bytes * len(kept) // max(1, len(mask.offsets))
                masks[base] = mask._replace(offsets=kept, bytes=size)
        while self._hidden and self._hidden[-1].offset >= end.offset:
            self._hidden.pop()
        is_hidden = end.offset > snapshot.committed.offset
        if is_hidden:
            self._hidden.append(end)
        self._damage = {k: d for k, d in self._damage.items() if d.from_offset < end.offset}
        if self.visible_limit is not None and end.offset < snapshot.committed.offset:
            self.visible_limit = end.offset
        self.snapshot = snapshot._replace(
            segments=tuple(segments),
            bases=tuple(segment.base_offset for segment in segments),
            masks=masks,
            committed=snapshot.committed if is_hidden else end,
            hidden_end=end if is_hidden else None,
            truncations=snapshot.truncations + 1,
        )

    def restart_at(self, offset: int) -> None:
        """Publish that the log is empty, and begins and ends at `offset`."""
        self._hidden.clear()
        self._damage = {}
        if self.visible_limit is not None:
            self.visible_limit = offset
        self.snapshot = LogSnapshot(
            (),
            (),
            LogPosition(offset, -1, 0),
            offset,
            min(self.snapshot.eviction_floor, offset),
            self.snapshot.eviction_reason,
            truncations=self.snapshot.truncations + 1,
        )

    def commit(self, durable: LogPosition) -> None:
        """Publish that the log is durable up to a position, and readable unless a limit is set.

        Does nothing if that is not further than before: its segment may have been rewritten since.
        """
        snapshot = self.snapshot
        if self.visible_limit is not None:
            self._commit_hidden(durable)
            return
        assert durable.offset >= snapshot.committed.offset, "the committed end never moves back"
        if durable.offset > snapshot.committed.offset:
            self.snapshot = snapshot._replace(committed=durable)

    def _commit_hidden(self, durable: LogPosition) -> None:
        before = self.snapshot.durable
        assert durable.offset >= before.offset, "the durable end never moves back"
        if durable.offset > before.offset:
            self._hidden.append(durable)
            self.snapshot = self.snapshot._replace(hidden_end=durable)
            self._show()

    def limit_visible(self, offset: int | None) -> None:
        """Let readers see what is durable before `offset`; `None` removes the limit.

        The first limit may hide what was visible; a later one never does. An offset inside a batch
        counts as the start of that batch.
        """
        snapshot = self.snapshot
        if offset is None:
            self.visible_limit = None
            self._hidden.clear()
            self.snapshot = snapshot._replace(committed=snapshot.durable, hidden_end=None)
            return
        offset = max(offset, snapshot.start)
        if self.visible_limit is None and offset < snapshot.committed.offset:
            shown = self._position_of(offset, snapshot)
            self._hidden.append(snapshot.committed)
            self.snapshot = snapshot._replace(committed=shown, hidden_end=snapshot.committed)
        self.visible_limit = max(offset, self.visible_limit or 0)
        self._show()

    def _show(self) -> None:
        """Move the committed end up to the limit, as far as the log is durable."""
        snapshot, limit, shown = self.snapshot, self.visible_limit, None
        assert limit is not None
        while self._hidden and self._hidden[0].offset <= limit:
            shown = self._hidden.popleft()
        if self._hidden and limit > (shown or snapshot.committed).offset:
            # Between two commits: a replica took the batches of one commit in parts.
            with contextlib.suppress(CorruptData):  # Readers of what is damaged are told.
                between = self._position_of(limit, snapshot)
                if between.offset > (shown or snapshot.committed).offset:
                    shown = between
        if shown is not None:
            hidden_end = snapshot.hidden_end if self._hidden else None
            self.snapshot = snapshot._replace(committed=shown, hidden_end=hidden_end)

    def _position_of(self, offset: int, snapshot: LogSnapshot) -> LogPosition:
        """Return the position of the batch that contains a durable `offset`."""
        segment = self._segment_of(offset, snapshot)
        batch = batch_start(segment, offset, limit=durable_size(snapshot, segment))
        return LogPosition(max(batch[1], snapshot.start), segment.base_offset, batch[0])

    def start_at(
        self,
        offset: int,
        *,
        eviction_reason: str | None = None,
        eviction_floor: int | None = None,
    ) -> None:
        """Publish that all before `offset` is deleted, or, with a reason, evicted.

        With `eviction_floor`, only what is before that was evicted.
        """
        assert self.start_offset <= offset <= self.end_offset, "the start never moves back"
        moved = self.snapshot._replace(start=offset)
        if eviction_reason is not None:
            floor = offset if eviction_floor is None else eviction_floor
            moved = moved._replace(eviction_floor=floor, eviction_reason=eviction_reason)
        self.snapshot = moved

    def mask_deleted(self, masks: Mapping[int, DeletedOffsets]) -> None:
        """Publish the masks of some segments, by base offset; each includes what was masked before.

        Masks of segments that no longer exist are ignored.
        """
        if masks:
            snapshot = self.snapshot
            present = {base: mask for base, mask in masks.items() if base in snapshot.bases}
            self.snapshot = snapshot._replace(masks={**snapshot.masks, **present})

    def close(self, why: MillstreamError) -> None:
        """Publish that nothing can be read any more: another log may soon use the directory."""
        self.lost = why
        self.replace_segments(())

    @property
    def start_offset(self) -> int:
        return self.snapshot.start

    @property
    def end_offset(self) -> int:
        """The first offset that cannot be read yet."""
        return self.snapshot.committed.offset

    @property
    def durable_offset(self) -> int:
        """The end of what the durability class protects; beyond `end_offset` if that is limited."""
        return self.snapshot.durable.offset

    @property
    def eviction_floor(self) -> int:
        """Records before this offset were evicted by retention."""
        return self.snapshot.eviction_floor

    @property
    def damage(self) -> list[DamagedRecords]:
        """The damaged ranges that readers have met, without those that were deleted since."""
        start = self.start_offset
        return [damage for damage in tuple(self._damage.values()) if damage.to_offset >= start]

    def note_damage(self, damage: DamagedRecords) -> None:
        """Keep a damaged range for reports."""
        key = damage.from_offset, damage.to_offset
        if key not in self._damage and len(self._damage) < _DAMAGE_MAX:
            self._damage[key] = damage
            self.on_damage(damage)

    def read(
        self, offset: int, *, size_max: int, records_max: int | None, is_checked: bool
    ) -> Slice:
        """Return committed batches from the one that contains `offset` on; none at the end.

        Raises `DamagedRecords` if that batch is damaged or missing.
        """
        tries = 0
        while True:
            snapshot = self.snapshot
            if not snapshot.start <= offset <= snapshot.committed.offset:
                if self.lost is not None and offset > snapshot.committed.offset:
                    raise again(self.lost)
                raise _out_of_range(offset, snapshot)
            if offset == snapshot.committed.offset:
                if self.lost is not None:
                    raise again(self.lost)
                address = Address(snapshot.committed.segment, snapshot.committed.position)
                return Slice(memoryview(b""), offset, address)
            try:
                segment = self._segment_of(offset, snapshot)
                if isinstance(segment, ColdSegment):
                    size_max = min(size_max, COLD_READ_BYTES_MAX)
                masked = self._deleted_filter(snapshot, segment) if snapshot.masks else None
                return read_slice(
                    segment,
                    offset,
                    limit=committed_size(snapshot, segment),
                    size_max=size_max,
                    records_max=records_max,
                    is_checked=is_checked,
                    masked=masked,
                )
            except DamagedRecords as damage:
                if snapshot.truncations != self.snapshot.truncations:
                    continue
                self.note_damage(damage)
                raise
            except OSError as error:
                tries += 1
                self._check_removed(segment, error, tries)

    def _segment_of(self, offset: int, snapshot: LogSnapshot) -> Segment:
        index = bisect_right(snapshot.bases, offset) - 1
        if not snapshot.segments and self.lost is not None:
            raise again(self.lost)
        if index < 0 or offset >= snapshot.segments[index].next_offset:
            raise self._hole(index, snapshot)
        return snapshot.segments[index]

    def _hole(self, index: int, snapshot: LogSnapshot) -> DamagedRecords:
        """Return the error for the offsets behind a segment that are in no other."""
        first, end = snapshot.start, snapshot.committed.offset
        if index >= 0:
            first = max(first, snapshot.segments[index].next_offset)
        if index + 1 < len(snapshot.bases):
            end = snapshot.bases[index + 1]
        return DamagedRecords(
            self._directory, "a segment is missing", from_offset=first, to_offset=end - 1
        )

    @property
    def written_offset(self) -> int:
        """The end of what is written, durable or not."""
        return _written_end(self.snapshot).offset

    def read_stored(
        self, offset: int, *, size_max: int, is_checked: bool, is_durable: bool = True
    ) -> tuple[Segment | None, Slice]:
        """Return durable batches as they are stored, and their segment; none at the end.

        Neither the start of the log nor deletions by key nor the visible limit count. At the end of
        the log, the segment is the last one, `None` if there is none. Without `is_durable`, batches
        that are only written are returned too; the last segment is then read on the event loop,
        which writes it.
        """

        def read(snapshot: LogSnapshot) -> tuple[Segment | None, Slice]:
            first = snapshot.segments[0].base_offset if snapshot.segments else snapshot.start
            end = snapshot.durable if is_durable else _written_end(snapshot)
            if not first <= offset <= end.offset:
                raise OffsetOutOfRange(offset, start=first, end=end.offset)
            if offset == end.offset:
                last = bisect_right(snapshot.bases, end.segment) - 1
                segment = snapshot.segments[last] if last >= 0 else None
                address = Address(end.segment, end.position)
                return segment, Slice(memoryview(b""), offset, address)
            segment = self._segment_of(offset, snapshot)
            with _naming_segment(segment):
                return segment, read_slice(
                    segment,
                    offset,
                    limit=durable_size(snapshot, segment) if is_durable else segment.size,
                    size_max=size_max,
                    records_max=None,
                    is_checked=is_checked,
                )

        return self._query(read)

    def read_at(self, address: Address) -> Slice:
        """Return the committed batch at a physical address."""
        return self._query(lambda snapshot: self._read_at(address, snapshot))

    def _read_at(self, address: Address, snapshot: LogSnapshot) -> Slice:
        index = bisect_right(snapshot.bases, address.segment) - 1
        if index < 0 or snapshot.bases[index] != address.segment:
            raise InvalidAddress(f"{self._directory}: no segment starts at {address.segment}")
        segment = snapshot.segments[index]
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
        """Return the first committed record whose timestamp is `timestamp_ms` or later."""
        return self._query(lambda snapshot: self._find_timestamp(timestamp_ms, snapshot))

    def _find_timestamp(self, timestamp_ms: int, snapshot: LogSnapshot) -> TimestampedOffset | None:
        for segment in self._whole_segments(snapshot):
            if segment.timestamp_max < timestamp_ms:
                continue
            with _naming_segment(segment):
                record = find_timestamp(
                    segment,
                    timestamp_ms,
                    start=snapshot.start,
                    limit=committed_size(snapshot, segment),
                    masked=self._deleted_filter(snapshot, segment),
                )
                if record:
                    return record
        return None

    def find_latest(self) -> TimestampedOffset | None:
        """Return the committed record with the greatest timestamp; of several, the first."""
        return self._query(self._find_latest)

    def _find_latest(self, snapshot: LogSnapshot) -> TimestampedOffset | None:
        latest: TimestampedOffset | None = None
        for segment in sorted(
            self._whole_segments(snapshot), key=lambda s: (-s.timestamp_max, s.base_offset)
        ):
            if latest and segment.timestamp_max < latest.timestamp_ms:
                break
            with _naming_segment(segment):
                limit, masked = (
                    committed_size(snapshot, segment),
                    self._deleted_filter(snapshot, segment),
                )
                record = find_latest(segment, start=snapshot.start, limit=limit, masked=masked)
                latest = min(filter(None, (latest, record)), key=_latest_first, default=None)
        return latest

    def batches_since(self, timestamp_ms: int) -> Iterator[memoryview]:
        """Iterate over all committed batches with a record of `timestamp_ms` or later.

        The first batch may also have records before the start of the log.
        """
        first, tries = 0, 0
        while True:
            snapshot = self.snapshot
            try:
                for batch in self._batches_since(timestamp_ms, first, snapshot):
                    yield batch
                    first = decode_header(batch).next_offset
            except DamagedRecords as damage:
                if snapshot.truncations != self.snapshot.truncations:
                    continue
                self.note_damage(damage)
                raise
            except _SegmentGone as gone:
                tries += 1
                self._check_removed(gone.segment, gone.error, tries)
            else:
                return

    def _batches_since(
        self, timestamp_ms: int, first: int, snapshot: LogSnapshot
    ) -> Iterator[memoryview]:
        for segment in self._whole_segments(snapshot):
            if segment.next_offset > first and segment.timestamp_max >= timestamp_ms:
                with _naming_segment(segment):
                    yield from batches_since(
                        segment,
                        timestamp_ms,
                        start=max(first, snapshot.start),
                        limit=committed_size(snapshot, segment),
                        masked=self._deleted_filter(snapshot, segment),
                    )

    def _whole_segments(self, snapshot: LogSnapshot) -> Iterator[Segment]:
        """Iterate over the visible segments, in order; raise where one is missing.

        A search must not skip records that it should have looked at.
        """
        if not snapshot.segments and self.lost is not None:
            raise again(self.lost)
        expected = snapshot.start
        for segment in visible_segments(snapshot):
            if segment.base_offset > expected:
                raise self._hole(bisect_right(snapshot.bases, expected) - 1, snapshot)
            yield segment
            expected = segment.next_offset
        if expected < snapshot.committed.offset:
            raise self._hole(len(snapshot.segments) - 1, snapshot)
        if self.lost is not None:
            raise again(self.lost)

    def _deleted_filter(
        self, snapshot: LogSnapshot, segment: Segment
    ) -> DeletedRecordFilter | None:
        """Return the filter of deleted records of a segment; raise if they are not known."""
        mask = snapshot.masks.get(segment.base_offset)
        if mask is None:
            return None
        if mask.damage is not None:
            raise DamagedRecords(
                segment.path,
                f"the deleted records are not known: {mask.damage}",
                from_offset=max(segment.base_offset, snapshot.start),
                to_offset=segment.next_offset - 1,
            ) from mask.damage
        return DeletedRecordFilter(mask.offsets, self._stripped)

    def _query(self, question: Callable[[LogSnapshot], T]) -> T:
        """Run a query on the snapshot, and again if a file was removed meanwhile."""
        tries = 0
        while True:
            snapshot = self.snapshot
            try:
                return question(snapshot)
            except DamagedRecords as damage:
                if snapshot.truncations != self.snapshot.truncations:
                    continue
                self.note_damage(damage)
                raise
            except _SegmentGone as gone:
                tries += 1
                self._check_removed(gone.segment, gone.error, tries)

    def _check_removed(self, segment: Segment, error: OSError, tries: int) -> None:
        """Return if an unreadable segment is no longer part of the log; else raise."""
        if segment in self.snapshot.segments or tries >= _TRIES_MAX:
            if error.errno in _LOST_ERRNOS:
                self.note_damage(
                    DamagedRecords(
                        segment.path,
                        f"cannot be read: {error.strerror}",
                        from_offset=segment.base_offset,
                        to_offset=segment.next_offset - 1,
                    )
                )
            raise StorageFailed(f"{segment.path} cannot be read: {error}") from error


class _SegmentGone(Exception):
    """A segment cannot be read. It may have been removed or replaced."""

    def __init__(self, segment: Segment, error: OSError) -> None:
        super().__init__(str(error))
        self.segment = segment
        self.error = error


@contextlib.contextmanager
def _naming_segment(segment: Segment) -> Iterator[None]:
    """Turn an `OSError` into one that names the segment."""
    try:
        yield
    except OSError as error:
        raise _SegmentGone(segment, error) from error


def merge_deleted_offsets(masks: Sequence[DeletedOffsets]) -> DeletedOffsets:
    """Merge masks that have no offset in common."""
    joined, is_sorted = array("q"), True
    for mask in masks:
        is_sorted &= not joined or not mask.offsets or joined[-1] < mask.offsets[0]
        joined.extend(mask.offsets)
    damage = next((mask.damage for mask in masks if mask.damage is not None), None)
    offsets = joined if is_sorted else array("q", sorted(joined))
    return DeletedOffsets(offsets, sum(mask.bytes for mask in masks), damage)


def subtract_offsets(mask: DeletedOffsets, removed: array[int]) -> DeletedOffsets:
    """Return a mask without some offsets; its bytes are then an estimate."""
    if mask.offsets == removed:  # The usual case, and there may be millions.
        return mask._replace(offsets=array("q"), bytes=0)
    removed_offsets = set(removed)
    remaining = array("q", (offset for offset in mask.offsets if offset not in removed_offsets))
    size = mask.bytes * len(remaining) // max(1, len(mask.offsets))
    return mask._replace(offsets=remaining, bytes=size)


def _out_of_range(offset: int, snapshot: LogSnapshot) -> OffsetOutOfRange:
    return OffsetOutOfRange(offset, start=snapshot.start, end=snapshot.committed.offset)


def _latest_first(record: TimestampedOffset) -> tuple[int, int]:
    return -record.timestamp_ms, record.offset


def visible_segments(snapshot: LogSnapshot) -> list[Segment]:
    """Return the segments with at least one committed batch that is not deleted."""
    return [
        segment
        for segment in snapshot.segments
        if segment.next_offset > snapshot.start and committed_size(snapshot, segment) > 0
    ]


def committed_size(snapshot: LogSnapshot, segment: Segment) -> int:
    """Return the end of the committed bytes of a segment."""
    if segment.base_offset < snapshot.committed.segment:
        return segment.size
    return snapshot.committed.position if segment.base_offset == snapshot.committed.segment else 0


def _written_end(snapshot: LogSnapshot) -> LogPosition:
    """Return the end of what is written: that of the last segment, or the durable end."""
    if not snapshot.segments:
        return snapshot.durable
    last = snapshot.segments[-1]
    if last.next_offset <= snapshot.durable.offset:
        return snapshot.durable
    return LogPosition(last.next_offset, last.base_offset, last.size)


def durable_size(snapshot: LogSnapshot, segment: Segment) -> int:
    """Return the end of the durable bytes of a segment."""
    _, base_offset, position = snapshot.durable
    if segment.base_offset < base_offset:
        return segment.size
    return position if segment.base_offset == base_offset else 0
