"""A disk that is looked at and never changed, whoever asks."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NoReturn

from millstream.storage.disk.filesystem import File, Filesystem, Lock


class ReadOnlyFilesystem:
    """The names and files of another `Filesystem`, for reading.

    All that would change something, or lock it, raises `OSError` with `EROFS`, as a disk does that
    is mounted so. What is derived on the way and would be kept, as an index that is missing, is
    then derived for this reader alone.
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def open_readonly(self, path: str) -> File:
        """Open an existing file for reading."""
        return self._filesystem.open_readonly(path)

    def list(self, path: str) -> Sequence[str]:
        """Return the names in a directory, sorted; nothing where there is no such directory."""
        return self._filesystem.list(path)

    def size(self, path: str) -> int:
        """Return the size of a file; raises `FileNotFoundError` where there is none."""
        return self._filesystem.size(path)

    def open(self, path: str) -> File:
        """Refuse to open a file for writing."""
        _refuse(path)

    def create(self, path: str) -> File:
        """Refuse to create a file."""
        _refuse(path)

    def make_directory(self, path: str) -> None:
        """Refuse to make a directory."""
        _refuse(path)

    def rename(self, source: str, target: str) -> None:
        """Refuse to give a file another name."""
        _refuse(source, target)

    def remove(self, path: str) -> None:
        """Refuse to remove a file."""
        _refuse(path)

    def remove_directory(self, path: str) -> None:
        """Refuse to remove a directory."""
        _refuse(path)

    def remove_tree(self, path: str) -> None:
        """Refuse to remove anything."""
        _refuse(path)

    def sync_directory(self, path: str) -> None:
        """Refuse to make names durable: whoever writes them does."""
        _refuse(path)

    def lock(self, path: str) -> Lock:
        """Refuse to take a lock, which would keep others out."""
        _refuse(path)


def _refuse(path: str, target: str | None = None) -> NoReturn:
    raise OSError(errno.EROFS, "is only looked at", path, None, target)
