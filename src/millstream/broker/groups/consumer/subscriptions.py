"""The subscriptions of a consumer group, and the topics and partitions that they match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from uuid import UUID

from xxhash import xxh3_128_hexdigest

from millstream.broker.groups.consumer.assignors import DEFAULT_ASSIGNOR
from millstream.broker.groups.consumer.member import ConsumerMember
from millstream.broker.groups.consumer.topic_pattern import TopicPattern


@dataclass(frozen=True, slots=True)
class TopicImage:
    """The properties of a topic that a group needs."""

    id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """All topics at one moment. Another moment has another revision."""

    revision: int
    topics: Mapping[str, TopicImage]


class GroupSubscriptions:
    """The subscriptions of all members together.

    They are counted as members join, change and leave, and matched with the existing topics by
    `resolve`, if either has changed.
    """

    def __init__(self) -> None:
        self.partition_counts: dict[UUID, int] = {}
        """Partition counts of the topics that a member subscribes to, as `resolve` found them."""

        self.fingerprint = ""
        """Identifies an outcome of `resolve`, even after a restart."""

        self._names: Counter[str] = Counter()
        self._regexes: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        self._patterns: dict[str, TopicPattern] = {}
        self._selected: dict[str, AbstractSet[str]] = {}
        self._catalog = TopicsImage(-1, {})
        self._topics_of: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        self._is_stale = True

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; of equals, the first by name."""
        if not self._assignors:
            return DEFAULT_ASSIGNOR
        return min(self._assignors, key=lambda name: (-self._assignors[name], name))

    def replace(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        """Count the subscription of `new` instead of that of `old`."""
        if old is not None and new is not None and old.subscription == new.subscription:
            return
        if old is not None:
            self._count(old, -1)
        if new is not None:
            self._count(new, 1)
        self._is_stale = True

    def includes(self, topic_name: str) -> bool:
        """Return whether a member subscribes to the topic."""
        return topic_name in self._names or any(
            pattern.matches(topic_name) for pattern in self._patterns.values()
        )

    def resolve(self, catalog: TopicsImage) -> bool:
        """Match subscriptions with the topics of `catalog`; returns whether the outcome changed."""
        if catalog.revision == self._catalog.revision and not self._is_stale:
            return False
        if catalog.revision != self._catalog.revision:
            self._catalog = catalog
            self._selected.clear()
        self._topics_of.clear()
        self._is_stale = False
        names = catalog.topics.keys()
        for regex in self._patterns.keys() - self._selected.keys():
            self._selected[regex] = self._patterns[regex].select(names)
        wanted = (names & self._names.keys()).union(*self._selected.values())
        images = [(name, catalog.topics[name]) for name in sorted(wanted)]
        self.partition_counts = {image.id: image.partition_count for _, image in images}
        before, self.fingerprint = self.fingerprint, _fingerprint(images)
        return self.fingerprint != before

    def topics_of(self, member: ConsumerMember) -> frozenset[UUID]:
        """Return the topics that the member subscribes to, of those that `resolve` found."""
        key = (member.topic_names, member.topic_regex)
        if (topic_ids := self._topics_of.get(key)) is None:
            topics = self._catalog.topics
            names = topics.keys() & member.topic_names
            names |= self._selected.get(member.topic_regex, frozenset())
            topic_ids = self._topics_of[key] = frozenset(topics[name].id for name in names)
        return topic_ids

    def _count(self, member: ConsumerMember, by: int) -> None:
        for name in member.topic_names:
            _add(self._names, name, by)
        if member.assignor is not None:
            _add(self._assignors, member.assignor, by)
        if regex := member.topic_regex:
            _add(self._regexes, regex, by)
            if regex not in self._regexes:
                del self._patterns[regex]
                self._selected.pop(regex, None)
            elif regex not in self._patterns:
                self._patterns[regex] = TopicPattern(regex)


def _add(counter: Counter[str], name: str, by: int) -> None:
    counter[name] += by
    if counter[name] == 0:
        del counter[name]


def _fingerprint(images: list[tuple[str, TopicImage]]) -> str:
    text = "\n".join(f"{name} {image.id.hex} {image.partition_count}" for name, image in images)
    return xxh3_128_hexdigest(text.encode())
