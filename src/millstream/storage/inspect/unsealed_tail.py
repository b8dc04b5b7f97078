"""Tail of a log that another process writes: the batches of a segment without a seal.

It is read as far as it counts, each batch checked, and reading continues from there when there is
more. It uses positional reads: a file that is being written must not be mapped.
"""

from __future__ import annotations

from millstream.errors import CorruptBatch
from millstream.records.batch import HEADER_SIZE, BatchHeader, check_batch, decode_header
from millstream.storage.disk.filesystem import File
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.seal import SegmentStats
from millstream.storage.segment.scan import ScanDamage, check_stamped_fields
from millstream.storage.segment.segment import GrowingSegment, LogDirectory

_CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes per read; more if a batch is larger."""


class UnsealedTail:
    """A segment without a seal, read up to some position."""

    def __init__(self, log_directory: LogDirectory, *, base_offset: int, leader_epoch: int) -> None:
        self._log_directory = log_directory
        self._stats = SegmentStats(base_offset, leader_epoch=leader_epoch, created_ms=0)
        self._index = SegmentIndex()
        self._indexed = -log_directory.index_interval_bytes
        self._last_position = 0
        self._last_header = b""
        self.segment = GrowingSegment(log_directory, self._stats, self._index, None)
        """What was read, as a segment, which grows when this reads on."""

    @property
    def size(self) -> int:
        """Size of the batches that were read."""
        return self._stats.size

    def continues_in(self, file: File) -> bool:
        """Whether the last batch that was read is still at its position.

        It is not if the log lost its end in a crash and grew again, or if another log replaced it.
        """
        return file.read_at(self._last_position, len(self._last_header)) == self._last_header

    def read_on(self, file: File, *, limit: int) -> ScanDamage | None:
        """Read on up to `limit`; return the damage if a batch before it is not intact."""
        chunk = _Chunk(file, limit)
        while self.size < limit:
            try:
                header = decode_header(chunk.bytes(self.size, HEADER_SIZE))
                batch = chunk.bytes(self.size, header.size)
                check_stamped_fields(header, self._stats.next_offset, self._stats.leader_epoch)
                check_batch(header, batch)
            except CorruptBatch as error:
                return ScanDamage(self.size, str(error))
            self._add(header, bytes(batch[:HEADER_SIZE]))
        return None

    def _add(self, header: BatchHeader, header_bytes: bytes) -> None:
        stats = self._stats
        if stats.size - self._indexed >= self._log_directory.index_interval_bytes:
            self._index.add(header.base_offset, stats.size, stats.timestamp_max)
            self._indexed = stats.size
        self._last_position, self._last_header = stats.size, header_bytes
        stats.add(header, header.size, header_bytes)


class _Chunk:
    """The part of a file that was read last."""

    def __init__(self, file: File, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._start = 0
        self._data = memoryview(b"")

    def bytes(self, start: int, size: int) -> memoryview:
        """Return `size` bytes from `start` on; fewer at the end of the file or the limit."""
        at, end = start - self._start, min(start + size, self._limit)
        if at < 0 or end > self._start + len(self._data):
            wanted = min(max(size, _CHUNK_BYTES), self._limit - start)
            self._start, at = start, 0
            self._data = memoryview(self._file.read_at(start, wanted))
        return self._data[at : at + size]
