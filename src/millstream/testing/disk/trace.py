"""What happened to a disk, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.testing.disk.changes import Change, Inode
from millstream.testing.disk.image import Image


@dataclass(frozen=True, slots=True)
class SyncEvent:
    """A file or a directory was synced, and the sync succeeded."""

    inode: Inode

    def __str__(self) -> str:
        return f"sync of {self.inode}"


@dataclass(frozen=True, slots=True)
class SyncFailedEvent:
    """A file or a directory was synced, and the sync failed.

    As Linux has it, what was to be synced now counts as clean: the next sync will succeed and
    will have done nothing for it.
    """

    inode: Inode

    def __str__(self) -> str:
        return f"failed sync of {self.inode}"


@dataclass(frozen=True, slots=True)
class MediumDamage:
    """The medium changed by itself: a file now holds these bytes, for certain."""

    inode: Inode
    content: bytes

    def __str__(self) -> str:
        return f"damage to {self.inode}"


@dataclass(frozen=True, slots=True)
class Note:
    """Something happened beside the disk that a test wants to see in its place."""

    event: object

    def __str__(self) -> str:
        return f"note of {self.event!r}"


Event: TypeAlias = Change | SyncEvent | SyncFailedEvent | MediumDamage | Note


@dataclass(frozen=True, slots=True)
class Trace:
    """What a disk held when it was switched on, and what has happened to it since."""

    start: Image
    events: list[Event] = field(default_factory=list)

    @property
    def notes(self) -> Sequence[object]:
        """What the test noted, in order."""
        return [event.event for event in self.events if isinstance(event, Note)]
