"""Which changes are certain to survive a power cut, and which may.

The rules are as hard as POSIX allows. A sync of a file settles its bytes and its size, and not its
name; a sync of a directory settles the names in it, and neither their content nor its own name;
a move to another directory is settled by a sync of both, and atomic before that.
Whatever was not synced may survive in any combination. What a failed sync was to settle is
settled by no later sync: only writing it again, and syncing that, helps.
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

    It starts as neither: a power cut may lose it, and a sync will settle it.
    """

    change: Change
    is_forsaken: bool = False
    """A sync of it failed, so none will settle it."""
    is_settled: bool = False
    """It was synced, and lies on top of a forsaken change that may or may not be there."""


class DiskState:
    """Follows a trace, and knows at every moment what a power cut would leave."""

    def __init__(self, start: Image) -> None:
        self._certain = start
        self._pending: list[PendingChange] = []

    @property
    def certain(self) -> Image:
        """What survives in any case, as far as it does not lie on top of what may not."""
        return self._certain

    @property
    def pending(self) -> Sequence[PendingChange]:
        """What was changed since, oldest first; all that is not settled is optional."""
        return tuple(self._pending)

    def take(self, event: Event) -> None:
        """Let the next event happen."""
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
        mine = [entry for entry in self._pending if _is_settled_by(entry, inode)]
        if not mine:
            return
        if any(entry.is_forsaken for entry in mine):
            self._pending = [
                replace(entry, is_settled=True)
                if _is_settled_by(entry, inode) and not entry.is_forsaken
                else entry
                for entry in self._pending
            ]
        else:
            self._certain = self._certain.after(entry.change for entry in mine)
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
    """Whether a sync of `inode` is all that a change waits for."""
    is_half = isinstance(entry.change, Move) and entry.change.other is not None
    return entry.change.inode == inode and not is_half


def _half_settled(entry: PendingChange, inode: Inode) -> PendingChange:
    """Take note that one of the two directories of a move was synced."""
    move = entry.change
    if not isinstance(move, Move) or move.other is None or inode not in (move.inode, move.other):
        return entry
    left = move.other if inode == move.inode else move.inode
    return replace(entry, change=replace(move, inode=left, other=None))
