"""Output of a rewrite: its `.log` file, and the content of its index and its seal."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.errors import CorruptBatch
from millstream.records.batch import HEADER_SIZE, BatchHeader, Bytes, check_batch, split
from millstream.records.filter.batch_filter import filler_batches
from millstream.storage.disk.filesystem import join, write_all
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.names import TEMPORARY_SUFFIX, segment_file
from millstream.storage.files.seal import Seal, SegmentStats
from millstream.storage.segment.segment import LogDirectory, SealedSegment

logger = logging.getLogger(__name__)

OUTPUT_SIZE_MAX = 2**31 - 1
"""Positions in a segment fit into 31 bits, as Kafka's tools expect of a `.log` file."""


SYNC_BYTES = 2 * 1024 * 1024
"""Bytes between syncs: one large sync at the end would delay the commits of others."""


class RewriteTooLarge(Exception):
    """The output would be larger than a segment can be."""


@dataclass(frozen=True, slots=True)
class RewriteOutput:
    """A segment that was written and has no seal yet."""

    segment: SealedSegment
    index: SegmentIndex


class RewriteFile:
    """The `.log` file being written, and the content of its seal and its index."""

    def __init__(self, log_directory: LogDirectory, inputs: Sequence[SealedSegment]) -> None:
        first = inputs[0].seal
        self._log_directory = log_directory
        self._inputs = inputs
        self._generation = 1 + max(segment.generation for segment in inputs)
        self._name = segment_file(first.base_offset, "log", self._generation)
        self._temporary = join(log_directory.directory, self._name + TEMPORARY_SUFFIX)
        self._index = SegmentIndex()
        self._indexed = -log_directory.index_interval_bytes
        self._stats = SegmentStats(
            first.base_offset,
            leader_epoch=first.leader_epoch,
            created_ms=min(segment.seal.created_ms for segment in inputs),
        )
        self._synced = 0
        self.headers: list[BatchHeader] = []
        """Headers of the batches that the last write added."""
        with contextlib.suppress(FileNotFoundError):
            log_directory.filesystem.remove(self._temporary)
        self._file = log_directory.filesystem.create(self._temporary)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._stats.size

    def write(self, pieces: Sequence[Bytes]) -> int:
        """Append batches, each after a filler for missing offsets; return the bytes written."""
        position = self._stats.size
        self.headers = []
        written: list[Bytes] = []
        for piece in pieces:
            is_view = isinstance(piece, memoryview)  # Unchanged: the filter verified it already.
            for header, batch in split(piece):
                self._fill_gap(header.base_offset, written)
                if not is_view:
                    check_batch(header, batch)
                self._add(header, batch)
                written.append(batch)
        write_all(self._file, position, written)
        if self._stats.size - self._synced >= SYNC_BYTES:
            self._file.sync()
            self._synced = self._stats.size
        return self._stats.size - position

    def finish(self) -> RewriteOutput:
        """Fill the remaining offsets and sync the file; the seal will make its name durable."""
        position = self._stats.size
        written: list[Bytes] = []
        self._fill_gap(self._inputs[-1].next_offset, written)
        write_all(self._file, position, written)
        self._file.sync()
        self._file.close()
        self._log_directory.filesystem.rename(
            self._temporary, join(self._log_directory.directory, self._name)
        )
        segment = SealedSegment(self._log_directory, self._seal(), self._generation)
        return RewriteOutput(segment, self._index)

    def abandon(self) -> None:
        """Remove what was written so far, as far as the disk allows."""
        with contextlib.suppress(OSError):
            self._file.close()
        try:
            self._log_directory.filesystem.remove(self._temporary)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning(
                "%s could not be removed; it is removed when the log is opened next: %s",
                *(self._temporary, error),
            )

    def _seal(self) -> Seal:
        """Return the seal. Its dates are those of the inputs: records do not get younger."""
        return self._stats.seal(max(segment.seal.sealed_ms for segment in self._inputs))

    def _fill_gap(self, offset: int, written: list[Bytes]) -> None:
        """Add a filler up to `offset`, if offsets are missing."""
        stats = self._stats
        if offset < stats.next_offset:
            raise CorruptBatch(f"base offset must be at least {stats.next_offset}, got {offset}")
        if offset > stats.next_offset:
            missing = filler_batches(stats.next_offset, offset, leader_epoch=stats.leader_epoch)
            for header, batch in split(missing):
                self._add(header, batch)
                written.append(batch)

    def _add(self, header: BatchHeader, batch: Bytes) -> None:
        stats = self._stats
        if stats.size + len(batch) > OUTPUT_SIZE_MAX:
            raise RewriteTooLarge(f"a segment must have at most {OUTPUT_SIZE_MAX} bytes")
        if stats.size - self._indexed >= self._log_directory.index_interval_bytes:
            self._index.add(stats.next_offset, stats.size, stats.timestamp_max)
            self._indexed = stats.size
        stats.add(header, len(batch), batch[:HEADER_SIZE])
        self.headers.append(header)
