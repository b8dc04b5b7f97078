"""Check of a segment by positional reads: its batches, and its seal if it has one.

A reader maps a sealed segment. If the disk cannot read a page of the map, the kernel kills the
process, so a check that looks for bad sectors must not touch one. It reads windows of the file
instead, and the caller is told about each of them, so that it can limit the rate.

What is found is what a reader of the same bytes would be told: each damaged range, and not more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from millstream.errors import CorruptBatch, DamagedRecords
from millstream.records.batch import HEADER_SIZE, BatchHeader, decode_header
from millstream.storage.disk.page_cache import drop_from_page_cache
from millstream.storage.files.seal import Seal, SegmentStats
from millstream.storage.segment.damage import BatchPosition, find_next_batch
from millstream.storage.segment.scan import check_batch_at
from millstream.storage.segment.segment import GrowingSegment, SealedSegment

WINDOW_BYTES = 64 * 1024
"""Bytes that are read at once; more if a batch is larger. Small, because the thread holds the
interpreter lock while it walks over batches: 2 ms for this many bytes in batches of 170, after
which a limited rate lets others run.
"""

RANGES_MAX = 100
"""Damaged ranges of one segment that are reported: as many as a log keeps."""

ANY_OFFSET = 2**63 - 1

OnRead = Callable[[int], None]
"""Called with a number of bytes after each read; may wait, or raise to end the check."""


class BatchBytes(Protocol):
    """The bytes of a segment, from a file or from elsewhere."""

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; returns fewer only at the end."""
        ...


class SegmentCheck(NamedTuple):
    """Result of the check of a segment, up to an offset."""

    damage: tuple[DamagedRecords, ...]
    next_offset: int
    """The end of the last batch that was read, as are the other fields."""
    size: int
    digest: bytes
    """Equal for two segments exactly if they have the same bytes up to there. Without a meaning if
    there is damage."""


def check_segment(
    segment: SealedSegment | GrowingSegment,
    *,
    end: int = ANY_OFFSET,
    on_read: OnRead,
    file: BatchBytes | None = None,
) -> SegmentCheck:
    """Read the batches of a segment before offset `end`, and return their digest and damage.

    A sealed segment that is read to its end must be what was sealed. The index and the key index
    are not read: both are derived from the log if they are damaged. A growing segment must not be
    read beyond what is committed. With a `file`, that is read instead of the `.log`, and its errors
    are raised.
    """
    if file is not None:
        return _Check(segment, file, end, on_read).run()
    try:
        file = segment.log_directory.filesystem.open_readonly(segment.path)
        try:
            return _Check(segment, file, end, on_read).run()
        finally:
            file.close()
    except OSError as error:
        # Which batches can be read does not matter: the disk fails under this file.
        damage = DamagedRecords(
            segment.path,
            f"cannot be read: {error.strerror or error}",
            from_offset=segment.base_offset,
            to_offset=segment.next_offset - 1,
        )
        return SegmentCheck((damage,), segment.base_offset, 0, b"")


class _Check:
    """Walks over the batches of a segment, one window of its file after the other."""

    def __init__(
        self, segment: SealedSegment | GrowingSegment, file: BatchBytes, end: int, on_read: OnRead
    ) -> None:
        self._segment = segment
        self._file = file
        # It may grow meanwhile.
        self._size, self._next_offset = segment.size, segment.next_offset
        self._end = end
        self._on_read = on_read
        self._stats = SegmentStats(
            segment.base_offset, leader_epoch=segment.leader_epoch, created_ms=0
        )
        self._window = memoryview(b"")
        self._window_start = 0

    def run(self) -> SegmentCheck:
        """Check the segment."""
        damage = tuple(self._damage())
        stats = self._stats
        return SegmentCheck(damage, stats.next_offset, stats.size, stats.digest)

    def _damage(self) -> Iterator[DamagedRecords]:
        """Yield the damage of the segment, in order."""
        segment, stats = self._segment, self._stats
        at = BatchPosition(0, segment.base_offset)
        found = 0
        while at.position < self._size and at.offset is not None and at.offset < self._end:
            try:
                header = self._batch(at)
            except CorruptBatch as error:
                found += 1
                following = self._next_valid(at)
                yield self._damaged(at, following, str(error))
                if found == RANGES_MAX:
                    return
                at = following
                continue
            start = at.position - self._window_start
            stats.add(header, header.size, self._window[start : start + HEADER_SIZE])
            at = BatchPosition(at.position + header.size, header.next_offset)
        is_whole = isinstance(segment, SealedSegment) and self._end >= self._next_offset
        if found or not is_whole:
            return
        assert isinstance(segment, SealedSegment)
        if difference := _difference(segment.seal, stats.seal(0)):
            end = BatchPosition(self._size, self._next_offset)
            yield self._damaged(BatchPosition(0, segment.base_offset), end, difference)

    def _batch(self, at: BatchPosition) -> BatchHeader:
        """Check the batch at a position, and return its header."""
        assert at.offset is not None
        self._load(at.position, HEADER_SIZE)
        start = at.position - self._window_start
        # A damaged length must not make the check read, or allocate, more than there is.
        size = min(decode_header(self._window, start).size, max(0, self._size - at.position))
        self._load(at.position, size)
        start = at.position - self._window_start
        return check_batch_at(self._window, start, at.offset, self._segment.leader_epoch)

    def _load(self, position: int, size: int) -> None:
        """Make the window contain these bytes, if the file has them."""
        if position + size <= self._window_start + len(self._window):
            return
        wanted = min(max(size, WINDOW_BYTES), self._size - position)
        data = self._file.read_at(position, wanted)
        drop_from_page_cache(self._file, position, len(data))
        self._window, self._window_start = memoryview(data), position
        self._on_read(len(data))

    def _next_valid(self, at: BatchPosition) -> BatchPosition:
        def view(first: int, last: int) -> memoryview:
            last = min(last, self._size)
            return memoryview(self._file.read_at(first, max(0, last - first)))

        end = BatchPosition(self._size, self._next_offset)
        return find_next_batch(view, at, end=end, leader_epoch=self._segment.leader_epoch)

    def _damaged(self, first: BatchPosition, end: BatchPosition, reason: str) -> DamagedRecords:
        assert first.offset is not None
        next_offset = self._next_offset if end.offset is None else end.offset
        return DamagedRecords(
            f"{self._segment.path}: byte {first.position}",
            reason,
            from_offset=first.offset,
            to_offset=next_offset - 1,
        )


def _difference(sealed: Seal, derived: Seal) -> str | None:
    """Return how valid batches differ from what was sealed, if they do."""
    for name in ("next_offset", "batch_count", "record_count", "digest"):
        expected, actual = getattr(sealed, name), getattr(derived, name)
        if expected != actual:
            return f"{name} is {_plain(actual)}, its seal says {_plain(expected)}"
    return None


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
