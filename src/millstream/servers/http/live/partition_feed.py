"""A feed: reads what is new in one partition once, for everyone who watches it.

It is woken in the middle of a commit, where it only takes note; it works in a turn of the loop of
its own. Who watches at the tail is offered the same bytes. Where nobody is at the tail, it reads
nothing: those who catch up read for themselves.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import read_page
from millstream.errors import MillstreamError, OffsetOutOfRange
from millstream.servers.http.live.counters import LiveCounters
from millstream.servers.http.live.encoded_batch import EncodedBatch, event_prefix

logger = logging.getLogger(__name__)

READ_RECORDS_MAX = 1_000
READ_BYTES_MAX = 64 * 1024
"""What is read and encoded in one go, by a feed and by who catches up: about a millisecond of the
loop with small records. One record may be larger."""


OFFERS_MAX = 25
"""Watchers that are offered a burst in one turn of the loop. What they send leaves at the end of
their turn, and others have theirs: with 25, that is some 0.3 ms."""


class FeedWatcher(Protocol):
    """Who watches one partition."""

    @property
    def is_at_tail(self) -> bool:
        """Whether it wants bursts."""
        ...

    def offer(self, burst: EncodedBatch) -> None:
        """Take note of a burst, and return: it is called for each watcher in turn."""
        ...

    def fall_behind(self) -> None:
        """Drop what waits, and read it again from the log."""
        ...

    def end(self, error: MillstreamError) -> None:
        """Take note that nothing more can be read, and why."""
        ...


class PartitionFeed:
    """What is new in a partition, for as long as somebody watches it."""

    def __init__(self, partition: Partition, counters: LiveCounters) -> None:
        """Begin at the end of an open partition."""
        self.partition = partition
        self.next_offset = partition.last_stable_offset
        """Everything before it was offered to those at the tail."""
        self.opening = event_prefix(partition.topic, partition.index)
        self._counters = counters
        self._watching: dict[FeedWatcher, None] = {}
        self._deletions = partition.reader.deletions()
        self._woken: asyncio.Future[None] | None = None
        self._is_noted = False
        self.is_ended = False
        """Whether nothing more comes of it; who watches was told."""
        partition.watch(self._note)
        counters.feeds += 1
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, watching: FeedWatcher) -> None:
        """Offer bursts to one more, where it is at the tail."""
        self._watching[watching] = None

    def remove(self, watching: FeedWatcher) -> bool:
        """Offer it nothing more; returns whether anyone is left."""
        self._watching.pop(watching, None)
        return bool(self._watching)

    def close(self) -> None:
        """Watch the partition no more."""
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
                await self._pass_on()
        except MillstreamError as error:
            self._end(error)
        except Exception:
            logger.exception("%s cannot be watched any more", self.partition)
            self._end(MillstreamError("the node cannot read this partition"))

    async def _pass_on(self) -> None:
        """Offer all that is new, burst by burst."""
        partition = self.partition
        if (deletions := partition.reader.deletions()) != self._deletions:
            self._deletions = deletions
            self._drop_all()
        while self.next_offset < (end_offset := partition.last_stable_offset):
            if not any(one.is_at_tail for one in self._watching):
                self.next_offset = end_offset
                return
            begun = self.next_offset
            await self._pass_on_burst()
            if self.next_offset == begun:
                return  # What is there cannot be had now; the next commit has it tried again.

    async def _pass_on_burst(self) -> None:
        try:
            found = await read_page(
                self.partition,
                self.next_offset,
                limit=READ_RECORDS_MAX,
                size_max=READ_BYTES_MAX,
            )
        except OffsetOutOfRange:  # Retention was faster; or the log was cut, and has less now.
            self.next_offset = self.partition.last_stable_offset
            self._drop_all()
            return
        first_offset, self.next_offset = self.next_offset, found.next_offset
        if found.gap is not None:
            self._drop_all()
            return
        self._counters.encodings += bool(found.records)
        await self._offer(
            EncodedBatch(self.opening, first_offset, found.next_offset, found.head, found.records)
        )

    async def _offer(self, burst: EncodedBatch) -> None:
        """Offer a burst to everyone, who send it while the next ones are offered it.

        Who joins meanwhile stands behind the burst already: `next_offset` has moved before.
        """
        watching = tuple(self._watching)
        for start in range(0, len(watching), OFFERS_MAX):
            for one in watching[start : start + OFFERS_MAX]:
                one.offer(burst)
            await asyncio.sleep(0)

    def _drop_all(self) -> None:
        """Have everyone read for itself: what waits is not what the log holds any more."""
        for one in tuple(self._watching):
            one.fall_behind()

    def _end(self, error: MillstreamError) -> None:
        self.is_ended = True
        for one in tuple(self._watching):
            one.end(error)


class PartitionFeeds:
    """The feeds of a node: one for each partition that somebody watches."""

    def __init__(self, counters: LiveCounters) -> None:
        self._counters = counters
        self._feeds: dict[Partition, PartitionFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def join(self, partition: Partition, watching: FeedWatcher) -> PartitionFeed:
        """Return the feed of an open partition, which offers its bursts to one more from now on."""
        feed = self._feeds.get(partition)
        if feed is None or feed.is_ended:
            feed = self._feeds[partition] = PartitionFeed(partition, self._counters)
        feed.add(watching)
        return feed

    def leave(self, feed: PartitionFeed, watching: FeedWatcher) -> None:
        """Have it offered nothing more; a feed that nobody watches ends."""
        if feed.remove(watching):
            return
        feed.close()
        if self._feeds.get(feed.partition) is feed:
            del self._feeds[feed.partition]
