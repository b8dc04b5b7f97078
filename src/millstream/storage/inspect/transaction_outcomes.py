"""Outcomes of transactions, from the batches of a log.

A log does not track transactions, and its files have no list of them. A reader of committed
records finds the outcomes in headers and markers. The cost:

- The last stable offset needs every header of the log, once, and then the new ones. One disk page
  is read for each batch, and no record.
- The aborted batches of a range need the headers after it up to the markers that end its
  transactions: as far as those transactions lasted, and none if there are none.

Compaction removes commit markers, and clears the transactional bit of the batches before them in
the same step or an earlier one. So the result is valid only for one state of the files; for
another one it has to be computed again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from millstream.records.batch import BatchHeader, Bytes
from millstream.records.control import Marker
from millstream.records.transactions import OpenTransactions, transactional_batches
from millstream.storage.files.names import SegmentId
from millstream.storage.segment import reader
from millstream.storage.segment.log_state import LogSnapshot, committed_size, visible_segments
from millstream.storage.segment.segment import SealedSegment


class StableOffsetTracker:
    """The last stable offset, tracked over successive snapshots of a log."""

    def __init__(self) -> None:
        self._begin(0, frozenset())

    def _begin(self, start: int, rewritten: frozenset[SegmentId]) -> None:
        self._open = OpenTransactions()
        self._next = start
        self._checked = start
        """Up to this offset, the batches of open transactions were checked."""
        self._rewritten = rewritten

    def update(self, snapshot: LogSnapshot) -> int:
        """Return the last stable offset: all transactions before it are decided.

        Continues from the previous snapshot, unless the part that was read has changed since.
        """
        rewritten = frozenset(
            SegmentId(s.base_offset, s.generation)
            for s in snapshot.segments
            if isinstance(s, SealedSegment) and s.generation > 0
        )
        end = snapshot.committed.offset
        if rewritten != self._rewritten or not snapshot.start <= self._next <= end:
            self._begin(snapshot.start, rewritten)
        for header, _ in transactional_headers(snapshot, self._next):
            self._open.add(header)
            self._next = header.next_offset
        self._next = end
        first = self._open.first_offset
        if first is None:
            return end
        self._check_open(snapshot, max(first, self._checked))
        return max(snapshot.start, first)

    def _check_open(self, snapshot: LogSnapshot, offset: int) -> None:
        """Raise `DamagedRecords` if a transaction may only seem to be open.

        A flipped bit can begin one, or hide the marker that ends it: the log would seem to end
        there. Only then are records read, and only of transactions.
        """
        for segment in visible_segments(snapshot):
            if segment.next_offset > offset:
                reader.check_transactional(
                    segment,
                    start=max(offset, snapshot.start),
                    limit=committed_size(snapshot, segment),
                )
        self._checked = snapshot.committed.offset


class TransactionOutcomes:
    """Outcomes of transactions in one snapshot of a log, for queries in ascending order."""

    def __init__(self, snapshot: LogSnapshot) -> None:
        self._snapshot = snapshot
        self._ahead: Iterator[tuple[BatchHeader, Marker | None]] | None = None
        self._markers: dict[int, tuple[list[int], list[bool]]] = {}
        """By producer id: where it has markers, and whether each is a commit."""

    def aborted(self, data: Bytes, next_offset: int) -> tuple[dict[int, list[int]], int | None]:
        """Return the aborted transactions of batches that end before `next_offset`.

        By producer id: the first offsets of its aborted transactions in these batches. And the
        first offset of a transaction that has not ended yet, if there is one.
        """
        opened = OpenTransactions()
        aborted: dict[int, list[int]] = {}
        for header, marker in transactional_batches(data):
            first = opened.add(header)
            if marker is not None and first is not None and not marker.is_commit:
                aborted.setdefault(header.producer_id, []).append(first)
        undecided: list[int] = []
        for producer_id, first in opened.firsts().items():
            is_commit = self._is_committed(producer_id, next_offset)
            if is_commit is None:
                undecided.append(first)
            elif not is_commit:
                aborted.setdefault(producer_id, []).append(first)
        return aborted, min(undecided, default=None)

    def _is_committed(self, producer_id: int, offset: int) -> bool | None:
        """Whether the first marker of a producer from `offset` on is a commit; `None` if none."""
        if self._ahead is None:
            self._ahead = transactional_headers(self._snapshot, offset)
        while True:
            offsets, commits = self._markers.get(producer_id, ((), ()))
            at = bisect_left(offsets, offset)
            if at < len(offsets):
                return commits[at]
            if not self._walk_to_marker():
                return None

    def _walk_to_marker(self) -> bool:
        """Read on to the next marker; return whether there was one."""
        assert self._ahead is not None, "set by _is_committed"
        for header, marker in self._ahead:
            if marker is not None:
                offsets, commits = self._markers.setdefault(header.producer_id, ([], []))
                offsets.append(header.base_offset)
                commits.append(marker.is_commit)
                return True
        return False


def transactional_headers(
    snapshot: LogSnapshot, offset: int
) -> Iterator[tuple[BatchHeader, Marker | None]]:
    """Yield the committed transactional batches and markers from `offset` on."""
    for segment in visible_segments(snapshot):
        if segment.next_offset > offset:
            yield from reader.transactional_batches(
                segment, start=max(offset, snapshot.start), limit=committed_size(snapshot, segment)
            )
