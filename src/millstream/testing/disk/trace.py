"""Trace of a disk: its events, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.testing.disk.changes import Change, Inode
from millstream.testing.disk.image import Image


@dataclass(frozen=True, slots=True)
class SyncEvent:
    """A file or a directory was synced successfully."""

    inode: Inode

    def __str__(self) -> str:
        return f"sync of {self.inode}"


@dataclass(frozen=True, slots=True)
class SyncFailedEvent:
    """The sync of a file or a directory failed.

    As on Linux, the data now counts as clean: the next sync succeeds and does nothing for it.
    """

    inode: Inode

    def __str__(self) -> str:
        return f"failed sync of {self.inode}"


@dataclass(frozen=True, slots=True)
class MediumDamage:
    """The medium was corrupted: a file now has this content, durably."""

    inode: Inode
    content: bytes

    def __str__(self) -> str:
        return f"damage to {self.inode}"


@dataclass(frozen=True, slots=True)
class Note:
    """An event beside the disk, recorded by a test at its place in the trace."""

    event: object

    def __str__(self) -> str:
        return f"note of {self.event!r}"


Event: TypeAlias = Change | SyncEvent | SyncFailedEvent | MediumDamage | Note


@dataclass(frozen=True, slots=True)
class Trace:
    """The content of a disk at power-on, and all events since."""

    start: Image
    events: list[Event] = field(default_factory=list)

    @property
    def notes(self) -> Sequence[object]:
        """The notes of the test, in order."""
        return [event.event for event in self.events if isinstance(event, Note)]
