"""A file system in memory that records every change, sync and note."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.records.batch import Bytes
from millstream.storage.disk.filesystem import File, Lock
from millstream.storage.disk.memory_filesystem import MemoryFilesystem
from millstream.testing.disk.changes import FileWrite, Inode, Truncate
from millstream.testing.disk.names import Names
from millstream.testing.disk.recorder import Recorder
from millstream.testing.disk.trace import SyncEvent, SyncFailedEvent


class RecordingFilesystem:
    """Passes calls to a `MemoryFilesystem`, and records successful changes and syncs."""

    def __init__(self, memory: MemoryFilesystem, names: Names, recorder: Recorder) -> None:
        self._memory = memory
        self._names = names
        self._recorder = recorder

    def open(self, path: str) -> RecordingFile:
        """Open an existing file for reading and writing."""
        with self._recorder:
            return self._file(path, self._memory.open(path))

    def open_readonly(self, path: str) -> RecordingFile:
        """Open an existing file for reading."""
        with self._recorder:
            return self._file(path, self._memory.open_readonly(path))

    def create(self, path: str) -> RecordingFile:
        """Create a file that must not exist yet."""
        with self._recorder:
            file = self._memory.create(path)
            self._recorder.record(self._names.add(path, is_directory=False))
            return self._file(path, file)

    def list(self, path: str) -> Sequence[str]:
        """Return the names in a directory, sorted; nothing if it does not exist."""
        with self._recorder:
            return self._memory.list(path)

    def size(self, path: str) -> int:
        """Return the size of a file."""
        with self._recorder:
            return self._memory.size(path)

    def make_directory(self, path: str) -> None:
        """Create a directory in an existing one, unless it exists."""
        with self._recorder:
            self._memory.make_directory(path)
            if self._names.find(path) is None:
                self._recorder.record(self._names.add(path, is_directory=True))

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory, atomically; an existing file at the target is replaced."""
        with self._recorder:
            self._memory.rename(source, target)
            self._recorder.record(self._names.rename(source, target))

    def remove(self, path: str) -> None:
        """Remove a file."""
        with self._recorder:
            self._memory.remove(path)
            self._recorder.record(self._names.remove(path))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        with self._recorder:
            self._memory.remove_directory(path)
            self._recorder.record(self._names.remove(path))

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""
        with self._recorder:
            self._memory.remove_tree(path)
            if self._names.find(path) is not None:
                for change in self._names.remove_tree(path):
                    self._recorder.record(change)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        with self._recorder:
            self._memory.sync_directory(path)
            self._recorder.record(SyncEvent(self._names.inode(path)))

    def fail_sync_directory(self, path: str) -> None:
        """Record a failed sync: no later sync makes the same changes durable."""
        with self._recorder:
            self._memory.sync_directory(path)
            self._recorder.record(SyncFailedEvent(self._names.inode(path)))

    def lock(self, path: str) -> Lock:
        """Acquire the lock file at `path`, creating it; raise `StoreLocked` if another has it."""
        with self._recorder:
            lock = self._memory.lock(path)
            if self._names.find(path) is None:
                self._recorder.record(self._names.add(path, is_directory=False))
            return lock

    def _file(self, path: str, file: File) -> RecordingFile:
        return RecordingFile(file, self._names.inode(path), self._recorder)


class RecordingFile:
    """An open file that records every change and sync."""

    def __init__(self, file: File, inode: Inode, recorder: Recorder) -> None:
        self._file = file
        self._inode = inode
        self._recorder = recorder

    def size(self) -> int:
        """Return the visible size in bytes."""
        with self._recorder:
            return self._file.size()

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        with self._recorder:
            return self._file.read_at(position, size)

    def map(self, size: int) -> memoryview:
        """Return the first `size` bytes as a read-only view."""
        with self._recorder:
            return self._file.map(size)

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        """Write `pieces` back to back, and return the number of bytes written."""
        with self._recorder:
            size = self._file.write_at(position, pieces)
            if size > 0:
                data = b"".join(pieces)[:size]
                self._recorder.record(FileWrite(self._inode, position, data))
            return size

    def reserve(self, size: int) -> None:
        """Reserve space. A power cut may release it, so there is nothing to record."""
        with self._recorder:
            self._file.reserve(size)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        with self._recorder:
            self._file.truncate(size)
            self._recorder.record(Truncate(self._inode, size))

    def sync(self) -> None:
        """Make the file's bytes and its size durable."""
        with self._recorder:
            self._file.sync()
            self._recorder.record(SyncEvent(self._inode))

    def fail_sync(self) -> None:
        """Record a failed sync: no later sync makes the same changes durable."""
        with self._recorder:
            self._file.sync()
            self._recorder.record(SyncFailedEvent(self._inode))

    def close(self) -> None:
        """Close the file. Further calls have no effect, nor does one after a power cut."""
        self._file.close()
