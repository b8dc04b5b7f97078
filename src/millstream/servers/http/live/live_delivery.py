"""Live delivery of a node: all subscribers and the feeds that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.resources import Operation, Resource, ResourceType
from millstream.broker.broker import Broker
from millstream.broker.topics.topic import TopicChange, TopicEvent
from millstream.clock import Timers
from millstream.config.schema import HttpConfig
from millstream.servers.http.live.counters import LiveCounters
from millstream.servers.http.live.partition_feed import PartitionFeeds
from millstream.servers.http.live.start_position import (
    StartPosition,
    check_partition_count,
    partitions_of,
)
from millstream.servers.http.live.subscriber import DELETED, DENIED, LiveSubscriber
from millstream.servers.http.routing.usage import ClientUsage


class LiveDelivery:
    """All subscribers of a node, and their feeds. Used on one event loop only."""

    def __init__(self, broker: Broker, config: HttpConfig) -> None:
        self.counters = LiveCounters()
        self.feeds = PartitionFeeds(self.counters)
        self.bytes_max = config.live_bytes_max
        self._broker = broker
        self._subscribers: dict[LiveSubscriber, None] = {}
        self._end_changes: Callable[[], None] | None = None
        if broker.access is not None:
            broker.access.on_change.append(self._check_rights)

    @property
    def subscribers(self) -> Sequence[LiveSubscriber]:
        """Return the subscribers of all connections."""
        return tuple(self._subscribers)

    @property
    def timers(self) -> Timers:
        """Return the timers of the broker."""
        return self._broker.timers

    def enter(
        self, *, is_lasting: bool, usage: ClientUsage, caller: Caller = NOBODY
    ) -> LiveSubscriber:
        """Return a new subscriber, which follows nothing yet.

        If `is_lasting`, it stays when all its topics have ended. Its records are charged to
        `usage`.
        """
        if self._end_changes is None:
            self._end_changes = self._broker.topics.on_change(self._note_change)
        subscriber = LiveSubscriber(self, is_lasting=is_lasting, usage=usage, caller=caller)
        self._subscribers[subscriber] = None
        return subscriber

    def leave(self, subscriber: LiveSubscriber) -> None:
        """Remove a subscriber."""
        subscriber.close()
        self._subscribers.pop(subscriber, None)
        if not self._subscribers and self._end_changes is not None:
            self._end_changes()
            self._end_changes = None

    async def follow(
        self,
        subscriber: LiveSubscriber,
        names: Sequence[str],
        beginning: StartPosition,
        excluded: str | None,
    ) -> None:
        """Have a subscriber follow topics: all of them, or none if this raises."""
        topics = [self._broker.topics.get(name) for name in dict.fromkeys(names)]
        others = [topic for topic in subscriber.topics if topic.name not in names]
        starts = await beginning.starts(topics)
        # Raises for a topic that was deleted meanwhile: its end would not be reported.
        for topic in topics:
            self._broker.topics.by_id(topic.id)
        check_partition_count(
            partition for topic in [*topics, *others] for partition in partitions_of(topic)
        )
        for topic, offsets in starts.items():
            subscriber.follow(topic, offsets, None if excluded is None else excluded.encode())

    def _check_rights(self) -> None:
        """End the subscriptions that callers may not have any more, and connections without login.

        Event streams are cut off as requests are; this is for those that last.
        """
        access = self._broker.access
        assert access is not None, "it was watched"
        for subscriber in tuple(self._subscribers):
            caller = subscriber.caller
            if caller is NOBODY:
                continue
            for topic in subscriber.topics:
                resource = Resource(ResourceType.TOPIC, topic.name)
                if not access.check(caller, Operation.READ, resource):
                    subscriber.end_topic(topic, DENIED)
            if not access.is_current(caller):
                access.counters.cut_off += 1
                subscriber.close()

    def _note_change(self, change: TopicChange) -> None:
        for subscriber in tuple(self._subscribers):
            if change.topic in subscriber.topics:
                if change.event is TopicEvent.DELETED:
                    subscriber.end_topic(change.topic, DELETED)
                elif change.event is TopicEvent.GROWN:
                    subscriber.grow(change.topic)
