"""The topics of the node, as consumer groups need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millstream.broker.groups.consumer.subscriptions import TopicImage, TopicsImage
from millstream.broker.topics.topic import Topic, TopicChange, TopicEvent


class WatchedTopics(Protocol):
    """The part of `Topics` that is used here."""

    def all(self) -> list[Topic]: ...

    def on_change(self, callback: Callable[[TopicChange], None]) -> Callable[[], None]:
        """Call `callback` after each change; returns a function that ends this."""
        ...


class TopicCatalog:
    """Keeps a `TopicsImage` of all topics, from its first use on.

    Changes are recorded as they happen; the next use of `current` builds a new `TopicsImage`.
    """

    def __init__(self, topics: WatchedTopics) -> None:
        self._topics = topics
        self._images: dict[str, TopicImage] = {}
        self._revision = 0
        self._catalog: TopicsImage | None = None
        self.close = topics.on_change(self._on_change)
        """Stops watching the topics."""

    @property
    def current(self) -> TopicsImage:
        """All topics, as they are now."""
        if self._catalog is None:
            self._images = {topic.name: _topic_image(topic) for topic in self._topics.all()}
        if self._catalog is None or self._catalog.revision != self._revision:
            self._catalog = TopicsImage(self._revision, dict(self._images))
        return self._catalog

    def _on_change(self, change: TopicChange) -> None:
        if self._catalog is None or change.event is TopicEvent.ALTERED:
            return
        if change.event is TopicEvent.DELETED:
            self._images.pop(change.topic.name, None)
        else:
            self._images[change.topic.name] = _topic_image(change.topic)
        self._revision += 1


def _topic_image(topic: Topic) -> TopicImage:
    return TopicImage(topic.id, topic.partition_count)
