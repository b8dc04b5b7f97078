"""The aborted transactions of one partition, as far as its log still holds any of their records.

A reader of committed records gets every batch, and beside them the list of those to leave out. The
list is in the order of the markers that ended the transactions, because that is the order in which
they come to be known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.broker.partition.results import AbortedTransactionStart


class AbortedRange(NamedTuple):
    """An aborted transaction, and where its records can be."""

    producer_id: int
    first_offset: int
    last_offset: int
    """That of its marker."""
    last_stable_offset: int
    """Where readers of committed records had to stop right after it: no transaction that ended
    later has records before this."""


class AbortedIndex:
    """Aborted transactions, sorted by their last offset; 32 bytes for each."""

    def __init__(self, ranges: Iterable[AbortedRange] = ()) -> None:
        self._producer_ids = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stables = array("q")
        for item in ranges:
            self.add(item)

    def __len__(self) -> int:
        return len(self._lasts)

    def __iter__(self) -> Iterator[AbortedRange]:
        columns = zip(self._producer_ids, self._firsts, self._lasts, self._stables, strict=True)
        return map(AbortedRange._make, columns)

    def add(self, item: AbortedRange) -> None:
        """Add a transaction that ended after all others."""
        assert not self._lasts or self._lasts[-1] < item.last_offset, "markers come in order"
        self._producer_ids.append(item.producer_id)
        self._firsts.append(item.first_offset)
        self._lasts.append(item.last_offset)
        self._stables.append(item.last_stable_offset)

    def between(self, offset: int, end_offset: int) -> tuple[AbortedTransactionStart, ...]:
        """Return the transactions with records from `offset` on and before `end_offset`."""
        return tuple(
            AbortedTransactionStart(self._producer_ids[at], self._firsts[at])
            for at in self._overlapping(offset, end_offset)
        )

    def ranges(self, offset: int, end_offset: int) -> list[AbortedRange]:
        """Return the same with all that is known of them."""
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
        """Return those whose marker lies before `offset`."""
        end = bisect_left(self._lasts, offset)
        columns = (self._producer_ids, self._firsts, self._lasts, self._stables)
        return list(map(AbortedRange._make, zip(*(c[:end] for c in columns), strict=True)))

    def rewind(self, offset: int) -> None:
        """Forget those whose marker lies at `offset` or later: the log does not have it."""
        self._keep(0, bisect_left(self._lasts, offset))

    def trim(self, start_offset: int) -> None:
        """Forget those that ended before the log starts."""
        self._keep(bisect_left(self._lasts, start_offset), len(self._lasts))

    def _keep(self, start: int, end: int) -> None:
        if start > 0 or end < len(self._lasts):
            self._producer_ids = self._producer_ids[start:end]
            self._firsts = self._firsts[start:end]
            self._lasts = self._lasts[start:end]
            self._stables = self._stables[start:end]
