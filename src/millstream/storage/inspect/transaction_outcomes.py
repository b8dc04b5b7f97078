"""How the transactions of a log ended, found in its batches.

A log does not follow transactions, and its files have no list of them. What a reader of committed
records has to know is found in headers and markers. What that costs:

- The last stable offset needs every header of the log, once, and then those that are new. A page
  of the disk is read for each batch, and no record.
- Which batches of a stretch were aborted needs the headers behind it up to the markers that end
  its transactions. That is as far as those transactions lasted, and nothing where there are none.

Compaction takes commit markers away, and the word "transactional" from the batches before them in
the same step or an earlier one. So what is found is right only within one state of the files; who
looks at another one begins anew.
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
    """Where readers of committed records have to stop, in one state of a log after the other."""

    def __init__(self) -> None:
        self._begin(0, frozenset())

    def _begin(self, start: int, rewritten: frozenset[SegmentId]) -> None:
        self._open = OpenTransactions()
        self._next = start
        self._rewritten = rewritten

    def of(self, snapshot: LogSnapshot) -> int:
        """Return the last stable offset: all before it is decided.

        Goes on from the state before, unless that has changed where it was looked at, or beyond.
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
        return end if first is None else max(snapshot.start, first)


class TransactionOutcomes:
    """How transactions ended, in one state of a log, asked from its front to its back."""

    def __init__(self, snapshot: LogSnapshot) -> None:
        self._snapshot = snapshot
        self._ahead: Iterator[tuple[BatchHeader, Marker | None]] | None = None
        self._markers: dict[int, tuple[list[int], list[bool]]] = {}
        """By producer id: where it has markers, and whether each is a commit."""

    def aborted(self, data: Bytes, next_offset: int) -> tuple[dict[int, list[int]], int | None]:
        """Return what was aborted among some batches that end before `next_offset`.

        By producer id: where aborted transactions begin among them. And the first offset of those
        that nothing has ended yet, if there are any.
        """
        opened = OpenTransactions()
        aborted: dict[int, list[int]] = {}
        for header, marker in transactional_batches(data):
            first = opened.add(header)
            if marker is not None and first is not None and not marker.is_commit:
                aborted.setdefault(header.producer_id, []).append(first)
        undecided: list[int] = []
        for producer_id, first in opened.firsts().items():
            is_commit = self._ending(producer_id, next_offset)
            if is_commit is None:
                undecided.append(first)
            elif not is_commit:
                aborted.setdefault(producer_id, []).append(first)
        return aborted, min(undecided, default=None)

    def _ending(self, producer_id: int, offset: int) -> bool | None:
        """Whether the first marker of a producer from `offset` on is a commit."""
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
        """Read on up to the next marker; returns whether there was one."""
        assert self._ahead is not None, "someone asked for it"
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
    """Go over the committed batches from `offset` on that have to do with transactions."""
    for segment in visible_segments(snapshot):
        if segment.next_offset > offset:
            yield from reader.transactional_batches(
                segment, start=max(offset, snapshot.start), limit=committed_size(snapshot, segment)
            )
