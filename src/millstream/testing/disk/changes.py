"""Changes of a simulated disk.

Each change has an `inode`, which it changes: a file, for its bytes and its size; a directory, for
the names in it. Until that inode is synced, a power cut may lose the change or keep it. A move
between two directories needs a sync of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Inode(NamedTuple):
    """A file or a directory, independent of its name."""

    number: int
    is_directory: bool

    def __str__(self) -> str:
        return f"{'directory' if self.is_directory else 'file'} {self.number}"


ROOT = Inode(0, is_directory=True)


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes were written to a file, which grew if they extend past its end."""

    inode: Inode
    position: int
    data: bytes

    @property
    def end(self) -> int:
        """Position after the bytes."""
        return self.position + len(self.data)

    def __str__(self) -> str:
        return f"write of {len(self.data)} bytes at {self.position} of {self.inode}"


@dataclass(frozen=True, slots=True)
class Grow:
    """A file grew to at least this size, with zeros.

    No call does this: it is the remainder of a write whose size was kept and whose data was lost.
    """

    inode: Inode
    size: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file was truncated or extended to this size."""

    inode: Inode
    size: int

    def __str__(self) -> str:
        return f"truncation of {self.inode} to {self.size} bytes"


@dataclass(frozen=True, slots=True)
class Link:
    """A name was added to a directory: `target` was created."""

    inode: Inode
    name: str
    target: Inode

    def __str__(self) -> str:
        return f"creation of {self.name!r}, {self.target}"


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name was removed from a directory."""

    inode: Inode
    name: str

    def __str__(self) -> str:
        return f"removal of {self.name!r} from {self.inode}"


@dataclass(frozen=True, slots=True)
class Rename:
    """`old` was renamed to `new` in one directory; a power cut keeps both halves or none.

    `target` is what has the name. It is part of the change because a disk that lost the creation of
    `old` may have kept its renaming.
    """

    inode: Inode
    old: str
    new: str
    target: Inode

    def __str__(self) -> str:
        return f"rename of {self.old!r} to {self.new!r}, {self.target}"


@dataclass(frozen=True, slots=True)
class Move:
    """`old` in `source` was renamed to `new` in `into`, another directory.

    A power cut keeps both halves or none, and only a sync of both directories makes it durable:
    `inode` is the one to be synced, `other` the second, as long as neither was synced.
    """

    inode: Inode
    other: Inode | None
    source: Inode
    old: str
    into: Inode
    new: str
    target: Inode

    def __str__(self) -> str:
        return f"move of {self.old!r} to {self.new!r} in {self.into}, {self.target}"


Change: TypeAlias = FileWrite | Grow | Truncate | Link | Unlink | Rename | Move
