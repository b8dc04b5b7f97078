"""Leader epochs of one log: which epoch began at which offset.

Two logs agree up to an offset if the batch before it has the same epoch in both, because an epoch
has one leader, and a leader writes an offset once. So replicas compare epochs and offsets instead
of records (KIP-101, KIP-279, KIP-320): a follower that fetches sends the epoch of its last batch,
and the leader looks up where that epoch ends in its own log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

NO_EPOCH = -1
"""The epoch of an empty log, and of what a history does not reach back to."""


class EpochEnd(NamedTuple):
    """An epoch, and the offset after its last record."""

    epoch: int
    end_offset: int


class EpochHistory:
    """The epochs of one log, oldest first.

    Epochs increase; start offsets increase too, because an epoch without a record is replaced by
    the next one.
    """

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Take pairs of epoch and start offset, as `PartitionMetadata.epochs` has them."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start_offset in entries:
            self.begin(epoch, start_offset)

    @property
    def latest(self) -> int:
        """The newest epoch, or `NO_EPOCH`."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def latest_start(self) -> int:
        """The start offset of the newest epoch; 0 if there is none."""
        return self._starts[-1] if self._starts else 0

    def entries(self) -> tuple[tuple[int, int], ...]:
        """Return pairs of epoch and start offset."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def begin(self, epoch: int, start_offset: int) -> None:
        """Add an epoch. Epochs that begin at or after `start_offset` have no record: they go."""
        if epoch <= self.latest:
            raise ValueError(f"epoch must be greater than {self.latest}, got {epoch}")
        self.cut(start_offset)
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def cut(self, end_offset: int) -> None:
        """Drop the epochs that have no record before `end_offset`."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()

    def drop_before(self, start_offset: int) -> None:
        """Drop the epochs that ended at or before `start_offset`, the new start of the log."""
        first = max(bisect_right(self._starts, start_offset) - 1, 0)
        del self._epochs[:first]
        del self._starts[:first]

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, or `NO_EPOCH`."""
        count = bisect_right(self._starts, offset)
        return self._epochs[count - 1] if count else NO_EPOCH

    def last_epoch(self, log_start: int, log_end: int) -> int:
        """Return the epoch of the last record of a log, or `NO_EPOCH` if it is empty."""
        return self.epoch_at(log_end - 1) if log_end > log_start else NO_EPOCH

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the greatest epoch that is at most `epoch`, and where it ends.

        The newest epoch ends at the end of the log. If all epochs are greater, the answer is
        `NO_EPOCH` and the start offset of the first one.
        """
        count = bisect_right(self._epochs, epoch)
        if count == len(self._epochs):
            return EpochEnd(self.latest, log_end)
        return EpochEnd(self._epochs[count - 1] if count else NO_EPOCH, self._starts[count])
