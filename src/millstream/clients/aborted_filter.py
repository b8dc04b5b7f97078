"""Filter for control batches and batches of aborted transactions.

The batches of a transaction are interleaved with batches of other producers, and a marker (a
control batch) ends it. For an aborted transaction, the node reports the producer id and the first
offset. A producer has one transaction at a time, so the producer's first marker at or after that
offset ends the transaction:

    offset     10        11        12        13        14         15
             +---------+---------+---------+---------+----------+---------+
             | of A    | of B    | of A    | marker  | marker   | of A    |    aborted: {A: [10]}
             |         |         |         | of B    | of A     |         |
             +---------+---------+---------+---------+----------+---------+
  filtered?    yes       no        yes       yes       yes        no
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from millstream.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader


class AbortedFilter:
    """Decides for each batch, in offset order, whether applications may see it.

    Use one filter for each pass over a partition: transactions that are open at the end of a chunk
    continue in the next. Does no I/O and is not thread-safe.
    """

    def __init__(self, aborted: Mapping[int, Sequence[int]] | None = None) -> None:
        self._first_offsets: dict[int, list[int]] = {}
        self._ended: dict[int, int] = {}
        if aborted:
            self.add(aborted)

    def add(self, aborted: Mapping[int, Sequence[int]]) -> None:
        """Add the aborted transactions of the next chunk, before its first batch.

        Transactions that were added before may be repeated.
        """
        for producer_id, offsets in aborted.items():
            known = self._first_offsets.setdefault(producer_id, [])
            ended = self._ended.get(producer_id, -1)
            new = {offset for offset in offsets if offset > ended}.difference(known)
            if new:
                known += new
                known.sort()

    def is_filtered(self, header: BatchHeader) -> bool:
        """Return whether the batch is a control batch or part of an aborted transaction."""
        attributes = header.attributes
        if attributes & CONTROL_BIT:
            if attributes & TRANSACTIONAL_BIT:  # Control batches of other types end nothing.
                self._end(header.producer_id, header.base_offset)
            return True
        if not attributes & TRANSACTIONAL_BIT:
            return False
        known = self._first_offsets.get(header.producer_id)
        return known[0] <= header.base_offset if known else False

    def _end(self, producer_id: int, offset: int) -> None:
        """End all transactions that the producer began before its marker at `offset`."""
        known = self._first_offsets.get(producer_id)
        if known is None:
            return
        self._ended[producer_id] = offset
        del known[: bisect_right(known, offset)]
