"""File system interface, passed in. Only this module opens, syncs, renames and removes files.

A fake that can lose power, tear writes and fail any call is part of `millstream.testing`; it and
`OsFilesystem` pass the same test suite.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Sequence
from typing import Protocol

from millstream.errors import StoreLocked
from millstream.records.batch import Bytes

# The kernel takes at most this many pieces in one vectored write (IOV_MAX on Linux).
PIECES_MAX = 1024

_FALLOCATE_KEEP_SIZE = 1


class File(Protocol):
    """An open file. It has no position, so threads may share it for reading.

    Every method raises `OSError` as the kernel reports it. After an error from `write_at` the bytes
    from `position` on are undefined. After an error from `sync` nothing that was written since the
    last successful sync may ever be considered durable, whatever a later sync returns.
    """

    def size(self) -> int:
        """Return the visible size in bytes."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; returns fewer only at the end of the file."""
        ...

    def map(self, size: int) -> memoryview:
        """Return the first `size` bytes as a read-only view, without a copy.

        Only for files that are not written any more. The view stays valid after `close`; its memory
        is released with the last reference to it.
        """
        ...

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        """Write `pieces` one after the other, and return the number of bytes written.

        Like the kernel, it may write fewer than given: use `write_all`. At most `PIECES_MAX`
        pieces.
        """
        ...

    def reserve(self, size: int) -> None:
        """Reserve disk space for growing to `size`; the visible size does not change.

        Does nothing if the file system does not support it.
        """
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes, and release what was reserved beyond."""
        ...

    def sync(self) -> None:
        """Return once the bytes and the size of the file are durable; its name may not be."""
        ...

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        ...


class Lock(Protocol):
    """A lock on a directory, held by one process until it is released or the process ends."""

    def release(self) -> None: ...


class Filesystem(Protocol):
    """Names and directories.

    A name that was created, renamed or removed is durable once `sync_directory` of its directory
    has returned; a crash before that may keep or lose the change.
    """

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        ...

    def open_readonly(self, path: str) -> File:
        """Open an existing file for reading."""
        ...

    def create(self, path: str) -> File:
        """Create a file that must not exist, readable only by its owner."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Return the names in a directory, sorted; empty if it does not exist."""
        ...

    def size(self, path: str) -> int:
        """Return the size of a file; raise `FileNotFoundError` if it does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory in an existing one; do nothing if it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory atomically; an existing file of the new name is replaced.

        The new name may be in another directory. It is durable once both directories were synced,
        and a crash before that leaves the old name or the new one.
        """
        ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory with its content; do nothing if it does not exist.

        An error or a crash may leave part of it. Links are removed and not followed.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory are durable."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock the file at `path`, creating it; raise `StoreLocked` if another has it."""
        ...


def write_all(file: File, position: int, pieces: Sequence[Bytes]) -> int:
    """Write all of `pieces` at `position`, in as many calls as the kernel needs.

    Returns the position after the last byte.
    """
    for first in range(0, len(pieces), PIECES_MAX):
        chunk = pieces[first : first + PIECES_MAX]
        size = sum(map(len, chunk))
        written = file.write_at(position, chunk)
        position += written
        while written < size:
            remaining = memoryview(b"".join(chunk))[written:]
            step = file.write_at(position, [remaining])
            if step == 0:
                raise OSError(errno.EIO, "the kernel wrote no bytes and reported no error")
            written += step
            position += step
    return position


def join(*parts: str) -> str:
    return "/".join(parts)


def parent(path: str) -> str:
    """Return the directory of `path`."""
    above, slash, _ = path.rstrip("/").rpartition("/")
    return above or slash or "."


class OsFile:
    """A file of the operating system, closed at the latest with its last reference."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    @property
    def descriptor(self) -> int:
        """The file descriptor; -1 after `close`."""
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        while size > (read_size := sum(map(len, parts))):
            more = os.pread(self._descriptor, size - read_size, position + read_size)
            if not more:
                break
            parts.append(more)
        return b"".join(parts)

    def map(self, size: int) -> memoryview:
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ))

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        assert position >= 0, "-1 would mean the current position of the descriptor"
        return os.pwritev(self._descriptor, pieces, position)

    def reserve(self, size: int) -> None:
        if _fallocate(self._descriptor, _FALLOCATE_KEEP_SIZE, 0, size) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code))

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsLock:
    """A lock that the kernel releases when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsFilesystem:
    """The file system of the operating system."""

    def open(self, path: str) -> File:
        return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def open_readonly(self, path: str) -> File:
        return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def create(self, path: str) -> File:
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def list(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StoreLocked(f"{path} is locked by another process") from None
        except OSError:
            os.close(descriptor)
            raise
        return OsLock(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
