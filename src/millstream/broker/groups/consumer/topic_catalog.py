"""The topics of the node, as consumer groups need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millstream.broker.groups.consumer.subscriptions import TopicImage, TopicsImage
from millstream.broker.topics.topic import Topic, TopicChange, TopicEvent


class WatchedTopics(Protocol):
    """What is needed of `Topics` here."""

    def all(self) -> list[Topic]:
        """Return all topics."""
        ...

    def on_change(self, callback: Callable[[TopicChange], None]) -> Callable[[], None]:
        """Call back after each change; returns what ends that."""
        ...


class TopicCatalog:
    """Keeps a `TopicsImage` of all topics, from when it is first asked for.

    Changes are noted as they come; a new `TopicsImage` is made when one is asked for after that.
    """

    def __init__(self, topics: WatchedTopics) -> None:
        self._topics = topics
        self._shapes: dict[str, TopicImage] = {}
        self._revision = 0
        self._catalog: TopicsImage | None = None
        self.close = topics.on_change(self._on_change)
        """Watch the topics no longer."""

    @property
    def current(self) -> TopicsImage:
        """All topics, as they are now."""
        if self._catalog is None:
            self._shapes = {topic.name: _topic_image(topic) for topic in self._topics.all()}
        if self._catalog is None or self._catalog.revision != self._revision:
            self._catalog = TopicsImage(self._revision, dict(self._shapes))
        return self._catalog

    def _on_change(self, change: TopicChange) -> None:
        if self._catalog is None or change.event is TopicEvent.ALTERED:
            return
        if change.event is TopicEvent.DELETED:
            self._shapes.pop(change.topic.name, None)
        else:
            self._shapes[change.topic.name] = _topic_image(change.topic)
        self._revision += 1


def _topic_image(topic: Topic) -> TopicImage:
    return TopicImage(topic.id, topic.partition_count)
