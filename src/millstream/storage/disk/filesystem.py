"""The disk, passed in. This module is the only one that opens, syncs, renames or removes files.

A fake that can lose power, tear writes and fail any call ships in `millstream.testing`; it and
`OsFilesystem` pass the same suite.
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

    Every method raises `OSError` as the kernel gives it. After an error from `write_at` the bytes
    from `position` on are undefined; after an error from `sync` nothing that was written since
    the last successful sync may ever be taken for durable, whatever a later sync says.
    """

    def size(self) -> int:
        """Return the visible size in bytes."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer come back only at the end of the file."""
        ...

    def map(self, size: int) -> memoryview:
        """Return the first `size` bytes as a read-only view that costs no copy.

        Only for files that no one writes any more. The view stays valid after `close`; the
        memory behind it is released with the last reference to it.
        """
        ...

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        """Write `pieces` one after the other, and return how many bytes were taken.

        Like the kernel, it may take fewer than were given: use `write_all`. At most `PIECES_MAX`
        pieces.
        """
        ...

    def reserve(self, size: int) -> None:
        """Set space aside so that the file can grow to `size`; its visible size stays as it is.

        Where the file system cannot do that, nothing happens.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes and give back what was reserved beyond."""
        ...

    def sync(self) -> None:
        """Return once the file's bytes and its size are durable; its name may not be."""
        ...

    def close(self) -> None:
        """Give the descriptor back. Repeating it does nothing."""
        ...


class Lock(Protocol):
    """A lock that one process holds on a directory, until released or until the process ends."""

    def release(self) -> None:
        """Let others have it."""
        ...


class Filesystem(Protocol):
    """Names and directories.

    A name that was created, renamed or removed is durable once `sync_directory` of the directory
    that holds it returned, and may be lost or kept by a crash before that.
    """

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        ...

    def open_readonly(self, path: str) -> File:
        """Open an existing file for reading."""
        ...

    def create(self, path: str) -> File:
        """Create a file that must not exist yet, readable by its owner alone."""
        ...

    def list(self, path: str) -> Sequence[str]:
        """Return the names in a directory, sorted; nothing where there is no such directory."""
        ...

    def size(self, path: str) -> int:
        """Return the size of a file; raises `FileNotFoundError` where there is none."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory below an existing one; nothing happens where it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file or a directory another name, replacing a file that had it, atomically.

        The other name may lie in another directory; it is durable once both were synced, and a
        crash before that leaves the old name or the new one.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; nothing happens where it is gone.

        An error or a crash may leave part of it. Links are removed and not followed.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory are durable."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file at `path`, creating it; raises `StoreLocked` where another has it."""
        ...


def write_all(file: File, position: int, pieces: Sequence[Bytes]) -> int:
    """Write all of `pieces` at `position`, however often the kernel takes only a part.

    Returns the position after the last byte.
    """
    for first in range(0, len(pieces), PIECES_MAX):
        some = pieces[first : first + PIECES_MAX]
        size = sum(map(len, some))
        written = file.write_at(position, some)
        position += written
        while written < size:
            rest = memoryview(b"".join(some))[written:]
            step = file.write_at(position, [rest])
            if step == 0:
                raise OSError(errno.EIO, "the file takes no more bytes and gives no reason")
            written += step
            position += step
    return position


def join(*parts: str) -> str:
    """Put a path together."""
    return "/".join(parts)


def parent(path: str) -> str:
    """Return the directory that holds `path`."""
    above, slash, _ = path.rstrip("/").rpartition("/")
    return above or slash or "."


class OsFile:
    """A file of the operating system, closed with its last reference if not before."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    @property
    def descriptor(self) -> int:
        """What the kernel knows the file by; -1 after `close`."""
        return self._descriptor

    def size(self) -> int:
        """Return the visible size in bytes."""
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer come back only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        while size > (found := sum(map(len, parts))):
            more = os.pread(self._descriptor, size - found, position + found)
            if not more:
                break
            parts.append(more)
        return b"".join(parts)

    def map(self, size: int) -> memoryview:
        """Return the first `size` bytes as a read-only view that costs no copy."""
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ))

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        """Write `pieces` one after the other, and return how many bytes were taken."""
        assert position >= 0, "-1 would mean wherever the descriptor stands"
        return os.pwritev(self._descriptor, pieces, position)

    def reserve(self, size: int) -> None:
        """Set space aside so that the file can grow to `size`; its visible size stays."""
        if _fallocate(self._descriptor, _FALLOCATE_KEEP_SIZE, 0, size) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code))

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes and give back what was reserved beyond."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Return once the file's bytes and its size are durable."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsLock:
    """A lock that the kernel releases when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsFilesystem:
    """The file system of the operating system."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def open_readonly(self, path: str) -> File:
        """Open an existing file for reading."""
        return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def create(self, path: str) -> File:
        """Create a file that must not exist yet, readable by its owner alone."""
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def list(self, path: str) -> Sequence[str]:
        """Return the names in a directory, sorted; nothing where there is no such directory."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        """Return the size of a file."""
        return os.stat(path).st_size

    def make_directory(self, path: str) -> None:
        """Create a directory below an existing one; nothing happens where it exists."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, source: str, target: str) -> None:
        """Give a file or a directory another name, replacing a file that had it, atomically."""
        os.rename(source, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; nothing where it is gone."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Return once the names in a directory are durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> Lock:
        """Take the lock file at `path`, creating it; raises `StoreLocked` where another has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StoreLocked(f"another process holds {path}") from None
        except OSError:
            os.close(descriptor)
            raise
        return OsLock(descriptor)


_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
