"""Reads of one segment.

Every function takes `limit`, the end of the committed bytes, and returns nothing beyond it: a
written but uncommitted batch may vanish in a crash, and a consumer that saw it would be ahead of
the log. Functions that search for records also take `start`, the first offset that is not deleted,
which may be inside the segment or inside a batch, and find nothing before it. If records of the
segment were deleted by key, `masked` filters them out. There is no state, so threads may share a
segment.

A damaged batch does not hide others: a read returns the valid batches before it, and a read behind
it succeeds. Only a read that would have to begin with it raises `DamagedRecords`, as do searches
that would have to look into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import CorruptBatch, DamagedRecords, InvalidAddress
from millstream.records.batch import (
    BATCH_SIZE_MAX,
    CONTROL_BIT,
    CRC_END,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    check_batch,
    decode_header,
    unpack_header,
)
from millstream.records.control import Marker, read_marker
from millstream.records.iterate import first_offset_at, read_records
from millstream.storage.segment.damage import BatchPosition, find_next_batch
from millstream.storage.segment.scan import check_stamped_fields
from millstream.storage.segment.segment import GrowingSegment, Segment
from millstream.storage.segment.stripped_batches import DeletedRecordFilter

_WALK_BYTES = 256 * 1024
"""Bytes that are read at once when batches are searched rather than returned."""

_ENDS_BYTES = 16 * 1024
"""Bytes in which the ends of batches are looked up at once."""
_SEEK_BYTES = 16 * 1024
"""Bytes that are read beside those that are wanted, to find their start from the entry of the index
before it: four times its interval.
"""

_KEPT_SHARE = 4
"""Bytes of a growing segment are copied if they are less than this fraction of what was read."""

_TRANSACTION_BITS = TRANSACTIONAL_BIT | CONTROL_BIT


class Address(NamedTuple):
    """Physical address of a batch: base offset of its segment, and byte position in the `.log`."""

    segment: int
    position: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Complete, consecutive batches of one segment, as stored."""

    data: memoryview
    """Read-only. Bytes of a sealed segment are not copied: they belong to its memory map."""
    next_offset: int
    """The offset to read next."""
    address: Address
    """Address of the first byte."""

    @property
    def next_address(self) -> Address:
        """Address after the last byte."""
        return Address(self.address.segment, self.address.position + len(self.data))


@dataclass(frozen=True, slots=True)
class FilteredSlice(Slice):
    """One batch without the records that were deleted from it."""

    stored_size: int
    """Size of the batch in the file."""

    @property
    def next_address(self) -> Address:
        """Address of the batch that follows it."""
        return Address(self.address.segment, self.address.position + self.stored_size)


class TimestampedOffset(NamedTuple):
    """A record found by its timestamp."""

    offset: int
    timestamp_ms: int


def read_slice(
    segment: Segment,
    offset: int,
    *,
    limit: int,
    size_max: int,
    records_max: int | None,
    is_checked: bool,
    masked: DeletedRecordFilter | None = None,
) -> Slice:
    """Return batches from the one that contains `offset` on.

    Returns one batch even if it alone exceeds a limit, so that a consumer with small limits makes
    progress. A batch with masked records is returned alone. Raises `DamagedRecords` if that batch
    is damaged; a damaged one behind it ends the slice.
    """
    base_offset, position = _known_batch(segment, offset)
    window = _Window(segment, limit, position, _SEEK_BYTES + size_max)
    position, header = window.find(position, base_offset, offset, is_checked=is_checked)
    start = position
    if masked is not None:
        hidden = masked.next_at(header.base_offset)
        if hidden is not None and hidden <= header.last_offset:
            return _strip(window, position, header, masked)
        if hidden is not None:
            size_max = min(size_max, _distance(window, position, header, hidden, size_max))
    records = 0
    while True:
        records += header.record_count
        position, next_offset = position + header.size, header.next_offset
        if records_max is None:
            position, next_offset = window.run(
                position, next_offset, end=start + size_max, is_checked=is_checked
            )
        bytes_left = size_max - (position - start)
        if position >= limit or bytes_left < HEADER_SIZE:
            break
        try:
            header = window.header(position, next_offset)
            if header.size > bytes_left:
                break
            if records_max is not None and records + header.record_count > records_max:
                break
            if is_checked:
                window.check(position, header)
        except CorruptBatch:
            break  # A read from there reports it.
    address = Address(segment.base_offset, start)
    return Slice(window.kept_bytes(start, position), next_offset, address)


