"""A file system whose N-th call fails, or those that somebody else decides on."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from millstream.records.batch import Bytes
from millstream.storage.disk.filesystem import File, Filesystem, Lock
from millstream.testing.disk.fault import Call, Fault, FaultKind
from millstream.testing.disk.recording_filesystem import RecordingFile

T = TypeVar("T")


class CallFaults(ABC):
    """Decides which calls of a file system and its files fail. Called from several threads."""

    kind: FaultKind = "error"
    made: Sequence[Call] = ()
    """Every call so far, if they are recorded."""

    @abstractmethod
    def strike(self, name: str, path: str) -> OSError | None:
        """Take note of a call, and return its error if it has to fail."""

    def run(self, name: str, path: str, call: Callable[[], T]) -> T:
        """Make a call, unless it has to fail."""
        if (error := self.strike(name, path)) is not None:
            raise error
        return call()


class FaultyFilesystem:
    """Passes every call to another file system, except those that the fault strikes.

    A call that fails does nothing, with three exceptions, as on Linux: a failed write may have
    written its first half; a failed close has closed the file; and after a failed sync, on a
    `SimulatedFilesystem`, no later sync makes the same changes durable.
    """

    def __init__(self, inner: Filesystem, fault: Fault | CallFaults) -> None:
        self._inner = inner
        self._calls = _CountedCalls(fault) if isinstance(fault, Fault) else fault

    @property
    def calls(self) -> Sequence[Call]:
        """Every call so far, in order."""
        return self._calls.made

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        return self._file(path, self._run("open", path, lambda: self._inner.open(path)))

    def open_readonly(self, path: str) -> File:
        """Open an existing file for reading."""
        file = self._run("open_readonly", path, lambda: self._inner.open_readonly(path))
        return self._file(path, file)

    def create(self, path: str) -> File:
        """Create a file that must not exist yet."""
        return self._file(path, self._run("create", path, lambda: self._inner.create(path)))

    def list(self, path: str) -> Sequence[str]:
        """Return the names in a directory, sorted; nothing if it does not exist."""
        return self._run("list", path, lambda: self._inner.list(path))

    def size(self, path: str) -> int:
        """Return the size of a file."""
        return self._run("size", path, lambda: self._inner.size(path))

    def make_directory(self, path: str) -> None:
        """Create a directory in an existing one, unless it exists."""
        self._run("make_directory", path, lambda: self._inner.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory, atomically; an existing file at the target is replaced."""
        self._run("rename", source, lambda: self._inner.rename(source, target))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._run("remove", path, lambda: self._inner.remove(path))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._run("remove_directory", path, lambda: self._inner.remove_directory(path))

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory with its content, if it exists."""
        self._run("remove_tree", path, lambda: self._inner.remove_tree(path))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable.

        Unlike a file's pages, names go through the journal of the file system: after a failed write
        it accepts no more commits, so a later sync that succeeds has made them durable.
        """
        self._run("sync_directory", path, lambda: self._inner.sync_directory(path))

    def lock(self, path: str) -> Lock:
        """Acquire the lock file at `path`, creating it; raise `StoreLocked` if another has it."""
        return self._run("lock", path, lambda: self._inner.lock(path))

    def _run(self, name: str, path: str, call: Callable[[], T]) -> T:
        return self._calls.run(name, path, call)

    def _file(self, path: str, file: File) -> File:
        return FaultyFile(file, path, self._calls)


class FaultyFile:
    """An open file of a `FaultyFilesystem`."""

    def __init__(self, inner: File, path: str, calls: CallFaults) -> None:
        self._inner = inner
        self._path = path
        self._calls = calls
        self._is_closed = False

    def size(self) -> int:
        """Return the visible size in bytes."""
        return self._run("size", self._inner.size)

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        return self._run("read_at", lambda: self._inner.read_at(position, size))

    def map(self, size: int) -> memoryview:
        """Return the first `size` bytes as a read-only view."""
        return self._run("map", lambda: self._inner.map(size))

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        """Write `pieces` back to back, and return the number of bytes written."""
        error = self._calls.strike("write_at", self._path)
        if error is None:
            return self._inner.write_at(position, pieces)
        data = b"".join(pieces)
        written = self._inner.write_at(position, [data[: (len(data) + 1) // 2]])
        if self._calls.kind == "error":
            raise error
        return written

    def reserve(self, size: int) -> None:
        """Reserve space so that the file can grow to `size`; its visible size does not change."""
        self._run("reserve", lambda: self._inner.reserve(size))

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes and release reserved space beyond."""
        self._run("truncate", lambda: self._inner.truncate(size))

    def sync(self) -> None:
        """Make the file's bytes and its size durable."""
        if (error := self._calls.strike("sync", self._path)) is None:
            self._inner.sync()
        else:
            if isinstance(self._inner, RecordingFile):
                self._inner.fail_sync()
            raise error

    def close(self) -> None:
        """Close the file. Further calls have no effect, and do not count."""
        if self._is_closed:
            return
        self._is_closed = True
        error = self._calls.strike("close", self._path)
        self._inner.close()
        if error is not None:
            raise error

    def _run(self, name: str, call: Callable[[], T]) -> T:
        return self._calls.run(name, self._path, call)


class _CountedCalls(CallFaults):
    """Counts the calls of one file system and its files, for a `Fault`."""

    def __init__(self, fault: Fault) -> None:
        self.kind = fault.kind
        self.fault = fault
        self._made: list[Call] = []
        self.made = self._made
        self._lock = threading.Lock()

    def strike(self, name: str, path: str) -> OSError | None:
        """Count a call, and return its error if it has to fail."""
        call = Call(name, path)
        with self._lock:
            self._made.append(call)
            if not self.fault.strikes(call):
                return None
        code = self.fault.error
        return OSError(code, os.strerror(code), path)
