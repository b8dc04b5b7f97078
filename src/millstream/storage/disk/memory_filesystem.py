"""File system in memory, for ephemeral logs.

Paths are resolved as by a process whose working directory is `/`, which always exists. Names and
space are protected by locks, so threads may share everything. A file may have many readers and one
writer, and they never wait for each other.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
from collections.abc import Sequence
from typing import TypeAlias

from millstream.errors import StoreLocked
from millstream.records.batch import Bytes
from millstream.storage.disk.filesystem import PIECES_MAX, File, Lock


def path_parts(path: str) -> Sequence[str]:
    """Return the components of `path`, from `/`."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return path_parts(posixpath.normpath(f"/{path}")) if ".." in parts else parts


def os_error(code: int, path: str | None = None) -> OSError:
    """Return the error that the kernel would raise, of the right subclass."""
    return OSError(code, os.strerror(code), path)


class MemoryFilesystem:
    """A file system that exists as long as its object.

    All files together may use `bytes_max`, including reserved space; a call that would exceed it
    raises `ENOSPC` and changes nothing. A removed file counts until it is closed everywhere. The
    syncs do nothing.
    """

    def __init__(self, bytes_max: int) -> None:
        self._space = _Space(bytes_max)
        self._root = _Directory()
        self._names = threading.Lock()

    @property
    def bytes_max(self) -> int:
        """Size limit of all files together. May be set at any time."""
        return self._space.bytes_max

    @bytes_max.setter
    def bytes_max(self, value: int) -> None:
        self._space.bytes_max = value

    @property
    def bytes_used(self) -> int:
        """Bytes that the files use or have reserved."""
        return self._space.used

    def open(self, path: str) -> File:
        with self._names:
            return MemoryFile(self._file(path))

    def open_readonly(self, path: str) -> File:
        with self._names:
            return MemoryFile(self._file(path), is_writable=False)

    def create(self, path: str) -> File:
        with self._names:
            directory, name = self._resolve(path)
            if name in directory:
                raise os_error(errno.EEXIST, path)
            content = directory[name] = _Content(self._space)
            return MemoryFile(content)

    def put(self, path: str, content: bytes) -> None:
        """Create a file with `content`. The bytes are shared until they are written to."""
        with self._names:
            directory, name = self._resolve(path)
            if name in directory:
                raise os_error(errno.EEXIST, path)
            directory[name] = _Content(self._space, content)

    def list(self, path: str) -> Sequence[str]:
        with self._names:
            try:
                return sorted(self._directory(path))
            except FileNotFoundError:
                return []

    def size(self, path: str) -> int:
        with self._names:
            return self._file(path).size

    def make_directory(self, path: str) -> None:
        with self._names:
            if not path_parts(path):
                return
            parent, name = self._resolve(path)
            if not isinstance(parent.setdefault(name, _Directory()), _Directory):
                raise os_error(errno.EEXIST, path)

    def rename(self, source: str, target: str) -> None:
        with self._names:
            directory, old = self._resolve(source)
            other, new = self._resolve(target)
            node = _entry(directory, old, source)
            if other is directory and old == new:
                return
            if node is other or (isinstance(node, _Directory) and _holds(node, other)):
                raise os_error(errno.EINVAL, target)
            if (replaced := other.get(new)) is not None:
                _check_replaceable(replaced, node, target)
                _unlink(replaced)
            other[new] = node
            del directory[old]

    def remove(self, path: str) -> None:
        with self._names:
            directory, name = self._resolve(path)
            if isinstance(node := _entry(directory, name, path), _Directory):
                raise os_error(errno.EISDIR, path)
            _unlink(node)
            del directory[name]

    def remove_directory(self, path: str) -> None:
        with self._names:
            parent, name = self._resolve(path)
            if not isinstance(node := _entry(parent, name, path), _Directory):
                raise os_error(errno.ENOTDIR, path)
            if node:
                raise os_error(errno.ENOTEMPTY, path)
            del parent[name]

    def remove_tree(self, path: str) -> None:
        with self._names:
            try:
                directory, name = self._resolve(path)
                node = _entry(directory, name, path)
            except FileNotFoundError:
                return
            _unlink_all(node)
            del directory[name]

    def sync_directory(self, path: str) -> None:
        """Do nothing, except raise if the directory does not exist."""
        with self._names:
            self._directory(path)

    def lock(self, path: str) -> Lock:
        with self._names:
            directory, name = self._resolve(path)
            node = directory.setdefault(name, _Content(self._space))
            if isinstance(node, _Directory):
                raise os_error(errno.EISDIR, path)
            if node.is_locked:
                raise StoreLocked(f"{path} is locked")
            node.is_locked = True
            return MemoryLock(node)

    def _file(self, path: str) -> _Content:
        if isinstance(node := self._node(path_parts(path), path), _Directory):
            raise os_error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> _Directory:
        if not isinstance(node := self._node(path_parts(path), path), _Directory):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _resolve(self, path: str) -> tuple[_Directory, str]:
        """Return the directory of the last component of `path`, and the component."""
        parts = path_parts(path)
        if not parts:
            raise os_error(errno.EBUSY, path)
        if not isinstance(parent := self._node(parts[:-1], path), _Directory):
            raise os_error(errno.ENOTDIR, path)
        return parent, parts[-1]

    def _node(self, parts: Sequence[str], path: str) -> _Node:
        node: _Node = self._root
        for part in parts:
            if not isinstance(node, _Directory):
                raise os_error(errno.ENOTDIR, path)
            node = _entry(node, part, path)
        return node


