"""Read-only file system."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NoReturn

from millstream.storage.disk.filesystem import File, Filesystem, Lock


class ReadOnlyFilesystem:
    """The names and files of another `Filesystem`, for reading.

    Every call that would change or lock something raises `OSError` with `EROFS`, like a disk that
    is mounted read-only. Derived data that would be stored, such as a missing index, is then
    derived for this reader alone.
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def open_readonly(self, path: str) -> File:
        return self._filesystem.open_readonly(path)

    def list(self, path: str) -> Sequence[str]:
        return self._filesystem.list(path)

    def size(self, path: str) -> int:
        return self._filesystem.size(path)

    def open(self, path: str) -> File:
        _refuse(path)

    def create(self, path: str) -> File:
        _refuse(path)

    def make_directory(self, path: str) -> None:
        _refuse(path)

    def rename(self, source: str, target: str) -> None:
        _refuse(source, target)

    def remove(self, path: str) -> None:
        _refuse(path)

    def remove_directory(self, path: str) -> None:
        _refuse(path)

    def remove_tree(self, path: str) -> None:
        _refuse(path)

    def sync_directory(self, path: str) -> None:
        _refuse(path)

    def lock(self, path: str) -> Lock:
        _refuse(path)


def _refuse(path: str, target: str | None = None) -> NoReturn:
    raise OSError(errno.EROFS, "read-only file system", path, None, target)
