"""What can change on a disk.

Each change names, as `inode`, what it changes: a file, for its bytes and its size; a directory,
for the names in it. Until a sync of that very inode, a power cut may lose the change or keep it.
A move between two directories needs both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Inode(NamedTuple):
    """A file or a directory, whatever its name."""

    number: int
    is_directory: bool

    def __str__(self) -> str:
        return f"{'directory' if self.is_directory else 'file'} {self.number}"


ROOT = Inode(0, is_directory=True)


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes were put into a file, which grew where they reach past its end."""

    inode: Inode
    position: int
    data: bytes

    @property
    def end(self) -> int:
        """Where in the file the bytes end."""
        return self.position + len(self.data)

    def __str__(self) -> str:
        return f"write of {len(self.data)} bytes at {self.position} of {self.inode}"


@dataclass(frozen=True, slots=True)
class Grow:
    """A file reached at least this size, and its new bytes are zero.

    No one asks for it: it is what is left of a write whose size was kept and whose data was lost.
    """

    inode: Inode
    size: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file was given this size."""

    inode: Inode
    size: int

    def __str__(self) -> str:
        return f"truncation of {self.inode} to {self.size} bytes"


@dataclass(frozen=True, slots=True)
class Link:
    """A name came to be in a directory: `target` was created."""

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
    """What is called `old` in a directory was called `new`; a power cut keeps both halves or none.

    `target` is what bears the name. It is part of the change because a disk that lost the
    creation of `old` may have kept its renaming.
    """

    inode: Inode
    old: str
    new: str
    target: Inode

    def __str__(self) -> str:
        return f"rename of {self.old!r} to {self.new!r}, {self.target}"


@dataclass(frozen=True, slots=True)
class Move:
    """What is called `old` in `source` was called `new` in `into`, another directory.

    A power cut keeps both halves or none, and it takes a sync of both directories to settle it:
    `inode` is the one that is waited for, `other` the second, as long as neither was synced.
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
