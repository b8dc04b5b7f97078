"""Segments: consecutive batches in one `.log`, sealed or still growing.

Both kinds have the same interface, so a reader need not know which one it has. A sealed segment is
read through a memory map, a growing one by positional reads, because a file that is being written
must not be mapped.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from millstream.errors import CorruptFile, UnknownFormat
from millstream.records.batch import BatchHeader, Bytes
from millstream.storage.disk.file_cache import FileCache, map_file
from millstream.storage.disk.filesystem import File, Filesystem, join
from millstream.storage.files.ballast import BallastFile
from millstream.storage.files.document import replace_file
from millstream.storage.files.index import SegmentIndex, decode_index, encode_index
from millstream.storage.files.names import SEGMENT_SUFFIXES, segment_file
from millstream.storage.files.seal import SEAL_SIZE, Seal, SegmentStats, decode_seal, encode_seal
from millstream.storage.segment.damage import BatchPosition, scan_past_damage
from millstream.storage.segment.scan import scan

if TYPE_CHECKING:
    from millstream.storage.segment.cold_segment import ColdBytes

logger = logging.getLogger(__name__)

RESERVE_MIN = 64 * 1024
RESERVE_STEP_MAX = 16 * 1024 * 1024
"""Disk space is reserved in steps as large as the file so far, between these two limits: a
thousand small logs do not reserve a thousand times what a large one needs.
"""


class Segment(Protocol):
    """A segment as a reader sees it."""

    @property
    def base_offset(self) -> int:
        """Offset of its first record; part of its file names."""
        ...

    @property
    def next_offset(self) -> int:
        """Base offset of the segment that follows it."""
        ...

    @property
    def size(self) -> int:
        """Bytes of complete batches."""
        ...

    @property
    def timestamp_max(self) -> int:
        """Greatest timestamp of its records."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The epoch of all its batches."""
        ...

    @property
    def path(self) -> str:
        """Path of its `.log`."""
        ...

    def index(self) -> SegmentIndex:
        """Return its index. Valid until the segment is replaced."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Return bytes of the `.log`; fewer if the file is shorter than it should be."""
        ...


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """The directory of one log, and the caches through which its files are read."""

    filesystem: Filesystem
    directory: str
    map_cache: FileCache[memoryview]
    index_cache: FileCache[SegmentIndex]
    index_interval_bytes: int
    ballast: BallastFile | None = None
    """Disk space for deleting on a full disk; ephemeral logs have none."""
    cold: ColdBytes | None = None
    """The cold store of the node, if it has one."""

    def path(self, base_offset: int, suffix: str, generation: int = 0) -> str:
        """Return the path of one file of a segment."""
        return join(self.directory, segment_file(base_offset, suffix, generation))


