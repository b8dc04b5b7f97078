"""Index of the aborted transactions of one partition, as long as its log has records of them.

A reader of committed records gets every batch, with a list of the aborted transactions to skip. The
index is in the order of the markers that ended the transactions, the order in which they become
known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.broker.partition.results import AbortedTransactionStart


class AbortedRange(NamedTuple):
    """An aborted transaction, and the offsets between which it has records."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of its marker."""
    last_stable_offset: int
    """The last stable offset right after its marker: no transaction that ended later has records
    before it."""


class AbortedIndex:
    """Aborted transactions, sorted by last offset; 32 bytes each."""

    def __init__(self, ranges: Iterable[AbortedRange] = ()) -> None:
        self._producer_ids = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stables = array("q")
        for transaction in ranges:
            self.add(transaction)

    def __len__(self) -> int:
        return len(self._lasts)

    def __iter__(self) -> Iterator[AbortedRange]:
        columns = zip(self._producer_ids, self._firsts, self._lasts, self._stables, strict=True)
        return map(AbortedRange._make, columns)

    def add(self, transaction: AbortedRange) -> None:
        """Add a transaction that ended after all others."""
        assert not self._lasts or self._lasts[-1] < transaction.last_offset, "markers come in order"
        self._producer_ids.append(transaction.producer_id)
        self._firsts.append(transaction.first_offset)
        self._lasts.append(transaction.last_offset)
        self._stables.append(transaction.last_stable_offset)

    def between(self, offset: int, end_offset: int) -> tuple[AbortedTransactionStart, ...]:
        """Return the transactions with records from `offset` to before `end_offset`."""
        return tuple(
            AbortedTransactionStart(self._producer_ids[at], self._firsts[at])
            for at in self._overlapping(offset, end_offset)
        )

    def ranges(self, offset: int, end_offset: int) -> list[AbortedRange]:
        """Return the same transactions as `between`, with all their fields."""
        columns = (self._producer_ids, self._firsts, self._lasts, self._stables)
        return [
            AbortedRange._make(column[at] for column in columns)
            for at in self._overlapping(offset, end_offset)
        ]

    def _overlapping(self, offset: int, end_offset: int) -> Iterator[int]:
        for at in range(bisect_left(self._lasts, offset), len(self._lasts)):
            if self._firsts[at] < end_offset:
                yield at
            if self._stables[at] >= end_offset:
                break

    def before(self, offset: int) -> list[AbortedRange]:
        """Return the transactions whose marker is before `offset`."""
        end = bisect_left(self._lasts, offset)
        columns = (self._producer_ids, self._firsts, self._lasts, self._stables)
        return list(map(AbortedRange._make, zip(*(c[:end] for c in columns), strict=True)))

    def rewind(self, offset: int) -> None:
        """Forget transactions whose marker is at `offset` or later: the log has taken it back."""
        self._keep(0, bisect_left(self._lasts, offset))

    def trim(self, start_offset: int) -> None:
        """Forget transactions that ended before the start of the log."""
        self._keep(bisect_left(self._lasts, start_offset), len(self._lasts))

    def _keep(self, start: int, end: int) -> None:
        if start > 0 or end < len(self._lasts):
            self._producer_ids = self._producer_ids[start:end]
            self._firsts = self._firsts[start:end]
            self._lasts = self._lasts[start:end]
            self._stables = self._stables[start:end]
