"""State of a simulated disk: which changes are certain to survive a power cut.

The rules are as strict as POSIX allows. A sync of a file makes its bytes and its size durable, but
not its name; a sync of a directory makes the names in it durable, but neither their content nor
its own name; a move to another directory is made durable by a sync of both, and is atomic before
that. Unsynced changes may survive in any combination. Changes that a failed sync was to make
durable are not made durable by any later sync: only writing them again, and syncing that, helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millstream.testing.disk.changes import Change, Inode, Move
from millstream.testing.disk.image import Image
from millstream.testing.disk.trace import Event, MediumDamage, Note, SyncEvent, SyncFailedEvent


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that is not part of the certain image.

    At first it is neither of the two: a power cut may lose it, and a sync will settle it.
    """

    change: Change
    is_forsaken: bool = False
    """A sync of it failed, so none will settle it."""
    is_settled: bool = False
    """It was synced, and is on top of a forsaken change that may or may not survive."""


class DiskState:
    """Follows a trace, and knows at every point what a power cut would leave."""

    def __init__(self, start: Image) -> None:
        self._certain = start
        self._pending: list[PendingChange] = []

    @property
    def certain(self) -> Image:
        """The content that survives in any case, unless it is on top of an uncertain change."""
        return self._certain

    @property
    def pending(self) -> Sequence[PendingChange]:
        """The changes since then, oldest first; all that are not settled are optional."""
        return tuple(self._pending)

    def take(self, event: Event) -> None:
        """Process the next event."""
        match event:
            case SyncEvent(inode):
                self._settle(inode)
                self._pending = [_half_settled(entry, inode) for entry in self._pending]
            case SyncFailedEvent(inode):
                self._forsake(inode)
            case MediumDamage(inode, content):
                self._overwrite(inode, content)
            case Note():
                pass
            case _:
                self._pending.append(PendingChange(event))

    def _settle(self, inode: Inode) -> None:
        settled = [entry for entry in self._pending if _is_settled_by(entry, inode)]
        if not settled:
            return
        if any(entry.is_forsaken for entry in settled):
            self._pending = [
                replace(entry, is_settled=True)
                if _is_settled_by(entry, inode) and not entry.is_forsaken
                else entry
                for entry in self._pending
            ]
        else:
            self._certain = self._certain.after(entry.change for entry in settled)
            self._pending = [entry for entry in self._pending if not _is_settled_by(entry, inode)]

    def _forsake(self, inode: Inode) -> None:
        self._pending = [
            replace(entry, is_forsaken=True)
            if entry.change.inode == inode and not entry.is_settled
            else entry
            for entry in self._pending
        ]

    def _overwrite(self, inode: Inode, content: bytes) -> None:
        files = {**self._certain.files, inode: content}
        self._certain = Image(files, self._certain.directories)
        self._forget(inode)

    def _forget(self, inode: Inode) -> None:
        self._pending = [entry for entry in self._pending if entry.change.inode != inode]


def _is_settled_by(entry: PendingChange, inode: Inode) -> bool:
    """Whether a sync of `inode` makes a change durable."""
    is_half = isinstance(entry.change, Move) and entry.change.other is not None
    return entry.change.inode == inode and not is_half


def _half_settled(entry: PendingChange, inode: Inode) -> PendingChange:
    """Record that one of the two directories of a move was synced."""
    move = entry.change
    if not isinstance(move, Move) or move.other is None or inode not in (move.inode, move.other):
        return entry
    remaining = move.other if inode == move.inode else move.inode
    return replace(entry, change=replace(move, inode=remaining, other=None))
