"""Numbers of topics, for clients that name topics by a small number instead of name or id.

    topic-numbers/last              the last number that was given
    topic-numbers/of/<number>       the topic that it was given to

A topic gets its number when such a client first asks for it, and keeps it. Numbers are counted up
and never given again: one that was given and belongs to no topic is that of a deleted one. In a
cluster all nodes share them; of two that give a number at the same time, one tries again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from millstream.broker.topics.topic import Topic, TopicChange, TopicEvent
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock
from millstream.errors import CorruptFile, Unavailable, UnknownFormat, UnknownTopic, UnknownTopicId
from millstream.metadata.interface import ABSENT, Compare, Metadata, MetadataChange

PREFIX = "topic-numbers/"
LAST_KEY = f"{PREFIX}last"
ROWS_PREFIX = f"{PREFIX}of/"
ROW_VERSION = 1

NUMBER_MAX = 2**32 - 1
DEFAULT_NUMBER = 0
"""The number that clients use for the topic that the node calls the default. It is never given."""

BATCH_MAX = 50
"""Numbers that are given in one transaction; etcd allows 128 operations."""

TRIES_MAX = 10
"""How often numbers are tried to be given while other nodes give some too."""


class NumberRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of a number."""

    version: int = ROW_VERSION
    topic: str
    topic_id: uuid.UUID
    given_ms: int
    """When it was given: for a topic that such a client created, when that was."""


class _LastRow(msgspec.Struct, frozen=True, kw_only=True):
    version: int = ROW_VERSION
    last: int


R = TypeVar("R", NumberRow, _LastRow)


class NumberedTopic(NamedTuple):
    """A topic with its number."""

    number: int
    topic: Topic
    given_ms: int


class TopicNumbers:
    """The numbers of all topics. Made on first use: a node without such clients has none."""

    def __init__(self, metadata: Metadata, topics: Topics, clock: Clock) -> None:
        self._metadata = metadata
        self._topics = topics
        self._clock = clock
        self._rows: dict[int, NumberRow] = {}
        self._numbers: dict[uuid.UUID, int] = {}
        self._last = 0
        self._last_revision = ABSENT
        self._lock = asyncio.Lock()
        self._watch = metadata.watch(PREFIX, self._on_change)
        self._unwatch_topics = topics.on_change(self._on_topic_change)

    async def open(self) -> None:
        """Load the numbers, and forget those of topics that are deleted."""
        for entry in await self._metadata.list(PREFIX):
            self._apply(entry.key, entry.value, entry.revision)
        for number, row in list(self._rows.items()):
            if await self._topics.is_deleted(row.topic, row.topic_id):
                await self.forget(number)

    def close(self) -> None:
        """Stop following changes."""
        self._watch.cancel()
        unwatch, self._unwatch_topics = self._unwatch_topics, _nothing
        unwatch()

    # Looking up.

    def find(self, number: int) -> NumberedTopic:
        """Return the topic with a number.

        Raises `UnknownTopic` if the number was never given, `UnknownTopicId` if the topic was
        deleted.
        """
        row = self._rows.get(number)
        if row is not None:
            try:
                return NumberedTopic(number, self._topics.by_id(row.topic_id), row.given_ms)
            except UnknownTopicId:
                pass
        raise self.unknown(number)

    def unknown(self, number: int) -> UnknownTopic | UnknownTopicId:
        """Return the error for a number that belongs to no topic."""
        if DEFAULT_NUMBER < number <= self._last:
            return UnknownTopicId(f"the topic with number {number} was deleted")
        return UnknownTopic(f"there is no topic with number {number}")

    # Giving.

    async def numbered(self, topic: Topic) -> NumberedTopic:
        """Return a topic with its number, which is given to it if it has none."""
        [found] = await self.all_numbered([topic])
        return found

    async def all_numbered(self, topics: Iterable[Topic]) -> list[NumberedTopic]:
        """Return topics with their numbers; without those that are deleted meanwhile."""
        listed = list(topics)
        if any(topic.id not in self._numbers for topic in listed):
            async with self._lock:
                missing = [topic for topic in listed if topic.id not in self._numbers]
                for start in range(0, len(missing), BATCH_MAX):
                    await self._give(missing[start : start + BATCH_MAX])
        found = []
        for topic in listed:
            number = self._numbers.get(topic.id)
            if number is not None:
                found.append(NumberedTopic(number, topic, self._rows[number].given_ms))
        return found

    async def _give(self, topics: list[Topic]) -> None:
        """Give numbers to topics that have none, durably."""
        for _ in range(TRIES_MAX):
            missing = [topic for topic in topics if topic.id not in self._numbers]
            if not missing:
                return
            last = self._last + len(missing)
            if last > NUMBER_MAX:
                raise Unavailable(f"all {NUMBER_MAX} numbers of topics were given")
            rows = {
                number: NumberRow(
                    topic=topic.name, topic_id=topic.id, given_ms=self._clock.wall_ms()
                )
                for number, topic in enumerate(missing, self._last + 1)
            }
            puts = {row_key(number): msgspec.json.encode(row) for number, row in rows.items()}
            puts[LAST_KEY] = msgspec.json.encode(_LastRow(last=last))
            revision = await self._metadata.transact(
                compares=[Compare(LAST_KEY, self._last_revision)], puts=puts
            )
            if revision is None:  # Another node was faster: learn what it gave.
                for entry in await self._metadata.list(PREFIX):
                    self._apply(entry.key, entry.value, entry.revision)
                continue
            for key, value in puts.items():
                self._apply(key, value, revision)
            return
        raise Unavailable("other nodes give numbers to topics at the same time; try again")

    async def forget(self, number: int) -> None:
        """Remove the row of a deleted topic. Its number is not given again."""
        await self._metadata.transact(deletes=[row_key(number)])
        self._remove(number)

    def _on_topic_change(self, change: TopicChange) -> None:
        # The row is removed when the topic is deleted through this protocol, or at the next start.
        if change.event is TopicEvent.DELETED:
            self._numbers.pop(change.topic.id, None)

    # Following.

    def _on_change(self, change: MetadataChange) -> None:
        self._apply(change.key, change.value, change.revision)

    def _apply(self, key: str, value: bytes | None, revision: int) -> None:
        if key == LAST_KEY:
            if value is not None and revision > self._last_revision:
                self._last, self._last_revision = _decode(key, value, _LastRow).last, revision
            return
        number = int(key.removeprefix(ROWS_PREFIX))
        if value is None:
            self._remove(number)
            return
        row = self._rows[number] = _decode(key, value, NumberRow)
        self._numbers[row.topic_id] = number

    def _remove(self, number: int) -> None:
        row = self._rows.pop(number, None)
        if row is not None and self._numbers.get(row.topic_id) == number:
            del self._numbers[row.topic_id]


def _nothing() -> None:
    """Do nothing: it was done."""


def row_key(number: int) -> str:
    """Return the key of the row of a number."""
    return f"{ROWS_PREFIX}{number:010}"


def _decode(key: str, value: bytes, kind: type[R]) -> R:
    try:
        row = msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{key} is not a valid number of a topic: {error}") from error
    if row.version != ROW_VERSION:
        raise UnknownFormat(f"{key} has version {row.version}, expected {ROW_VERSION}")
    return row
