"""A feed reads and encodes new records of one partition once for all its watchers.

The partition wakes it in the middle of a commit, where it only sets a flag; it works in a turn of
the event loop of its own. All watchers at the tail are offered the same bytes. If no watcher is at
the tail, it reads nothing: those who catch up read for themselves.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_page import read_page
from millstream.errors import (
    DamagedRecords,
    MillstreamError,
    NotLeader,
    OffsetOutOfRange,
    PeerUnavailable,
    RecordsInRepair,
    TierUnavailable,
)
from millstream.servers.http.live.counters import LiveCounters
from millstream.servers.http.live.encoded_batch import EncodedBatch, event_prefix

logger = logging.getLogger(__name__)

READ_RECORDS_MAX = 1_000
READ_BYTES_MAX = 64 * 1024
"""Bytes that are read and encoded at a time, by a feed and by a watcher that catches up: about a
millisecond of the event loop with small records. A single record may be larger.
"""


RETRY_SECONDS = 0.2
"""Time between attempts to read a partition of another node, while no leader can be asked."""

OFFERS_MAX = 25
"""Watchers that are offered a batch in one turn of the event loop. Their output leaves at the end
of the turn, and others have theirs: with 25, that is some 0.3 ms."""


class FeedWatcher(Protocol):
    """A watcher of one partition."""

    @property
    def is_at_tail(self) -> bool:
        """Return whether it takes batches."""
        ...

    def offer(self, batch: EncodedBatch) -> None:
        """Take a batch, and return at once: the watchers are called one after the other."""
        ...

    def fall_behind(self) -> None:
        """Drop the queued batches, and read them again from the log."""
        ...

    def end(self, error: MillstreamError) -> None:
        """Note that nothing more can be read, and why."""
        ...


class PartitionFeed:
    """New records of a partition, while it has watchers."""

    def __init__(self, partition: ReadablePartition, counters: LiveCounters) -> None:
        """Begin at the end of an open partition."""
        self.partition = partition
        self.next_offset = partition.last_stable_offset
        """Everything before it was offered to the watchers at the tail."""
        self.prefix = event_prefix(partition.topic, partition.index)
        self._counters = counters
        self._watchers: dict[FeedWatcher, None] = {}
        self._deletions = partition.reader.deletions()
        self._woken: asyncio.Future[None] | None = None
        self._is_noted = False
        self.is_ended = False
        """Whether the feed has ended; the watchers were notified."""
        partition.watch(self._note)
        counters.feeds += 1
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, watcher: FeedWatcher) -> None:
        """Add a watcher. It is offered batches while it is at the tail."""
        self._watchers[watcher] = None

    def remove(self, watcher: FeedWatcher) -> bool:
        """Remove a watcher; return whether any is left."""
        self._watchers.pop(watcher, None)
        return bool(self._watchers)

    def close(self) -> None:
        """Stop watching the partition."""
        self.partition.unwatch(self._note)
        self._counters.feeds -= 1
        self._task.cancel()

    # Woken by the partition.

    def _note(self) -> None:
        self._is_noted = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _run(self) -> None:
        try:
            while True:
                if not self._is_noted:
                    self._woken = asyncio.get_running_loop().create_future()
                    await self._woken
                self._is_noted = False
                await self._deliver_or_retry()
        except MillstreamError as error:
            self._end(error)
        except Exception:
            logger.exception("%s cannot be watched any more", self.partition)
            self._end(MillstreamError("the node cannot read this partition"))

    async def _deliver_or_retry(self) -> None:
        try:
            await self._deliver()
        except (NotLeader, PeerUnavailable, RecordsInRepair, TierUnavailable):
            # Another node has the records, and is not there now, or this one is copying them.
            await asyncio.sleep(RETRY_SECONDS)
            self._note()

    async def _deliver(self) -> None:
        """Offer all new records, batch by batch."""
        partition = self.partition
        if (deletions := partition.reader.deletions()) != self._deletions:
            self._deletions = deletions
            self._drop_all()
        while self.next_offset < (end_offset := partition.last_stable_offset):
            if not any(watcher.is_at_tail for watcher in self._watchers):
                self.next_offset = end_offset
                return
            first_offset = self.next_offset
            await self._deliver_batch()
            if self.next_offset == first_offset:
                return  # It cannot be read now; the next commit tries again.

    async def _deliver_batch(self) -> None:
        try:
            page = await read_page(
                self.partition,
                self.next_offset,
                limit=READ_RECORDS_MAX,
                size_max=READ_BYTES_MAX,
            )
        except OffsetOutOfRange:  # Retention was faster, or the log was truncated.
            self.next_offset = self.partition.last_stable_offset
            self._drop_all()
            return
        except DamagedRecords as damage:  # Each watcher reads it for itself, and is told.
            self.next_offset = damage.to_offset + 1
            self._drop_all()
            return
        first_offset, self.next_offset = self.next_offset, page.next_offset
        if page.gap is not None:
            self._drop_all()
            return
        self._counters.encodings += bool(page.records)
        await self._offer(
            EncodedBatch(self.prefix, first_offset, page.next_offset, page.head, page.records)
        )

    async def _offer(self, batch: EncodedBatch) -> None:
        """Offer a batch to all watchers, in several turns of the event loop.

        A watcher that joins meanwhile is already past the batch: `next_offset` was moved before.
        """
        watchers = tuple(self._watchers)
        for start in range(0, len(watchers), OFFERS_MAX):
            for watcher in watchers[start : start + OFFERS_MAX]:
                watcher.offer(batch)
            await asyncio.sleep(0)

    def _drop_all(self) -> None:
        """Have all watchers read for themselves: queued batches no longer match the log."""
        for watcher in tuple(self._watchers):
            watcher.fall_behind()

    def _end(self, error: MillstreamError) -> None:
        self.is_ended = True
        for watcher in tuple(self._watchers):
            watcher.end(error)


class PartitionFeeds:
    """The feeds of a node: one for each watched partition."""

    def __init__(self, counters: LiveCounters) -> None:
        self._counters = counters
        self._feeds: dict[ReadablePartition, PartitionFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, partition: ReadablePartition, watcher: FeedWatcher) -> PartitionFeed:
        """Return the feed of an open partition, with one more watcher."""
        feed = self._feeds.get(partition)
        if feed is None or feed.is_ended:
            feed = self._feeds[partition] = PartitionFeed(partition, self._counters)
        feed.add(watcher)
        return feed

    def leave(self, feed: PartitionFeed, watcher: FeedWatcher) -> None:
        """Remove a watcher from a feed; a feed without watchers ends."""
        if feed.remove(watcher):
            return
        feed.close()
        if self._feeds.get(feed.partition) is feed:
            del self._feeds[feed.partition]
