"""Where one watcher stands in one partition: catching up, or at the tail.

Two states and no other:

    catching up   what is next is read from the log, at the watcher's own pace
    at the tail   bursts of the feed follow where the watcher stands, and wait in a queue

           the feed is no further            a burst does not fit, or does not follow,
    catching up ─────────────────► at the tail     or what it holds was deleted
         ▲                              │
         └──────────────────────────────┘

Rule: the queue holds bursts without a gap between them, the first beginning at `next_offset`. So
whatever is dropped from it can be read again from `next_offset` on, and nothing comes twice.

Pure: told what happened, it says what to send; others read and send.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from millstream.broker.partition.record_page import RecordPage
from millstream.servers.http.live.encoded_batch import EncodedBatch

EVENT_BYTES_MAX = 256 * 1024
"""Bursts that wait are sent together up to this size: large enough to make up for what an event
costs, and small enough for a reader to parse at once. One burst may be larger."""


class LaggedRange(NamedTuple):
    """What a watcher was too slow for, and gets by reading it from the log."""

    from_offset: int
    to_offset: int
    """The last of them."""


class SubscriptionProgress:
    """How far one watcher has come in one partition."""

    __slots__ = ("_queue", "is_at_tail", "lag", "next_offset", "queued_bytes")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """The first offset of which the watcher was told nothing. It stands in its cursor."""
        self.is_at_tail = False
        self.queued_bytes = 0
        self.lag: LaggedRange | None = None
        """Set when bursts were dropped because there was no room; to be told, and then cleared."""
        self._queue: deque[EncodedBatch] = deque()

    @property
    def end_offset(self) -> int:
        """The offset after all that was sent or waits to be."""
        return self._queue[-1].next_offset if self._queue else self.next_offset

    @property
    def has_work(self) -> bool:
        """Whether there is something to read or to send."""
        return not self.is_at_tail or bool(self._queue)

    # At the tail.

    def join(self, feed_offset: int) -> bool:
        """Take bursts of the feed from now on, if it is no further than the watcher is."""
        self.is_at_tail = self.next_offset >= feed_offset
        return self.is_at_tail

    def offer(self, burst: EncodedBatch, *, room: int | None) -> None:
        """Take note of a burst; `room` is how many bytes may wait beside those that do already.

        `None` takes it whatever its size: where nothing waits for the connection at all, a burst
        that is larger than all its room would else never get through.
        """
        end_offset = self.end_offset
        if not self.is_at_tail or burst.next_offset <= end_offset:
            return
        if burst.first_offset != end_offset:
            self.fall_behind()
        elif room is not None and burst.size > room:
            self.lag = LaggedRange(self.next_offset, burst.next_offset - 1)
            self.fall_behind()
        elif not burst.records and not self._queue:
            self.next_offset = burst.next_offset
        else:
            self._queue.append(burst)
            self.queued_bytes += burst.size

    def take(self) -> list[EncodedBatch]:
        """Return the bursts to send next, as one event: they are what the watcher has seen now."""
        taken: list[EncodedBatch] = []
        size = 0
        while self._queue and (not taken or size + self._queue[0].size <= EVENT_BYTES_MAX):
            burst = self._queue.popleft()
            size += burst.size
            taken.append(burst)
        self.queued_bytes -= size
        if taken:
            self.next_offset = taken[-1].next_offset
        return taken

    def fall_behind(self) -> None:
        """Drop what waits, and catch up from the log: what waits may not be true any more."""
        self._queue.clear()
        self.queued_bytes = 0
        self.is_at_tail = False

    # Catching up.

    def advance(self, found: RecordPage, feed_offset: int) -> RecordPage:
        """Take note of what was read from `next_offset` on; return what the watcher is told of it.

        A gap is told alone: what follows it is read with the next piece. Records that the feed has
        not come to yet are left to it: who was further than the feed would get them twice, or
        would have to be sent a part of a burst.
        """
        assert not self.is_at_tail, "only who catches up reads for itself"
        if found.gap is not None:
            end_offset = found.gap.to_offset + 1
            told = found._replace(records=(), next_offset=end_offset)
        elif found.next_offset <= feed_offset:
            told = found
        else:
            records = tuple(one for one in found.records if one.offset < feed_offset)
            told = found._replace(records=records, next_offset=feed_offset)
        self.next_offset = max(self.next_offset, told.next_offset)
        return told