class SealedSegment:
    """A segment that is not written any more.

    A segment of generation 1 or more was rewritten and never grows again: to change it, a segment
    of the next generation is written.
    """

    def __init__(self, log_directory: LogDirectory, seal: Seal, generation: int = 0) -> None:
        self.log_directory = log_directory
        self.seal = seal
        self.generation = generation
        self.base_offset = seal.base_offset
        self.next_offset = seal.next_offset
        self.size = seal.size
        self.timestamp_max = seal.timestamp_max
        self.leader_epoch = seal.leader_epoch
        self.path = log_directory.path(seal.base_offset, "log", generation)
        self.index_path = log_directory.path(seal.base_offset, "index", generation)

    @property
    def keys_path(self) -> str:
        """Path of its key index, which may not exist: it is built when it is needed."""
        return self.log_directory.path(self.base_offset, "keys", self.generation)

    def view(self, start: int, end: int) -> memoryview:
        """Return bytes of the `.log`, from its memory map."""
        return self._map()[start:end]

    def index(self) -> SegmentIndex:
        """Return its index, from its file, or derived from the log if the file is damaged."""
        return self.log_directory.index_cache.get(self.index_path, self._load_index)

    def cached_index(self) -> SegmentIndex | None:
        """Return its index if it is in memory."""
        return self.log_directory.index_cache.peek(self.index_path)

    def forget(self) -> None:
        """Drop its files from the caches, because they are about to change or are gone."""
        self.log_directory.map_cache.forget(self.path)
        self.log_directory.map_cache.forget(self.keys_path)
        self.log_directory.index_cache.forget(self.index_path)

    def discard(self) -> None:
        """Delete what it has outside of its directory. Its files there are gone."""

    def _map(self) -> memoryview:
        return self.log_directory.map_cache.get(self.path, self._load_map)

    def _load_map(self) -> memoryview:
        return map_file(self.log_directory.filesystem, self.path)

    def _load_index(self) -> SegmentIndex:
        path = self.index_path
        try:
            data = map_file(self.log_directory.filesystem, path)
            return decode_index(data, base_offset=self.base_offset, log_size=self.size)
        except (CorruptFile, FileNotFoundError) as error:
            logger.warning("rebuilding %s: %s", path, error)
            return self._derive_index()
        except UnknownFormat as error:
            raise UnknownFormat(f"{path}: {error}") from error

    def _derive_index(self) -> SegmentIndex:
        result = scan(
            self._map()[: self.size],
            base_offset=self.base_offset,
            created_ms=self.seal.created_ms,
            index_interval_bytes=self.log_directory.index_interval_bytes,
            leader_epoch=self.leader_epoch,
        )
        if result.stats.size == self.size:
            self._keep_index(result.index)
        else:
            # What is behind the damage must be found without reading all of it each time.
            scan_past_damage(
                self._map()[: self.size],
                result,
                end=BatchPosition(self.size, self.next_offset),
                index_interval_bytes=self.log_directory.index_interval_bytes,
            )
        return result.index

    def _keep_index(self, index: SegmentIndex) -> None:
        """Write a derived index to its file. It only saves work, so a failure is no error."""
        try:
            write_index(
                self.log_directory,
                index,
                base_offset=self.base_offset,
                log_size=self.size,
                generation=self.generation,
            )
        except OSError as error:
            logger.warning("index of %s cannot be written: %s", self.path, error)


class GrowingSegment:
    """The segment that is being written.

    Only the writer of the log changes it. Readers stop at the committed position, so they never
    read bytes that are still being written. The descriptor is closed with its last reference, so a
    reader in another thread never finds it reused.
    """

    def __init__(
        self,
        log_directory: LogDirectory,
        stats: SegmentStats,
        index: SegmentIndex,
        file: File | None,
    ) -> None:
        self.log_directory = log_directory
        self.stats = stats
        self.base_offset = stats.base_offset
        self.file = file
        self.sealed_ms: int | None = None
        """When it was finished, so that it takes no more batches; `None` while it may grow."""
        self.origin: tuple[int, int] | None = None
        """In a replica: the rewritten segment of the leader that it is copied from, if any."""
        self._index = index
        # Position of the last entry; before the first batch, low enough for that to get an entry.
        self._indexed = index[len(index) - 1].position if len(index) else -(2**62)
        self._reserved = 0
        self.last_batch: tuple[int, int] | None = None
        """Offset and position of the batch that was added last, if any was since it was opened.

        Readers at the end of a log ask for it, and need not walk there from an entry of the index.
        """

    @property
    def next_offset(self) -> int:
        return self.stats.next_offset

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.stats.size

    @property
    def timestamp_max(self) -> int:
        return self.stats.timestamp_max

    @property
    def leader_epoch(self) -> int:
        return self.stats.leader_epoch

    @property
    def path(self) -> str:
        return self.log_directory.path(self.base_offset, "log")

    def index(self) -> SegmentIndex:
        """Return its index, which grows with it."""
        return self._index

    def view(self, start: int, end: int) -> memoryview:
        """Return bytes of the `.log`, by a positional read."""
        file = self.file
        if file is None:
            file = self.log_directory.filesystem.open_readonly(self.path)
        return memoryview(file.read_at(start, end - start))

    def open(self) -> File:
        """Return the file for writing; open it if it was closed while idle."""
        if self.file is None:
            self.file = self.log_directory.filesystem.open(self.path)
        return self.file

    def reserve(self, size: int) -> None:
        """Reserve disk space for growing to `size`, and some more."""
        if size <= self._reserved:
            return
        reserved = size + min(max(size, RESERVE_MIN), RESERVE_STEP_MAX)
        try:
            self.open().reserve(reserved)
        except OSError:
            reserved = size  # There may be space for this batch, if not for more.
            self.open().reserve(reserved)
        self._reserved = reserved

    def forget_reserve(self) -> None:
        """Reserve space again with the next write, because the file was truncated."""
        self._reserved = 0

    def add(self, header: BatchHeader, size: int, header_bytes: Bytes) -> None:
        """Record a batch that was written after the last one."""
        stats = self.stats
        if stats.size - self._indexed >= self.log_directory.index_interval_bytes:
            self._index.add(stats.next_offset, stats.size, stats.timestamp_max)
            self._indexed = stats.size
        self.last_batch = (stats.next_offset, stats.size)
        stats.add(header, size, header_bytes)


