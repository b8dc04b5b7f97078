"""Progress of one watcher in one partition: catching up, or at the tail.

Two states and no other:

    catching up   the next records are read from the log, as fast as the watcher takes them
    at the tail   batches of the feed follow the watcher's position, and wait in a queue

           the feed is no further            a batch does not fit, or does not follow,
    catching up ─────────────────► at the tail     or its records were deleted
         ▲                              │
         └──────────────────────────────┘

A watcher whose cursor is of a deleted topic is told so first, in either state.

Rule: the queue holds batches without a gap between them, the first beginning at `next_offset`. So
everything that is dropped from it can be read again from `next_offset` on, and nothing comes twice.

Pure: it decides what to send; others read and send.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from millstream.broker.partition.record_page import RecordPage
from millstream.records.cursor import CursorPosition
from millstream.records.record import RECREATED, Gap
from millstream.servers.http.live.encoded_batch import EncodedBatch

EVENT_BYTES_MAX = 256 * 1024
"""Queued batches are sent together up to this size: large enough to amortise the cost of an event,
and small enough for a reader to parse at once. A single batch may be larger.
"""


class LaggedRange(NamedTuple):
    """Offsets that a watcher was too slow for, and gets from the log."""

    from_offset: int
    to_offset: int
    """The last offset of the range."""


class SubscriptionProgress:
    """The position of one watcher in one partition."""

    __slots__ = ("_queue", "deleted", "is_at_tail", "lag", "next_offset", "queued_bytes")

    def __init__(self, next_offset: int, deleted: CursorPosition | None = None) -> None:
        self.next_offset = next_offset
        """The first offset that was not sent to the watcher. It is in its cursor."""
        self.deleted = deleted
        """The watcher's position in a topic that was deleted, until it is told."""
        self.is_at_tail = False
        self.queued_bytes = 0
        self.lag: LaggedRange | None = None
        """Set when batches were dropped for lack of room; cleared when it is sent."""
        self._queue: deque[EncodedBatch] = deque()

    @property
    def end_offset(self) -> int:
        """Return the offset after everything that was sent or is queued."""
        return self._queue[-1].next_offset if self._queue else self.next_offset

    @property
    def has_work(self) -> bool:
        """Return whether there is something to read or to send."""
        return not self.is_at_tail or bool(self._queue) or self.deleted is not None

    def take_recreated(self) -> Gap | None:
        """Return the gap of a watcher whose topic was deleted, once."""
        deleted, self.deleted = self.deleted, None
        return None if deleted is None else Gap(deleted.offset, deleted.offset, RECREATED)

    # At the tail.

    def join(self, feed_offset: int) -> bool:
        """Take batches of the feed from now on, if the feed is no further than the watcher."""
        self.is_at_tail = self.next_offset >= feed_offset
        return self.is_at_tail

    def offer(self, batch: EncodedBatch, *, room: int | None) -> None:
        """Queue a batch; `room` is how many more bytes may be queued.

        `None` takes it whatever its size: if nothing is queued for the connection at all, a batch
        that is larger than the limit would otherwise never get through.
        """
        end_offset = self.end_offset
        if not self.is_at_tail or batch.next_offset <= end_offset:
            return
        if batch.first_offset != end_offset:
            self.fall_behind()
        elif room is not None and batch.size > room:
            self.lag = LaggedRange(self.next_offset, batch.next_offset - 1)
            self.fall_behind()
        elif not batch.records and not self._queue:
            self.next_offset = batch.next_offset
        else:
            self._queue.append(batch)
            self.queued_bytes += batch.size

    def take(self) -> list[EncodedBatch]:
        """Return the batches to send next as one event, and advance past them."""
        taken: list[EncodedBatch] = []
        size = 0
        while self._queue and (not taken or size + self._queue[0].size <= EVENT_BYTES_MAX):
            batch = self._queue.popleft()
            size += batch.size
            taken.append(batch)
        self.queued_bytes -= size
        if taken:
            self.next_offset = taken[-1].next_offset
        return taken

    def fall_behind(self) -> None:
        """Drop the queue and catch up from the log: queued batches may be outdated."""
        self._queue.clear()
        self.queued_bytes = 0
        self.is_at_tail = False

    # Catching up.

    def advance(self, page: RecordPage, feed_offset: int) -> RecordPage:
        """Advance past records read from `next_offset` on; return the part to send.

        A gap is sent alone: the records after it are read next. Records that the feed has not
        reached yet are left to it: a watcher ahead of the feed would get them twice, or a part of a
        batch.
        """
        assert not self.is_at_tail, "only a watcher that catches up reads for itself"
        if page.gap is not None:
            end_offset = page.gap.to_offset + 1
            sent = page._replace(records=(), next_offset=end_offset)
        elif page.next_offset <= feed_offset:
            sent = page
        else:
            records = tuple(record for record in page.records if record.offset < feed_offset)
            sent = page._replace(records=records, next_offset=feed_offset)
        self.next_offset = max(self.next_offset, sent.next_offset)
        return sent