def _known_batch(segment: Segment, offset: int) -> tuple[int, int]:
    """Return offset and position of a batch at or before `offset`, and not far from it."""
    if type(segment) is GrowingSegment:
        last = segment.last_batch  # Once: the writer replaces it.
        if last is not None and offset >= last[0]:
            return last
    entry = segment.index().for_offset(offset)
    return entry.offset, entry.position


def read_at(
    segment: Segment, position: int, *, limit: int, masked: DeletedRecordFilter | None = None
) -> Slice:
    """Return the batch that starts at `position`, without an index and always checked."""
    place = f"byte {position} of {segment.path}"
    if not 0 <= position < limit:
        raise InvalidAddress(f"{place}: only {limit} bytes are committed")
    window = _Window(segment, limit, position, _WALK_BYTES)
    try:
        header = decode_header(window.bytes(position, position + HEADER_SIZE))
        check_stamped_fields(header, header.base_offset, segment.leader_epoch)
        if not segment.base_offset <= header.base_offset < segment.next_offset:
            raise CorruptBatch(f"offset {header.base_offset} does not belong to the segment")
        batch = window.bytes(position, position + header.size)
        check_batch(header, batch)
    except CorruptBatch as error:
        raise InvalidAddress(f"{place}: no valid batch starts here: {error}") from error
    if masked is not None and masked.within(header):
        return _strip(window, position, header, masked)
    return Slice(batch, header.next_offset, Address(segment.base_offset, position))


def find_timestamp(
    segment: Segment,
    timestamp_ms: int,
    *,
    start: int,
    limit: int,
    masked: DeletedRecordFilter | None = None,
) -> TimestampedOffset | None:
    """Return the first record of the segment whose timestamp is `timestamp_ms` or later.

    Batches that are passed over are checked too, or a flipped bit could hide the record. The index
    leads to within some kilobytes of it, so they are few.
    """
    first = max(segment.index().for_timestamp(timestamp_ms).offset, start)
    for window, position, header in _headers(segment, start=first, limit=limit):
        if header.max_timestamp < timestamp_ms:
            window.checked(position, header)
            continue
        batch = _visible_batch(window, position, header, masked)
        if record := _first_at(batch, timestamp_ms, start):
            return record
    return None


def find_latest(
    segment: Segment, *, start: int, limit: int, masked: DeletedRecordFilter | None = None
) -> TimestampedOffset | None:
    """Return the record of the segment with the greatest timestamp; of several, the first.

    Usually the greatest timestamp of the headers is that of a record, and the index leads there. If
    no record has it, or only deleted ones, every batch is read that may have a later record than
    the best so far.
    """
    greatest = segment.timestamp_max if limit == segment.size else _timestamp_max(segment, limit)
    if first := find_timestamp(segment, greatest, start=start, limit=limit, masked=masked):
        return first
    latest: TimestampedOffset | None = None
    for window, position, header in _headers(segment, start=start, limit=limit):
        if latest is None or header.max_timestamp > latest.timestamp_ms:
            for record in read_records(_visible_batch(window, position, header, masked)):
                is_later = latest is None or record.timestamp_ms > latest.timestamp_ms
                if record.offset >= start and is_later:
                    latest = TimestampedOffset(record.offset, record.timestamp_ms)
    return latest


def batches_since(
    segment: Segment,
    timestamp_ms: int,
    *,
    start: int,
    limit: int,
    masked: DeletedRecordFilter | None = None,
) -> Iterator[memoryview]:
    """Iterate over the batches with a record of `timestamp_ms` or later.

    The first may also have records before `start`.
    """
    first = max(segment.index().for_timestamp(timestamp_ms).offset, start)
    for window, position, header in _headers(segment, start=first, limit=limit):
        if header.max_timestamp >= timestamp_ms:
            yield _visible_batch(window, position, header, masked)


def batch_start(segment: Segment, offset: int, *, limit: int) -> tuple[int, int]:
    """Return position and base offset of the batch that contains `offset`.

    At `limit`, that of the next batch. Checksums are not verified unless there is damage.
    """
    if offset == segment.next_offset and limit == segment.size:
        return limit, offset
    entry = segment.index().for_offset(offset)
    window = _Window(segment, limit, entry.position, _ENDS_BYTES)
    position, header = window.find(entry.position, entry.offset, offset)
    return position, header.base_offset


