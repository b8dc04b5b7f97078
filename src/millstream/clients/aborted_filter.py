"""Which batches hold nothing that an application should see.

A transaction lies scattered in its partition, batches of other producers between its own, and ends
with a marker, a control batch. Where it was aborted, the node names its producer and its first
offset. A producer has one transaction at a time, so the first marker of that producer from that
offset on ends it:

    offset     10        11        12        13        14         15
             +---------+---------+---------+---------+----------+---------+
             | of A    | of B    | of A    | marker  | marker   | of A    |    aborted: {A: [10]}
             |         |         |         | of B    | of A     |         |
             +---------+---------+---------+---------+----------+---------+
      void?    yes       no        yes       yes       yes        no
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from millstream.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader


class AbortedFilter:
    """Tells, batch by batch in the order of offsets, which are void.

    One for each reading of a partition: what is open at the end of a stretch goes on in the next.
    Pure, and for one thread.
    """

    def __init__(self, aborted: Mapping[int, Sequence[int]] | None = None) -> None:
        self._first_offsets: dict[int, list[int]] = {}
        self._ended: dict[int, int] = {}
        if aborted:
            self.add(aborted)

    def add(self, aborted: Mapping[int, Sequence[int]]) -> None:
        """Learn of the aborted transactions of the next stretch, before its first batch.

        What is known already may come again.
        """
        for producer_id, offsets in aborted.items():
            known = self._first_offsets.setdefault(producer_id, [])
            ended = self._ended.get(producer_id, -1)
            new = {offset for offset in offsets if offset > ended}.difference(known)
            if new:
                known += new
                known.sort()

    def is_void(self, header: BatchHeader) -> bool:
        """Whether the batch is a marker, or part of an aborted transaction."""
        attributes = header.attributes
        if attributes & CONTROL_BIT:
            self._end(header.producer_id, header.base_offset)
            return True
        if not attributes & TRANSACTIONAL_BIT:
            return False
        known = self._first_offsets.get(header.producer_id)
        return known[0] <= header.base_offset if known else False

    def _end(self, producer_id: int, offset: int) -> None:
        """Note the marker at `offset`: all that the producer had begun before it is over."""
        known = self._first_offsets.get(producer_id)
        if known is None:
            return
        self._ended[producer_id] = offset
        del known[: bisect_right(known, offset)]
