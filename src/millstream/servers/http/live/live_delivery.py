"""Live delivery of a node: who watches what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.broker.broker import Broker
from millstream.broker.topics.topic import TopicChange, TopicEvent
from millstream.clock import Timers
from millstream.config.schema import HttpConfig
from millstream.servers.http.live.counters import LiveCounters
from millstream.servers.http.live.partition_feed import PartitionFeeds
from millstream.servers.http.live.start_position import StartPosition, check_partition_count
from millstream.servers.http.live.subscriber import DELETED, LiveSubscriber
from millstream.servers.http.routing.usage import ClientUsage


class LiveDelivery:
    """All subscribers of a node, and the feeds that they share. One event loop owns it."""

    def __init__(self, broker: Broker, config: HttpConfig) -> None:
        self.counters = LiveCounters()
        self.feeds = PartitionFeeds(self.counters)
        self.bytes_max = config.live_bytes_max
        self._broker = broker
        self._subscribers: dict[LiveSubscriber, None] = {}
        self._end_changes: Callable[[], None] | None = None

    @property
    def subscribers(self) -> Sequence[LiveSubscriber]:
        """All connections there are, whatever they watch."""
        return tuple(self._subscribers)

    @property
    def timers(self) -> Timers:
        """Who calls back when time has passed."""
        return self._broker.timers

    def enter(self, *, is_lasting: bool, usage: ClientUsage) -> LiveSubscriber:
        """Return a new subscriber, which follows nothing yet.

        One that is lasting goes on, though all its topics end. What it is sent is charged to
        `usage`.
        """
        if self._end_changes is None:
            self._end_changes = self._broker.topics.on_change(self._note_change)
        subscriber = LiveSubscriber(self, is_lasting=is_lasting, usage=usage)
        self._subscribers[subscriber] = None
        return subscriber

    def leave(self, subscriber: LiveSubscriber) -> None:
        """Forget a subscriber, and what it follows."""
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
        """Have a subscriber follow topics: all of them, or none where that raises."""
        topics = [self._broker.topics.get(name) for name in dict.fromkeys(names)]
        others = [one for one in subscriber.topics if one.name not in names]
        starts = await beginning.starts(topics)
        # A topic that was deleted meanwhile is gone, and nobody would tell of its end.
        for topic in topics:
            self._broker.topics.by_id(topic.id)
        check_partition_count(one for topic in [*topics, *others] for one in topic.partitions)
        for topic, offsets in starts.items():
            subscriber.follow(topic, offsets, None if excluded is None else excluded.encode())

    def _note_change(self, change: TopicChange) -> None:
        for subscriber in tuple(self._subscribers):
            if change.topic in subscriber.topics:
                if change.event is TopicEvent.DELETED:
                    subscriber.end_topic(change.topic, DELETED)
                elif change.event is TopicEvent.GROWN:
                    subscriber.grow(change.topic)
