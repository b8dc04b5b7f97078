"""`partition.json`: what the log of a partition cannot tell by itself.

Its durability class and its first offset, which recovery has to know before it can say what must
be there; and the history of its leader epochs: which epoch began at which offset. An epoch is made
durable here before the first batch bears it, so every batch can be checked against it.

Version 2 came with deletion: the first offset may lie inside a segment, and segments before that
one may still be there. A release that knows only version 1 would take such a log for damaged, or
even remove what it believes was never acknowledged; so it must not read it. Until something is
deleted the two say the same, and version 1 is written, which both can read.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

from millstream.config import Durability
from millstream.errors import CorruptFile
from millstream.storage.document import read_document, write_document
from millstream.storage.filesystem import Filesystem, join
from millstream.storage.names import PARTITION_FILE

_KIND = "millstream-partition"
_VERSION = 2
_VERSION_UNTIL_DELETION = 1


@dataclass(frozen=True, slots=True)
class Epoch:
    """A leader epoch, and the offset of the first batch that could bear it."""

    number: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Partition:
    """The content of `partition.json`."""

    durability: Durability = Durability.FSYNC

    start_offset: int = 0
    """The first offset of the log: where its first segment starts, or inside it."""

    epochs: tuple[Epoch, ...] = (Epoch(0, 0),)
    """Never empty; numbers rise, start offsets never fall."""

    @property
    def leader_epoch(self) -> int:
        """The newest epoch."""
        return self.epochs[-1].number

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that a segment with base offset `offset` bears."""
        found = bisect_right(self.epochs, offset, key=lambda epoch: epoch.start_offset)
        return self.epochs[max(found - 1, 0)].number

    def with_epoch(self, number: int, start_offset: int) -> Partition:
        """Return the same with one more epoch. One that no batch ever bore is replaced."""
        kept = tuple(epoch for epoch in self.epochs if epoch.start_offset < start_offset)
        return replace(self, epochs=(*kept, Epoch(number, start_offset)))

    def starting_at(self, start_offset: int, *, first_base: int) -> Partition:
        """Return the same with all before `start_offset` deleted.

        `first_base` is where the first segment that is kept starts. Epochs that ended before it
        are forgotten: no batch bears them any more.
        """
        first = bisect_right(self.epochs, first_base, key=lambda epoch: epoch.start_offset)
        return replace(self, start_offset=start_offset, epochs=self.epochs[max(first - 1, 0) :])


def read_partition(filesystem: Filesystem, directory: str) -> Partition:
    """Read `partition.json`; raises `FileNotFoundError` or `CorruptFile`."""
    path = join(directory, PARTITION_FILE)
    content = read_document(filesystem, path, _KIND, _VERSION)
    try:
        durability = Durability(content["durability"])
        start_offset = int(content["start_offset"])
        epochs = tuple(_epoch(item) for item in content["leader_epochs"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path}: {error!r}") from error
    if not epochs:
        raise CorruptFile(f"{path}: no leader epoch")
    return Partition(durability, start_offset, epochs)


def write_partition(filesystem: Filesystem, directory: str, partition: Partition) -> None:
    """Replace `partition.json`; durable when this returns."""
    epochs = [[epoch.number, epoch.start_offset] for epoch in partition.epochs]
    content = {
        "durability": partition.durability.value,
        "start_offset": partition.start_offset,
        "leader_epochs": epochs,
    }
    version = _VERSION if partition.start_offset > 0 else _VERSION_UNTIL_DELETION
    write_document(filesystem, directory, PARTITION_FILE, content, kind=_KIND, version=version)


def _epoch(item: Any) -> Epoch:
    number, start_offset = item
    return Epoch(int(number), int(start_offset))
