"""What the members of a consumer group want, and which topics and partitions that is."""

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
    """What a group has to know of a topic."""

    id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class TopicsImage:
    """All topics, as they were at some moment. Another moment has another revision."""

    revision: int
    topics: Mapping[str, TopicImage]


class GroupSubscriptions:
    """The wishes of all members together.

    They are counted as members come, change and go, and matched with the topics that there are by
    `resolve`, when either side has changed.
    """

    def __init__(self) -> None:
        self.partition_counts: dict[UUID, int] = {}
        """Partitions of each topic that someone wants, as `resolve` found them."""

        self.fingerprint = ""
        """Tells two outcomes of `resolve` apart, also over a restart."""

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
        """The strategy that most members ask for; the first by name where several are equal."""
        if not self._assignors:
            return DEFAULT_ASSIGNOR
        return min(self._assignors, key=lambda name: (-self._assignors[name], name))

    def replace(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        """Count the wishes of `new` instead of those of `old`."""
        if old is not None and new is not None and old.wishes == new.wishes:
            return
        if old is not None:
            self._count(old, -1)
        if new is not None:
            self._count(new, 1)
        self._is_stale = True

    def includes(self, topic_name: str) -> bool:
        """Whether any member wants the topic."""
        return topic_name in self._names or any(
            pattern.matches(topic_name) for pattern in self._patterns.values()
        )

    def resolve(self, catalog: TopicsImage) -> bool:
        """Find the wanted topics in `catalog`; True where the outcome is not the one before."""
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
        shapes = [(name, catalog.topics[name]) for name in sorted(wanted)]
        self.partition_counts = {shape.id: shape.partition_count for _, shape in shapes}
        before, self.fingerprint = self.fingerprint, _fingerprint(shapes)
        return self.fingerprint != before

    def topics_of(self, member: ConsumerMember) -> frozenset[UUID]:
        """The topics that the member wants, of those that `resolve` found."""
        wish = (member.topic_names, member.topic_regex)
        if (found := self._topics_of.get(wish)) is None:
            topics = self._catalog.topics
            names = topics.keys() & member.topic_names
            names |= self._selected.get(member.topic_regex, frozenset())
            found = self._topics_of[wish] = frozenset(topics[name].id for name in names)
        return found

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


def _fingerprint(shapes: list[tuple[str, TopicImage]]) -> str:
    text = "\n".join(f"{name} {shape.id.hex} {shape.partition_count}" for name, shape in shapes)
    return xxh3_128_hexdigest(text.encode())