def batch_ends(
    segment: Segment, position: int, offset: int, *, limit: int
) -> list[tuple[int, int]]:
    """Return the ends of some batches from the one at `position` on, as positions and offsets.

    Empty only at `limit`. Checksums are not verified.
    """
    ends: list[tuple[int, int]] = []
    window = _Window(segment, limit, position, _ENDS_BYTES)
    stop = min(limit, position + _ENDS_BYTES)
    while position < stop:
        header = window.header(position, offset)
        position, offset = position + header.size, header.next_offset
        ends.append((position, offset))
    return ends


def transactional_batches(
    segment: Segment, *, start: int, limit: int
) -> Iterator[tuple[BatchHeader, Marker | None]]:
    """Iterate over the batches from `start` on that are part of a transaction, or end one.

    Of all others only the header is read. Checksums are verified only of markers, which come with
    their content; the caller verifies the others if it reads them. Control batches of other types
    are left out.
    """
    entry = segment.index().for_offset(start)
    window = _Window(segment, limit, entry.position, _WALK_BYTES)
    anchor = entry.position, entry.offset
    position, offset = window.skip(*anchor)
    while position < limit:
        try:
            header = window.header(position, offset)
        except CorruptBatch:
            anchor = position, offset = window.pass_damage(*anchor, start)
            continue
        if header.attributes & _TRANSACTION_BITS and header.last_offset >= start:
            marker = _marker(window, position, header) if header.is_control else None
            if marker is not None or not header.is_control:
                yield header, marker
        position, offset = window.skip(position + header.size, header.next_offset)


