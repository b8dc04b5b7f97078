"""A subscriber: one connection and the events that it is sent.

    subscriptions with work ──► next_event ──► one event at a time

At most `live_bytes_max` bytes wait for it: a subscription whose batch does not fit catches up from
the log instead, as fast as the connection takes events. Others are not affected. While the client
exceeds a quota, no records are sent, as if the connection were slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_page import RecordPage, read_page
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.topic import Topic
from millstream.errors import (
    DamagedRecords,
    MillstreamError,
    NotLeader,
    OffsetOutOfRange,
    PeerUnavailable,
    RecordsInRepair,
    Stopping,
    TierUnavailable,
    UnknownTopic,
)
from millstream.protocols.http.live import EndData, GapData, LagData
from millstream.records.record import DAMAGED, Gap
from millstream.servers.http.live.encoded_batch import EncodedBatch, coalesce
from millstream.servers.http.live.partition_feed import (
    READ_BYTES_MAX,
    READ_RECORDS_MAX,
    RETRY_SECONDS,
)
from millstream.servers.http.live.partition_subscription import PartitionSubscription
from millstream.servers.http.live.start_position import (
    PartitionStart,
    check_partition_count,
    partitions_of,
)
from millstream.servers.http.routing.throttle import Throttle
from millstream.servers.http.routing.usage import ClientUsage

if TYPE_CHECKING:
    from millstream.servers.http.live.live_delivery import LiveDelivery

logger = logging.getLogger(__name__)

RECORDS = "records"
DELETED, STOPPING, FAILED, TOO_MANY = "deleted", "stopping", "failed", "limit"
DENIED = "denied"


class LiveEvent(NamedTuple):
    """One event for a subscriber."""

    kind: str
    data: bytes
    """A JSON object."""
    cursor: bytes | None = None
    """The cursor after this event; `None` if it is unchanged."""


class LiveSubscriber:
    """The subscriptions and pending events of one connection."""

    def __init__(
        self,
        live: LiveDelivery,
        *,
        is_lasting: bool,
        usage: ClientUsage,
        caller: Caller = NOBODY,
    ) -> None:
        self._live = live
        self.caller = caller
        """Whose rights end its subscriptions; nobody's, if something else does that."""
        self.usage = usage
        self._throttle = Throttle(usage, live.timers, self._wake)
        self._is_lasting = is_lasting
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[ReadablePartition, PartitionSubscription] = {}
        self._ready: deque[PartitionSubscription] = deque()
        """Seats with something to do, each once, served in turn."""
        self._notices: deque[LiveEvent] = deque()
        self._woken: asyncio.Future[None] | None = None
        self._is_silent = False
        """Whether it is time for a heartbeat."""
        self.queued_bytes = 0
        self.is_over = False
        """Whether nothing follows the events that are queued now."""

    # Topics.

    @property
    def topics(self) -> Sequence[Topic]:
        """Return the topics that it follows."""
        return tuple(self._topics.values())

    @property
    def subscriptions(self) -> Sequence[PartitionSubscription]:
        """Return its subscriptions to partitions of these topics."""
        return tuple(self._subscriptions.values())

    @property
    def cursor(self) -> bytes:
        """Return the cursor over all partitions that it follows."""
        return b",".join([subscription.cursor for subscription in self._subscriptions.values()])

    def follow(
        self, topic: Topic, starts: dict[ReadablePartition, PartitionStart], excluded: bytes | None
    ) -> None:
        """Follow a topic from a start for each of its partitions, which are open."""
        self.unfollow(topic.name)
        self._topics[topic.name] = topic
        for partition, start in starts.items():
            subscription = self._subscriptions[partition] = PartitionSubscription(
                self, partition, start, excluded
            )
            self._join(subscription)
            self.enqueue(subscription)
        self.grow(topic)

    def grow(self, topic: Topic) -> None:
        """Follow new partitions of a topic from their start."""
        partitions = partitions_of(topic)
        known = [
            self._subscriptions[partition]
            for partition in partitions
            if partition in self._subscriptions
        ]
        new = [partition for partition in partitions if partition not in self._subscriptions]
        try:
            check_partition_count([*self._subscriptions, *new])
        except MillstreamError:
            self.end_topic(topic, TOO_MANY)
            return
        for partition in new:
            subscription = PartitionSubscription(
                self, partition, PartitionStart(0), known[0].excluded if known else None
            )
            self._subscriptions[partition] = subscription
            self.enqueue(subscription)

    def unfollow(self, name: str) -> bool:
        """Stop following a topic; return whether it was followed."""
        topic = self._topics.pop(name, None)
        if topic is None:
            return False
        for partition in partitions_of(topic):
            subscription = self._subscriptions.pop(partition, None)
            if subscription is not None:
                self._leave(subscription)
        return True

    def end_topic(self, topic: Topic, reason: str) -> None:
        """Stop following a topic, and send the reason."""
        if self._topics.get(topic.name) is topic:
            self.unfollow(topic.name)
            self._notices.append(LiveEvent("end", end_data(topic.name, reason)))
            self.is_over |= not (self._is_lasting or self._topics)
            self._wake()

    def note_failure(self, subscription: PartitionSubscription, error: MillstreamError) -> None:
        """End the topic of a partition that cannot be read any more."""
        topic = self._topics.get(subscription.partition.topic)
        if topic is None or subscription.partition not in self._subscriptions:
            return
        if isinstance(error, UnknownTopic):
            self.end_topic(topic, DELETED)
        elif isinstance(error, Stopping):
            self.end_topic(topic, STOPPING)
        else:
            logger.error("%s cannot be watched any more: %s", subscription.partition, error)
            self.end_topic(topic, FAILED)

    def stop(self) -> None:
        """End all topics and then the connection, because the node stops."""
        for topic in self.topics:
            self.end_topic(topic, STOPPING)
        self.is_over = True
        self._wake()

    def close(self) -> None:
        """Stop following all topics."""
        for topic in self.topics:
            self.unfollow(topic.name)
        self.is_over = True
        self._throttle.close()
        self._wake()

    # Work.

    @property
    def room(self) -> int | None:
        """Return how many more bytes may be queued; `None` if nothing is."""
        return self._live.bytes_max - self.queued_bytes if self.queued_bytes else None

    def enqueue(self, subscription: PartitionSubscription) -> None:
        """Queue a subscription that has work."""
        if not subscription.is_queued:
            subscription.is_queued = True
            self._ready.append(subscription)
            self._wake()

    def tell(self, event: LiveEvent) -> None:
        """Queue an event that is not about a partition."""
        self._notices.append(event)
        self._wake()

    def beat(self) -> None:
        """Send a heartbeat if there is nothing else to send."""
        self._is_silent = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # Events.

    async def next_event(self) -> LiveEvent | None:
        """Return the next event, waiting for it; `None` when no more follow."""
        while True:
            if self._notices:
                return self._notices.popleft()
            if self.is_over:
                return None
            if self._ready and not self._throttle.is_held():
                event = await self._serve(self._ready.popleft())
                if event is not None:
                    return event
            elif self._is_silent:
                self._is_silent = False
                return self.heartbeat()
            else:
                self._woken = asyncio.get_running_loop().create_future()
                await self._woken
                self._woken = None

    def note_sent(self, event: LiveEvent, size: int) -> None:
        """Note the size of an event that was sent; records are charged to the quota."""
        if event.kind == RECORDS:
            self.usage.charge(QuotaKind.CONSUME, size)
            self.usage.settle()

    def heartbeat(self) -> LiveEvent:
        """Return an event with the cursor only."""
        return LiveEvent("heartbeat", b"{}", self.cursor)

    async def _serve(self, subscription: PartitionSubscription) -> LiveEvent | None:
        """Return the next event of a subscription, and queue it again if it has more work."""
        subscription.is_queued = False
        if subscription.partition not in self._subscriptions:
            return None
        event = (
            self._recreated_event(subscription)
            or self._lag_event(subscription)
            or self._tail_event(subscription)
        )
        if event is None and not subscription.is_at_tail:
            event = await self._catch_up(subscription)
        if (
            self._subscriptions.get(subscription.partition) is subscription
            and subscription.progress.has_work
        ):
            self.enqueue(subscription)
        return event

    def _recreated_event(self, subscription: PartitionSubscription) -> LiveEvent | None:
        gap = subscription.progress.take_recreated()
        return None if gap is None else self._gap_event(subscription, gap)

    def _lag_event(self, subscription: PartitionSubscription) -> LiveEvent | None:
        lag, subscription.progress.lag = subscription.progress.lag, None
        if lag is None:
            return None
        self._live.counters.lags += 1
        partition = subscription.partition
        data = LagData(
            topic=partition.topic,
            partition=partition.index,
            from_=lag.from_offset,
            to=lag.to_offset,
        )
        return LiveEvent("lagged", _encode(data))

    def _tail_event(self, subscription: PartitionSubscription) -> LiveEvent | None:
        batches = subscription.take()
        data = coalesce(batches, subscription.excluded) if batches else None
        return None if data is None else LiveEvent(RECORDS, data, self.cursor)

    async def _catch_up(self, subscription: PartitionSubscription) -> LiveEvent | None:
        """Read the next records for a subscription, or let it join its feed if there are none."""
        try:
            return await self._read(subscription)
        except (NotLeader, PeerUnavailable, RecordsInRepair, TierUnavailable):
            # Another node has the records, and is not there now, or this one is copying them.
            await asyncio.sleep(RETRY_SECONDS)
            return None
        except MillstreamError as error:
            self.note_failure(subscription, error)
            return None

    async def _read(self, subscription: PartitionSubscription) -> LiveEvent | None:
        partition, progress = subscription.partition, subscription.progress
        if subscription.feed is None or subscription.feed.is_ended:
            await partition.open()
            self._join(subscription)
        feed = subscription.feed
        assert feed is not None
        if progress.join(feed.next_offset):
            return None
        self._live.counters.catch_ups += 1
        await asyncio.sleep(0)  # Yield to other tasks, however much there is to catch up.
        try:
            found = await read_page(
                partition, progress.next_offset, limit=READ_RECORDS_MAX, size_max=READ_BYTES_MAX
            )
        except OffsetOutOfRange:
            if progress.next_offset > partition.high_watermark:
                raise
            return None  # Retention deleted it between two reads: the next page begins with a gap.
        except DamagedRecords as damage:
            # An error would end the stream, and its client would come back to the same place.
            gap = Gap(progress.next_offset, damage.to_offset, DAMAGED)
            found = RecordPage((), damage.to_offset + 1, partition.high_watermark, gap)
        if self._subscriptions.get(partition) is not subscription:
            return None
        first_offset = progress.next_offset
        page = progress.advance(found, feed.next_offset)
        if page.gap is not None:
            return self._gap_event(subscription, page.gap)
        batch = EncodedBatch(feed.prefix, first_offset, page.next_offset, page.head, page.records)
        data = coalesce([batch], subscription.excluded)
        return None if data is None else LiveEvent(RECORDS, data, self.cursor)

    def _gap_event(self, subscription: PartitionSubscription, gap: Gap) -> LiveEvent:
        self._live.counters.gaps += 1
        partition = subscription.partition
        data = GapData(
            topic=partition.topic,
            partition=partition.index,
            from_=gap.from_offset,
            to=gap.to_offset,
            reason=gap.reason,
        )
        return LiveEvent("gap", _encode(data), self.cursor)

    # Feeds.

    def _join(self, subscription: PartitionSubscription) -> None:
        """Join the feed of the partition. Batches are taken once the subscription has caught up."""
        if subscription.feed is not None:
            self._live.feeds.leave(subscription.feed, subscription)
        subscription.feed = self._live.feeds.join(subscription.partition, subscription)
        subscription.progress.join(subscription.feed.next_offset)

    def _leave(self, subscription: PartitionSubscription) -> None:
        self.queued_bytes -= subscription.progress.queued_bytes
        subscription.progress.fall_behind()
        if subscription.feed is not None:
            self._live.feeds.leave(subscription.feed, subscription)
            subscription.feed = None


def end_data(topic: str, reason: str) -> bytes:
    """Return the data of the event that ends a topic."""
    return _encode(EndData(topic=topic, reason=reason))


def _encode(data: msgspec.Struct) -> bytes:
    return msgspec.json.encode(data)
