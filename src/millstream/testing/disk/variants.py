"""Outcomes of a power cut: which of the unsynced changes survive.

Optional changes are numbered from 1, oldest first. A variant says which of them survived, whole or
torn; it is a small value, and computes the changes on demand.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.testing.disk.changes import Change, FileWrite, Grow
from millstream.testing.disk.disk_state import PendingChange

SECTOR_SIZE = 512
"""Unit that a disk writes atomically, at best."""


class Variant(Protocol):
    """One outcome of a power cut."""

    @property
    def name(self) -> str:
        """Name for the report of a failure."""
        ...

    def survivors(self, pending: Sequence[PendingChange]) -> Iterator[Change]:
        """Yield, in order, the changes that reached the disk."""
        ...


@dataclass(frozen=True, slots=True)
class FixedVariant:
    """A given set of the optional changes survived, the last write perhaps torn."""

    name: str
    kept: int
    """Bit set: bit 0 stands for optional change 1."""
    tear: str | None = None

    def survivors(self, pending: Sequence[PendingChange]) -> Iterator[Change]:
        """Yield, in order, the changes that reached the disk."""
        torn = _last_write(pending) if self.tear else None

        def keep(index: int, change: Change) -> Sequence[Change]:
            if not self.kept >> index & 1:
                return ()
            if self.tear and isinstance(change, FileWrite) and change is torn:
                return tears(change)[self.tear]
            return (change,)

        return _survivors(pending, keep)


@dataclass(frozen=True, slots=True)
class RandomVariant:
    """Random optional changes survived, and random writes among them are torn."""

    name: str
    seed: str

    def survivors(self, pending: Sequence[PendingChange]) -> Iterator[Change]:
        """Yield, in order, the changes that reached the disk."""
        rng = random.Random(self.seed)  # noqa: S311 - repeatable, not secret.
        probability = rng.choice((0.2, 0.5, 0.8))

        def keep(_: int, change: Change) -> Sequence[Change]:
            if rng.random() > probability:
                return ()
            if isinstance(change, FileWrite) and rng.random() < 0.3:
                return _torn_anywhere(change, rng)
            return (change,)

        return _survivors(pending, keep)


NOTHING = FixedVariant("nothing", 0)


def prefixes(pending: Sequence[PendingChange]) -> Iterator[Variant]:
    """Yield the outcomes in which the oldest changes survived, from none to all but the last."""
    yield NOTHING
    for number in range(1, _count(pending)):
        yield FixedVariant(f"prefix {number}", (1 << number) - 1)


def variants(pending: Sequence[PendingChange], *, seed: str, randoms: int) -> Iterator[Variant]:
    """Yield all other interesting outcomes, the simplest first."""
    count = _count(pending)
    if count == 0:
        return
    everything = (1 << count) - 1
    yield FixedVariant("everything", everything)
    for number in range(1, count):  # All but the last is a prefix.
        yield FixedVariant(f"all but {number}", everything ^ (1 << (number - 1)))
    if (write := _last_write(pending)) is not None:
        for name in tears(write):
            yield FixedVariant(name, everything, tear=name)
    elif count <= 2:
        return  # Random outcomes would only repeat these.
    for number in range(1, randoms + 1):
        yield RandomVariant(f"random {number}", f"{seed}, random {number}")


def tears(write: FileWrite) -> Mapping[str, Sequence[Change]]:
    """Return the ways in which a write may survive in part, each with its changes."""
    size = len(write.data)
    cuts = {SECTOR_SIZE: "torn 512", size // 2: "torn half", 1: "torn 1 byte"}
    torn = {name: (_cut(write, cut),) for cut, name in cuts.items() if 0 < cut < size}
    grow = Grow(write.inode, write.end)
    return {
        **torn,
        "zero-filled": (grow,),
        "zero-filled tail": (*torn.get("torn half", ()), grow),
    }


def _survivors(
    pending: Sequence[PendingChange], keep: Callable[[int, Change], Sequence[Change]]
) -> Iterator[Change]:
    index = 0
    for entry in pending:
        if entry.is_settled:
            yield entry.change
        else:
            yield from keep(index, entry.change)
            index += 1


def _count(pending: Sequence[PendingChange]) -> int:
    """Return the number of optional changes."""
    return sum(not entry.is_settled for entry in pending)


def _last_write(pending: Sequence[PendingChange]) -> FileWrite | None:
    for entry in reversed(pending):
        if isinstance(entry.change, FileWrite) and not entry.is_settled:
            return entry.change
    return None


def _cut(write: FileWrite, size: int) -> FileWrite:
    return FileWrite(write.inode, write.position, write.data[:size])


def _torn_anywhere(write: FileWrite, rng: random.Random) -> Sequence[Change]:
    """Keep a write up to a random byte, or random sectors of it."""
    if rng.random() < 0.5:
        return (_cut(write, rng.randint(1, len(write.data))),)
    sectors = [sector for sector in _sectors(write) if rng.random() < 0.5]
    return (Grow(write.inode, write.end), *sectors)


def _sectors(write: FileWrite) -> Iterator[FileWrite]:
    """Split a write at the sector boundaries of its file."""
    start = write.position
    while start < write.end:
        end = min(start - start % SECTOR_SIZE + SECTOR_SIZE, write.end)
        yield FileWrite(
            write.inode, start, write.data[start - write.position : end - write.position]
        )
        start = end
