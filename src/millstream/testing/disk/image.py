"""Content of a disk at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.testing.disk.changes import (
    ROOT,
    Change,
    FileWrite,
    Grow,
    Inode,
    Link,
    Move,
    Rename,
    Truncate,
    Unlink,
)

Contents: TypeAlias = Mapping[str, bytes | None]
"""Every path with the bytes of its file, or `None` for a directory; parents before children."""


@dataclass(frozen=True, slots=True)
class Image:
    """Content of a disk. Immutable, so images share what they have in common.

    A file or directory without an entry here is empty: its name may have reached the disk before
    anything else of it. One without a name is gone.
    """

    files: Mapping[Inode, bytes] = field(default_factory=dict)
    directories: Mapping[Inode, Mapping[str, Inode]] = field(default_factory=dict)

    def after(self, changes: Iterable[Change]) -> Image:
        """Return the image after these changes."""
        draft = _Draft(self)
        for change in changes:
            draft.apply(change)
        return draft.image()

    def contents(self) -> Contents:
        """Return everything that has a path."""
        return dict(self._walk(ROOT, ""))

    def _walk(self, directory: Inode, path: str) -> Iterator[tuple[str, bytes | None]]:
        for name, inode in self.directories.get(directory, {}).items():
            child = f"{path}/{name}"
            if inode.is_directory:
                yield child, None
                yield from self._walk(inode, child)
            else:
                yield child, self.files.get(inode, b"")


class _Draft:
    """A mutable image. Copies a file or directory at its first change."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._files: dict[Inode, bytearray] = {}
        self._directories: dict[Inode, dict[str, Inode]] = {}

    def image(self) -> Image:
        files = {inode: bytes(data) for inode, data in self._files.items()}
        return Image(
            {**self._image.files, **files}, {**self._image.directories, **self._directories}
        )

    def apply(self, change: Change) -> None:
        match change:
            case FileWrite():  # By far the most frequent, so not taken apart.
                content = self._file(change.inode)
                if change.position > len(content):
                    _grow(content, change.position)
                content[change.position : change.end] = change.data
            case Grow(inode, size):
                _grow(self._file(inode), size)
            case Truncate(inode, size):
                content = self._file(inode)
                del content[size:]
                _grow(content, size)
            case Link(inode, name, target):
                self._directory(inode)[name] = target
            case Unlink(inode, name):
                self._directory(inode).pop(name, None)
            case Rename(inode, old, new, target):
                names = self._directory(inode)
                names.pop(old, None)
                names[new] = target
            case Move():
                names = self._directory(change.source)
                if names.get(change.old) == change.target:  # Another may have the name by now.
                    del names[change.old]
                self._directory(change.into)[change.new] = change.target

    def _file(self, inode: Inode) -> bytearray:
        if (content := self._files.get(inode)) is None:
            content = self._files[inode] = bytearray(self._image.files.get(inode, b""))
        return content

    def _directory(self, inode: Inode) -> dict[str, Inode]:
        if (names := self._directories.get(inode)) is None:
            names = self._directories[inode] = dict(self._image.directories.get(inode, {}))
        return names


def _grow(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))