class MemoryFile:
    """An open file of a `MemoryFilesystem`, closed at the latest with its last reference."""

    def __init__(self, content: _Content, *, is_writable: bool = True) -> None:
        content.hold()
        self._content: _Content | None = content
        self._is_writable = is_writable

    def __del__(self) -> None:
        self.close()

    def size(self) -> int:
        return self._open_content().size

    def read_at(self, position: int, size: int) -> bytes:
        if position < 0 or size < 0:
            raise os_error(errno.EINVAL)
        content = self._open_content()
        end = min(position + size, content.size)  # The size first: see `_Content`.
        return content.view[position:end].tobytes()

    def map(self, size: int) -> memoryview:
        content = self._open_content()
        if size > content.size:
            raise ValueError(f"cannot map {size} bytes of a file that has {content.size}")
        return content.view[:size].toreadonly()

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        """Write all of `pieces`, one after the other, and return their size."""
        if position < 0 or len(pieces) > PIECES_MAX:
            raise os_error(errno.EINVAL)
        content = self._writable_content()
        size = sum(map(len, pieces))
        if size > 0:
            content.write(position, size, pieces)
        return size

    def reserve(self, size: int) -> None:
        self._writable_content().make_room(size)

    def truncate(self, size: int) -> None:
        if size < 0:
            raise os_error(errno.EINVAL)
        self._writable_content().truncate(size)

    def sync(self) -> None:
        """Do nothing, except raise if the file is closed."""
        self._open_content()

    def close(self) -> None:
        if self._content is not None:
            content, self._content = self._content, None
            content.drop()

    def _open_content(self) -> _Content:
        if (content := self._content) is None:
            raise os_error(errno.EBADF)
        return content

    def _writable_content(self) -> _Content:
        if not self._is_writable:
            raise os_error(errno.EBADF)
        return self._open_content()


class MemoryLock:
    """A lock within one `MemoryFilesystem`."""

    def __init__(self, content: _Content) -> None:
        self._content: _Content | None = content

    def release(self) -> None:
        if self._content is not None:
            content, self._content = self._content, None
            content.is_locked = False


class _Space:
    """The space that all files share."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.lock = threading.Lock()

    def charge(self, size: int) -> None:
        """Take `size` bytes, or release them if it is negative."""
        with self.lock:
            if size > max(0, self.bytes_max - self.used):
                raise os_error(errno.ENOSPC)
            self.used += size


class _Content:
    """The bytes of one file, shared by its name and all its open files.

    They are at the start of a buffer that is larger, with zeros behind them. A buffer is never
    resized: a file that outgrows it moves to one of twice the size. That keeps appends cheap and
    does not disturb readers that have mapped the old one. The larger buffer is published before the
    larger size, so a reader that takes the size first finds that many bytes. The first buffer
    belongs to the caller and is read-only; the first write moves away from it.
    """

    def __init__(self, space: _Space, content: bytes = b"") -> None:
        self.view = memoryview(content)
        self.size = len(content)
        self.is_locked = False
        self._space = space
        self._charged = 0
        self._holders = 1  # Its name.
        self._charge(self.size)

    def hold(self) -> None:
        with self._space.lock:
            self._holders += 1

    def drop(self) -> None:
        """Drop one reference; the last one releases the space."""
        with self._space.lock:
            self._holders -= 1
            is_last = self._holders == 0
        if is_last:
            self._charge(0)

    def write(self, position: int, size: int, pieces: Sequence[Bytes]) -> None:
        self.make_room(position + size)
        if self.view.readonly:
            self._move(self.size)
        end = position
        for piece in pieces:
            start, end = end, end + len(piece)
            self.view[start:end] = piece
        self.size = max(self.size, end)

    def make_room(self, size: int) -> None:
        if size > self._charged:
            self._charge(size)
        if size > len(self.view):
            self._move(max(size, 2 * len(self.view)))

    def truncate(self, size: int) -> None:
        self._charge(size)
        self.size = min(self.size, size)
        self._move(size)
        self.size = size

    def _charge(self, size: int) -> None:
        self._space.charge(size - self._charged)
        self._charged = size

    def _move(self, capacity: int) -> None:
        view = memoryview(bytearray(capacity))
        view[: self.size] = self.view[: self.size]
        self.view = view


class _Directory(dict[str, "_Directory | _Content"]):
    """The names in one directory."""


_Node: TypeAlias = _Directory | _Content


def _entry(directory: _Directory, name: str, path: str) -> _Node:
    try:
        return directory[name]
    except KeyError:
        raise os_error(errno.ENOENT, path) from None


def _check_replaceable(replaced: _Node, node: _Node, path: str) -> None:
    if isinstance(replaced, _Directory):
        if not isinstance(node, _Directory):
            raise os_error(errno.EISDIR, path)
        if replaced:
            raise os_error(errno.ENOTEMPTY, path)
    elif isinstance(node, _Directory):
        raise os_error(errno.ENOTDIR, path)


def _holds(directory: _Directory, wanted: _Directory) -> bool:
    """Return whether `wanted` is in `directory`, at any depth."""
    below = [node for node in directory.values() if isinstance(node, _Directory)]
    return any(node is wanted or _holds(node, wanted) for node in below)


def _unlink(node: _Node) -> None:
    if isinstance(node, _Content):
        node.drop()


def _unlink_all(node: _Node) -> None:
    if isinstance(node, _Directory):
        for child in node.values():
            _unlink_all(child)
    _unlink(node)
