"""Damage in a segment: how far it reaches, and where the next valid batch starts.

A damaged batch must cost no other: readers before and after it go on. Behind a batch whose checksum
is wrong, its own length nearly always leads to the next one. If the length is damaged too, the next
batch is searched by what every batch of the segment has in common, its epoch and its magic byte.

A value may contain the bytes of a batch, so a match proves nothing by itself: a batch found this
way must be valid, and the batches behind it must lead to the next known position, which is an entry
of the index or the end of the segment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import CorruptBatch
from millstream.records.batch import (
    CRC_END,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    decode_header,
)
from millstream.storage.files.index import NO_TIME
from millstream.storage.segment.scan import SegmentScan, check_batch_at, check_stamped_fields

_EPOCH_AND_MAGIC = struct.Struct(">ib")
_SEARCH_BYTES = 64 * 1024
_CHAIN_MAX = 64
"""Batches that must follow one that was found, if the next known position is further away."""

_FILE_ENDS = "the file ends there"

ANY_TIME = 2**63 - 1
"""Later than every record: the greatest timestamp where records are lost."""


class BatchPosition(NamedTuple):
    """A position at which a batch starts, or the batches end."""

    position: int
    offset: int | None
    """`None` if it is not known."""


class DamagedRange(NamedTuple):
    """Consecutive bytes in which no batch is valid, and the offsets that they held."""

    start: BatchPosition
    end: BatchPosition
    reason: str


View = Callable[[int, int], memoryview]
"""Returns the bytes between two positions; fewer if the file is shorter."""


def find_next_batch(
    view: View, damaged: BatchPosition, *, end: BatchPosition, leader_epoch: int
) -> BatchPosition:
    """Return the first valid batch behind the damaged one, or else `end`.

    `end` is the next position behind the damage that is known to be right.
    """
    search = _Search(view, damaged, end, leader_epoch)
    return next((found for p in search.candidates() if (found := search.check(p))), end)


class _Search:
    def __init__(
        self, view: View, damaged: BatchPosition, end: BatchPosition, leader_epoch: int
    ) -> None:
        self._view = view
        self._damaged = damaged
        self._end = end
        self._leader_epoch = leader_epoch

    def candidates(self) -> Iterator[int]:
        """Yield positions at which the next batch may start; the likeliest first."""
        start, end = self._damaged.position, self._end.position
        header = self._view(start, start + LENGTH_END)
        if len(header) == LENGTH_END:
            following = start + LENGTH_END + int.from_bytes(header[-4:], signed=True)
            if start < following <= end:
                yield following
        yield from self._matches(start + 1)
        yield end

    def _matches(self, start: int) -> Iterator[int]:
        """Yield the positions from `start` on that have the epoch and magic byte of a batch."""
        pattern = _EPOCH_AND_MAGIC.pack(self._leader_epoch, MAGIC)
        while start < self._end.position:
            # Batches may start in this part; the pattern of the last one is behind it.
            part = min(start + _SEARCH_BYTES, self._end.position)
            data = bytes(self._view(start + LENGTH_END, part + LENGTH_END + len(pattern) - 1))
            at = data.find(pattern)
            while at >= 0:
                yield start + at
                at = data.find(pattern, at + 1)
            start = part

    def check(self, position: int) -> BatchPosition | None:
        """Return the batch at `position` if it is the next one, for all that can be known."""
        end = self._end
        if position == end.position and end.offset is not None:
            return end
        header = self._header(position, None)
        if header is None:
            return None
        assert self._damaged.offset is not None, "a reader knows the offset that it is at"
        is_behind = header.base_offset > self._damaged.offset
        if not is_behind or (end.offset is not None and header.next_offset > end.offset):
            return None
        batch = self._view(position, position + header.size)
        if len(batch) != header.size or crc32c(batch[CRC_END:]) != header.crc:
            return None
        is_right = position >= end.position or self._leads_on(position, header)
        return BatchPosition(position, header.base_offset) if is_right else None

    def _leads_on(self, position: int, header: BatchHeader) -> bool:
        """Return whether a batch and those behind it follow each other up to the end."""
        end = self._end
        for _ in range(_CHAIN_MAX):
            position += header.size
            if position >= end.position:
                return position == end.position and end.offset in (None, header.next_offset)
            following = self._header(position, header.next_offset)
            if following is None:
                return False
            header = following
        return True

    def _header(self, position: int, offset: int | None) -> BatchHeader | None:
        """Return the header at `position`, if one with this base offset is there."""
        try:
            header = decode_header(self._view(position, position + HEADER_SIZE))
            expected = header.base_offset if offset is None else offset
            check_stamped_fields(header, expected, self._leader_epoch)
        except CorruptBatch:
            return None
        return header


class ScannedDamage(NamedTuple):
    """The damage of a segment, and where its batches end."""

    ranges: list[DamagedRange]
    end: BatchPosition
    """The end of the last valid batch, or of the bytes that must be there if that is later."""


def scan_past_damage(
    view: memoryview, scanned: SegmentScan, *, end: BatchPosition, index_interval_bytes: int
) -> ScannedDamage:
    """Continue a scan that has stopped before `end`; add what is found to its index.

    The bytes before `end` must be there; behind it, the scan stops at the first invalid batch.
    """
    leader_epoch = scanned.stats.leader_epoch
    if not len(scanned.index):
        scanned.index.add(scanned.stats.base_offset, 0, NO_TIME)
    ranges: list[DamagedRange] = []
    reason = scanned.damage.reason if scanned.damage else _FILE_ENDS
    at = BatchPosition(scanned.stats.size, scanned.stats.next_offset)
    while at.position < end.position:
        following = find_next_batch(
            lambda first, last: view[first:last], at, end=end, leader_epoch=leader_epoch
        )
        ranges.append(DamagedRange(at, following, reason))
        at, indexed = following, following.position - index_interval_bytes
        while at.position < len(view) and at.offset is not None:
            try:
                header = check_batch_at(view, at.position, at.offset, leader_epoch)
            except CorruptBatch as error:
                reason = str(error)
                break
            if at.position - indexed >= index_interval_bytes:
                # Nothing is known about the timestamps of what is lost.
                scanned.index.add(at.offset, at.position, ANY_TIME)
                indexed = at.position
            at = BatchPosition(at.position + header.size, header.next_offset)
        else:
            reason = _FILE_ENDS
        if at.offset is None:
            break
    return ScannedDamage(ranges, at)