def control_batches(
    segment: Segment, *, start: int, limit: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Iterate over the control batches from `start` on that are of no transaction, checked."""
    for window, position, header in _headers(segment, start=start, limit=limit):
        if header.is_control and not header.is_transactional:
            yield header, window.checked(position, header)


def check_transactional(segment: Segment, *, start: int, limit: int) -> None:
    """Raise `DamagedRecords` if a batch of a transaction, from `start` on, is damaged."""
    for window, position, header in _headers(segment, start=start, limit=limit):
        if header.attributes & _TRANSACTION_BITS:
            window.checked(position, header)


def _marker(window: _Window, position: int, header: BatchHeader) -> Marker | None:
    batch = window.checked(position, header)
    try:
        return read_marker(batch)
    except CorruptBatch as error:
        raise window.damage(position, header.base_offset, error) from error


def _visible_batch(
    window: _Window, position: int, header: BatchHeader, masked: DeletedRecordFilter | None
) -> memoryview:
    """Check the batch at `position`, and return it without its masked records."""
    if masked is not None and masked.within(header):
        return _strip(window, position, header, masked).data
    return window.checked(position, header)


def _strip(
    window: _Window, position: int, header: BatchHeader, masked: DeletedRecordFilter
) -> FilteredSlice:
    """Return the batch at `position` without its masked records.

    It is always checked: the result gets a new checksum, which would hide damage.
    """
    batch = window.checked(position, header)
    segment = window.segment
    shown = masked.stripped.get(segment.path, position, batch, masked.within(header))
    address = Address(segment.base_offset, position)
    return FilteredSlice(shown, header.next_offset, address, header.size)


def _distance(
    window: _Window, position: int, header: BatchHeader, offset: int, size_max: int
) -> int:
    """Return the distance in bytes from `position` to the batch that contains a later `offset`.

    If that is more than `size_max`, the result may be any number that is not less.
    """
    entry = window.segment.index().for_offset(offset)
    if entry.position - position >= size_max:
        return size_max
    try:
        if entry.position <= position:
            return window.find(position, header.base_offset, offset)[0] - position
        return window.find(entry.position, entry.offset, offset)[0] - position
    except DamagedRecords:
        return header.size  # What is behind the damage cannot be in this slice anyway.


def _headers(
    segment: Segment, *, start: int, limit: int
) -> Iterator[tuple[_Window, int, BatchHeader]]:
    """Iterate over the batches from the one that contains `start`; checksums are not verified."""
    entry = segment.index().for_offset(start)
    window = _Window(segment, limit, entry.position, _WALK_BYTES)
    anchor = position, offset = entry.position, entry.offset
    while position < limit:
        try:
            header = window.header(position, offset)
        except CorruptBatch:
            anchor = position, offset = window.pass_damage(*anchor, start)
            continue
        if header.last_offset >= start:
            yield window, position, header
        position += header.size
        offset = header.next_offset


def _timestamp_max(segment: Segment, limit: int) -> int:
    """Return the greatest timestamp in the headers before `limit`."""
    entry = segment.index().for_position(limit - 1)
    behind = _headers(segment, start=entry.offset, limit=limit)
    return max(entry.timestamp_before, *(header.max_timestamp for _, _, header in behind))


def _first_at(batch: memoryview, timestamp_ms: int, start: int) -> TimestampedOffset | None:
    """Return the first record of a batch, from `start` on, of `timestamp_ms` or later.

    Its checksum was verified, so a batch whose records cannot be decoded came that way from its
    producer. That must not make the search fail: the batch as a whole counts as being as late as
    its header says.
    """
    header = decode_header(batch)
    try:
        if header.base_offset >= start:
            first = first_offset_at(batch, timestamp_ms)
            return TimestampedOffset(*first) if first else None
        for record in read_records(batch):
            if record.offset >= start and record.timestamp_ms >= timestamp_ms:
                return TimestampedOffset(record.offset, record.timestamp_ms)
    except CorruptBatch:
        return TimestampedOffset(max(start, header.base_offset), header.max_timestamp)
    return None


class _Window:
    """The part of a segment that is loaded. It moves when something beyond it is read.

    In a sealed segment it is a view of the memory map and costs nothing; in a growing one it is the
    result of one positional read.
    """

    __slots__ = ("_limit", "_size", "_start", "_view", "segment")

    def __init__(self, segment: Segment, limit: int, start: int, size: int) -> None:
        self.segment = segment
        self._limit = limit
        self._size = size
        self._start = start
        self._view = segment.view(start, min(limit, start + size))

    def bytes(self, start: int, end: int) -> memoryview:
        """Return the bytes between two positions; fewer if the file or the limit ends before."""
        is_in_sight = self._start <= start and end <= self._start + len(self._view)
        if not is_in_sight:
            self._start = start
            window_end = max(end, start + self._size)
            self._view = self.segment.view(start, min(self._limit, window_end))
        return self._view[start - self._start : end - self._start]

    def kept_bytes(self, start: int, end: int) -> memoryview:
        """Return bytes that the caller keeps: a copy, if they would keep a much larger read."""
        view = self.bytes(start, end)
        is_read = type(self._view.obj) is bytes  # Not mapped.
        if is_read and _KEPT_SHARE * len(view) < len(self._view):
            return memoryview(bytes(view))
        return view

    def header(self, position: int, offset: int) -> BatchHeader:
        """Return the header at `position`, whose batch must start with `offset`."""
        header = decode_header(self.bytes(position, position + HEADER_SIZE))
        check_stamped_fields(header, offset, self.segment.leader_epoch)
        if (end := position + header.size) > self._limit:
            raise CorruptBatch(f"batch ends at byte {end}, only {self._limit} are committed")
        return header

    def check(self, position: int, header: BatchHeader) -> None:
        """Raise `CorruptBatch` unless the batch at `position` is valid."""
        check_batch(header, self.bytes(position, position + header.size))

    def checked(self, position: int, header: BatchHeader) -> memoryview:
        """Return the batch at `position`; raise `DamagedRecords` unless it is valid."""
        batch = self.bytes(position, position + header.size)
        try:
            check_batch(header, batch)
        except CorruptBatch as error:
            raise self.damage(position, header.base_offset, error) from error
        return batch

    def run(self, position: int, offset: int, *, end: int, is_checked: bool) -> tuple[int, int]:
        """Skip over valid batches in the window that end by `end`; return where it stopped.

        `header` and `check` then tell why it stopped. Nearly every batch that is read passes
        through here, so it does in one loop what these do in several calls.
        """
        view, leader_epoch = self._view, self.segment.leader_epoch
        at, in_sight = position - self._start, min(len(self._view), end - self._start)
        while at + HEADER_SIZE <= in_sight:
            base_offset, length, epoch, magic, crc, _, delta, *_, count = unpack_header(view, at)
            after = at + length + LENGTH_END
            is_placed = base_offset == offset and epoch == leader_epoch and magic == MAGIC
            if not is_placed or not at + HEADER_SIZE <= after <= in_sight:
                break
            if not 0 <= count <= delta + 1 or length > BATCH_SIZE_MAX:
                break
            if is_checked and crc32c(view[at + CRC_END : after]) != crc:
                break
            at = after
            offset += delta + 1
        return at + self._start, offset

    def skip(self, position: int, offset: int) -> tuple[int, int]:
        """Skip over non-transactional batches in the window; return where it stopped.

        `header` then tells why it stopped. Checksums are not verified.
        """
        view, leader_epoch = self._view, self.segment.leader_epoch
        at, in_sight, end = position - self._start, len(self._view), self._limit - self._start
        while at + HEADER_SIZE <= in_sight:
            base_offset, length, epoch, magic, _, attributes, delta, *_ = unpack_header(view, at)
            if base_offset != offset or epoch != leader_epoch or magic != MAGIC or delta < 0:
                break
            after = at + length + LENGTH_END
            if attributes & _TRANSACTION_BITS or not at + HEADER_SIZE <= after <= end:
                break
            at = after
            offset += delta + 1
        return at + self._start, offset

    def find(
        self, position: int, base_offset: int, offset: int, *, is_checked: bool = False
    ) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that contains `offset`, checked if required.

        `position` is that of a batch that starts with `base_offset`, by the index.
        """
        at = position
        try:
            header = self.header(at, base_offset)
            while header.last_offset < offset:
                at += header.size
                header = self.header(at, header.next_offset)
            if is_checked:
                self.check(at, header)
        except CorruptBatch:
            return self._find_past_damage(position, base_offset, offset)
        return at, header

    def _find_past_damage(
        self, position: int, base_offset: int, offset: int
    ) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that contains `offset`, which is behind damage.

        Every batch on the way is checked: a damaged header may have led the walk astray. Raises
        `DamagedRecords` if the offset itself is lost.
        """
        while True:
            try:
                header = self.header(position, base_offset)
                self.check(position, header)
            except CorruptBatch as error:
                position, base_offset = self._pass(position, base_offset, error, offset)
                continue
            if header.last_offset >= offset:
                return position, header
            position, base_offset = position + header.size, header.next_offset

    def pass_damage(self, position: int, base_offset: int, start: int) -> tuple[int, int]:
        """Return position and offset behind the first damage, for a walk that it has stopped.

        Raises `DamagedRecords` if offsets from `start` on are lost.
        """
        while True:
            try:
                header = self.header(position, base_offset)
                self.check(position, header)
            except CorruptBatch as error:
                return self._pass(position, base_offset, error, start)
            position, base_offset = position + header.size, header.next_offset

    def _pass(
        self, position: int, base_offset: int, reason: CorruptBatch, start: int
    ) -> tuple[int, int]:
        """Return position and offset behind a damaged batch, if the damage is before `start`."""
        damage = self.damage(position, base_offset, reason)
        if start <= damage.to_offset or position >= self._limit:
            raise damage from reason
        return self._behind(position, base_offset)

    def damage(self, position: int, base_offset: int, reason: CorruptBatch) -> DamagedRecords:
        """Return the error for the damaged batch at `position`, which starts with `base_offset`."""
        _, next_offset = self._behind(position, base_offset)
        return DamagedRecords(
            f"{self.segment.path}: byte {position}",
            str(reason),
            from_offset=base_offset,
            to_offset=max(base_offset, next_offset - 1),
        )

    def _behind(self, position: int, base_offset: int) -> tuple[int, int]:
        """Return position and offset of the first valid batch behind the damaged one, or the end.

        The index knows a position every few kilobytes, so that is not far away.
        """
        segment, limit = self.segment, self._limit
        end = BatchPosition(limit, segment.next_offset if limit == segment.size else None)
        entry = segment.index().after_position(position)
        if entry is not None and entry.position < limit:
            end = BatchPosition(entry.position, entry.offset)
        if position < limit:
            end = find_next_batch(
                segment.view,
                BatchPosition(position, base_offset),
                end=end,
                leader_epoch=segment.leader_epoch,
            )
        return end.position, segment.next_offset if end.offset is None else end.offset