def write_index(
    log_directory: LogDirectory,
    index: SegmentIndex,
    *,
    base_offset: int,
    log_size: int,
    generation: int = 0,
) -> None:
    """Write the index file of a segment. Its name is durable once the directory is synced."""
    data = encode_index(index, base_offset=base_offset, log_size=log_size)
    name = segment_file(base_offset, "index", generation)
    replace_file(log_directory.filesystem, log_directory.directory, name, [data])


def write_seal(
    log_directory: LogDirectory, seal: Seal, index: SegmentIndex, generation: int = 0
) -> None:
    """Seal a segment whose `.log` was synced. Durable when this returns.

    The names of log and index are durable before the seal appears, so a seal never refers to files
    that a crash could take away. With its seal, a rewritten segment replaces those that it was made
    from: if this raises, the seal may exist or not, and neither set of files may be touched before
    recovery has decided.
    """
    write_index(
        log_directory,
        index,
        base_offset=seal.base_offset,
        log_size=seal.size,
        generation=generation,
    )
    log_directory.filesystem.sync_directory(log_directory.directory)
    name = segment_file(seal.base_offset, "seal", generation)
    replace_file(log_directory.filesystem, log_directory.directory, name, [encode_seal(seal)])
    log_directory.filesystem.sync_directory(log_directory.directory)


def remove_seal(log_directory: LogDirectory, base_offset: int) -> None:
    """Remove the seal of a segment, durably, so that it can be written again.

    Only for segments of generation 0.
    """
    with contextlib.suppress(FileNotFoundError):
        log_directory.filesystem.remove(log_directory.path(base_offset, "seal"))
    log_directory.filesystem.sync_directory(log_directory.directory)


def remove_segment(log_directory: LogDirectory, segment: SealedSegment) -> None:
    """Remove the files of a segment that is not needed, and only those of its generation.

    The segment is below the start of its log, or is replaced by a rewritten segment that has its
    seal. After a crash any of the files may still exist: opening the log recognizes them by the
    start offset, or by the seal, and removes them. A reader that has the log mapped keeps its
    bytes.
    """
    for suffix in SEGMENT_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            log_directory.filesystem.remove(
                log_directory.path(segment.base_offset, suffix, segment.generation)
            )
    segment.forget()
    segment.discard()


def read_seal(log_directory: LogDirectory, base_offset: int, generation: int = 0) -> Seal:
    """Read the seal of a segment; raise `CorruptFile` or `FileNotFoundError`."""
    path = log_directory.path(base_offset, "seal", generation)
    file = log_directory.filesystem.open_readonly(path)
    try:
        seal = decode_seal(file.read_at(0, SEAL_SIZE + 1))
    except (CorruptFile, UnknownFormat) as error:
        raise type(error)(f"{path}: {error}") from error
    finally:
        file.close()
    if seal.base_offset != base_offset:
        raise CorruptFile(
            f"{path}: seal has base offset {seal.base_offset}, expected {base_offset}"
        )
    return seal
