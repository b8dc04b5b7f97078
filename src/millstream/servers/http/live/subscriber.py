"""A subscriber: one connection, and what it is to be sent next.

    seats with something to do ──► next_event ──► one event at a time

It never has more than `live_bytes_max` waiting: a seat whose burst does not fit catches up from the
log instead, at the pace at which the connection takes events. Nobody else notices. While its client
owes what a quota does not allow it, no records are sent, and it is as if the connection were slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import read_page
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.topic import Topic
from millstream.errors import MillstreamError, OffsetOutOfRange, Stopping, UnknownTopic
from millstream.protocols.http.live import EndData, GapData, LagData
from millstream.records.record import Gap
from millstream.servers.http.live.encoded_batch import EncodedBatch, coalesce
from millstream.servers.http.live.partition_feed import READ_BYTES_MAX, READ_RECORDS_MAX
from millstream.servers.http.live.partition_subscription import PartitionSubscription
from millstream.servers.http.live.start_position import check_partition_count
from millstream.servers.http.routing.throttle import Throttle
from millstream.servers.http.routing.usage import ClientUsage

if TYPE_CHECKING:
    from millstream.servers.http.live.live_delivery import LiveDelivery

logger = logging.getLogger(__name__)

RECORDS = "records"
DELETED, STOPPING, FAILED, TOO_MANY = "deleted", "stopping", "failed", "limit"


class LiveEvent(NamedTuple):
    """One thing that a subscriber is told."""

    kind: str
    data: bytes
    """A JSON object."""
    cursor: bytes | None = None
    """Where the subscriber stands once it has this; `None` where that is as before."""


class LiveSubscriber:
    """What one connection is told."""

    def __init__(self, live: LiveDelivery, *, is_lasting: bool, usage: ClientUsage) -> None:
        self._live = live
        self._usage = usage
        self._holding = Throttle(usage, live.timers, self._wake)
        self._is_lasting = is_lasting
        self._topics: dict[str, Topic] = {}
        self._seats: dict[Partition, PartitionSubscription] = {}
        self._row: deque[PartitionSubscription] = deque()
        """Seats with something to do, each once, served in turn."""
        self._notices: deque[LiveEvent] = deque()
        self._woken: asyncio.Future[None] | None = None
        self._is_silent = False
        """Whether it is time for a heartbeat."""
        self.queued_bytes = 0
        self.is_over = False
        """Whether nothing comes any more, save what is to be told by now."""

    # What it follows.

    @property
    def topics(self) -> Sequence[Topic]:
        """The topics that it follows."""
        return tuple(self._topics.values())

    @property
    def seats(self) -> Sequence[PartitionSubscription]:
        """Where it stands in each of their partitions."""
        return tuple(self._seats.values())

    @property
    def cursor(self) -> bytes:
        """Where it stands, over all that it follows."""
        return b",".join([seat.cursor for seat in self._seats.values()])

    def follow(self, topic: Topic, starts: dict[Partition, int], excluded: bytes | None) -> None:
        """Follow a topic, from an offset for each of its partitions, which are open."""
        self.unfollow(topic.name)
        self._topics[topic.name] = topic
        for partition, next_offset in starts.items():
            seat = self._seats[partition] = PartitionSubscription(
                self, partition, next_offset, excluded
            )
            self._join(seat)
            self.list_seat(seat)
        self.grow(topic)

    def grow(self, topic: Topic) -> None:
        """Follow partitions that a topic has and that are not followed yet, from their start."""
        known = [self._seats[one] for one in topic.partitions if one in self._seats]
        new = [one for one in topic.partitions if one not in self._seats]
        try:
            check_partition_count([*self._seats, *new])
        except MillstreamError:
            self.end_topic(topic, TOO_MANY)
            return
        for partition in new:
            seat = PartitionSubscription(self, partition, 0, known[0].excluded if known else None)
            self._seats[partition] = seat
            self.list_seat(seat)

    def unfollow(self, name: str) -> bool:
        """Follow a topic no more; returns whether it was followed."""
        topic = self._topics.pop(name, None)
        if topic is None:
            return False
        for partition in topic.partitions:
            seat = self._seats.pop(partition, None)
            if seat is not None:
                self._leave(seat)
        return True

    def end_topic(self, topic: Topic, reason: str) -> None:
        """Follow a topic no more, and say why."""
        if self._topics.get(topic.name) is topic:
            self.unfollow(topic.name)
            self._notices.append(
                LiveEvent("end", _encode(EndData(topic=topic.name, reason=reason)))
            )
            self.is_over |= not (self._is_lasting or self._topics)
            self._wake()

    def note_failure(self, seat: PartitionSubscription, error: MillstreamError) -> None:
        """Take note that a partition cannot be read any more."""
        topic = self._topics.get(seat.partition.topic)
        if topic is None or seat.partition not in self._seats:
            return
        if isinstance(error, UnknownTopic):
            self.end_topic(topic, DELETED)
        elif isinstance(error, Stopping):
            self.end_topic(topic, STOPPING)
        else:
            logger.error("%s cannot be watched any more: %s", seat.partition, error)
            self.end_topic(topic, FAILED)

    def stop(self) -> None:
        """Take note that the node stops: every topic ends, and then the connection."""
        for topic in self.topics:
            self.end_topic(topic, STOPPING)
        self.is_over = True
        self._wake()

    def close(self) -> None:
        """Follow nothing any more."""
        for topic in self.topics:
            self.unfollow(topic.name)
        self.is_over = True
        self._holding.close()
        self._wake()

    # What is to be done.

    @property
    def room(self) -> int | None:
        """How many bytes may wait beside those that do; `None` where nothing does."""
        return self._live.bytes_max - self.queued_bytes if self.queued_bytes else None

    def list_seat(self, seat: PartitionSubscription) -> None:
        """Take note that a seat has something to do."""
        if not seat.is_listed:
            seat.is_listed = True
            self._row.append(seat)
            self._wake()

    def tell(self, event: LiveEvent) -> None:
        """Have it told something that is not about a partition."""
        self._notices.append(event)
        self._wake()

    def beat(self) -> None:
        """Have it told something, though nothing happened."""
        self._is_silent = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # What it is told.

    async def next_event(self) -> LiveEvent | None:
        """Return what is to be sent next, and wait for it; `None` when nothing comes any more."""
        while True:
            if self._notices:
                return self._notices.popleft()
            if self.is_over:
                return None
            if self._row and not self._holding.is_held():
                event = await self._serve(self._row.popleft())
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
        """Take note that an event was sent, in so many bytes; records are charged for."""
        if event.kind == RECORDS:
            self._usage.charge(QuotaKind.CONSUME, size)
            self._usage.settle()

    def heartbeat(self) -> LiveEvent:
        """Return what says where it stands, and no more."""
        return LiveEvent("heartbeat", b"{}", self.cursor)

    async def _serve(self, seat: PartitionSubscription) -> LiveEvent | None:
        """Do the next thing for a seat; it stands in the row again if there is more."""
        seat.is_listed = False
        if seat.partition not in self._seats:
            return None
        event = self._lag_event(seat) or self._tail_event(seat)
        if event is None and not seat.is_at_tail:
            event = await self._catch_up(seat)
        if self._seats.get(seat.partition) is seat and seat.place.has_work:
            self.list_seat(seat)
        return event

    def _lag_event(self, seat: PartitionSubscription) -> LiveEvent | None:
        lag, seat.place.lag = seat.place.lag, None
        if lag is None:
            return None
        self._live.counters.lags += 1
        partition = seat.partition
        data = LagData(
            topic=partition.topic,
            partition=partition.index,
            from_=lag.from_offset,
            to=lag.to_offset,
        )
        return LiveEvent("lagged", _encode(data))

    def _tail_event(self, seat: PartitionSubscription) -> LiveEvent | None:
        bursts = seat.take()
        data = coalesce(bursts, seat.excluded) if bursts else None
        return None if data is None else LiveEvent(RECORDS, data, self.cursor)

    async def _catch_up(self, seat: PartitionSubscription) -> LiveEvent | None:
        """Read the next piece for a seat, or let it join its feed where there is none."""
        try:
            return await self._read(seat)
        except MillstreamError as error:
            self.note_failure(seat, error)
            return None

    async def _read(self, seat: PartitionSubscription) -> LiveEvent | None:
        partition, place = seat.partition, seat.place
        if seat.feed is None or seat.feed.is_ended:
            await partition.open()
            self._join(seat)
        feed = seat.feed
        assert feed is not None
        if place.join(feed.next_offset):
            return None
        self._live.counters.catch_ups += 1
        await asyncio.sleep(0)  # Others have a turn, however much there is to catch up.
        try:
            found = await read_page(
                partition, place.next_offset, limit=READ_RECORDS_MAX, size_max=READ_BYTES_MAX
            )
        except OffsetOutOfRange:
            if place.next_offset > partition.high_watermark:
                raise
            return None  # Retention took it between two reads: the next piece begins with a gap.
        if self._seats.get(partition) is not seat:
            return None
        first_offset = place.next_offset
        told = place.advance(found, feed.next_offset)
        if told.gap is not None:
            return self._gap_event(seat, told.gap)
        burst = EncodedBatch(feed.opening, first_offset, told.next_offset, told.head, told.records)
        data = coalesce([burst], seat.excluded)
        return None if data is None else LiveEvent(RECORDS, data, self.cursor)

    def _gap_event(self, seat: PartitionSubscription, gap: Gap) -> LiveEvent:
        self._live.counters.gaps += 1
        partition = seat.partition
        data = GapData(
            topic=partition.topic,
            partition=partition.index,
            from_=gap.from_offset,
            to=gap.to_offset,
            reason=gap.reason,
        )
        return LiveEvent("gap", _encode(data), self.cursor)

    # Feeds.

    def _join(self, seat: PartitionSubscription) -> None:
        """Have a seat offered the bursts of its partition's feed, once it has come so far."""
        if seat.feed is not None:
            self._live.feeds.leave(seat.feed, seat)
        seat.feed = self._live.feeds.join(seat.partition, seat)
        seat.place.join(seat.feed.next_offset)

    def _leave(self, seat: PartitionSubscription) -> None:
        self.queued_bytes -= seat.place.queued_bytes
        seat.place.fall_behind()
        if seat.feed is not None:
            self._live.feeds.leave(seat.feed, seat)
            seat.feed = None


def _encode(data: msgspec.Struct) -> bytes:
    return msgspec.json.encode(data)
