"""Live delivery of a node: all subscribers and the feeds that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from millstream.servers.http.live.subscriber import DELETED, LiveSubscriber
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

    @property
    def subscribers(self) -> Sequence[LiveSubscriber]:
        """Return the subscribers of all connections."""
        return tuple(self._subscribers)

    @property
    def timers(self) -> Timers:
        """Return the timers of the broker."""
        return self._broker.timers

    def enter(self, *, is_lasting: bool, usage: ClientUsage) -> LiveSubscriber:
        """Return a new subscriber, which follows nothing yet.

        If `is_lasting`, it stays when all its topics have ended. Its records are charged to
        `usage`.
        """
        if self._end_changes is None:
            self._end_changes = self._broker.topics.on_change(self._note_change)
        subscriber = LiveSubscriber(self, is_lasting=is_lasting, usage=usage)
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

    def _note_change(self, change: TopicChange) -> None:
        for subscriber in tuple(self._subscribers):
            if change.topic in subscriber.topics:
                if change.event is TopicEvent.DELETED:
                    subscriber.end_topic(change.topic, DELETED)
                elif change.event is TopicEvent.GROWN:
                    subscriber.grow(change.topic)
