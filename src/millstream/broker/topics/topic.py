"""One topic: the row that metadata has of it, what happens to it, and whose turn it is."""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from millstream.broker.topics.configs.topic_config import TopicConfig
from millstream.config.schema import LogConfig
from millstream.errors import CorruptFile, Stopping, UnknownFormat, UnknownTopic
from millstream.metadata.interface import ABSENT, MetadataEntry

if TYPE_CHECKING:
    from millstream.broker.partition.partition import Partition

T = TypeVar("T")

TOPICS_PREFIX = "topics/"

ROW_VERSION = 1

NO_ID = uuid.UUID(int=0)
"""Stands for no topic; the other reserved id, 1, is that of Kafka's own metadata."""


class TopicEvent(enum.Enum):
    """What happened to a topic."""

    CREATED = "created"
    GROWN = "grown"
    """It has more partitions."""
    ALTERED = "altered"
    """It is set to something else."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Something happened to a topic, and is durable."""

    topic: Topic
    event: TopicEvent


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a topic."""

    version: int = ROW_VERSION
    id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    state: Literal["live", "deleting"] = "live"
    """`deleting` is for ever: the topic is gone, and only its data may still be there."""


class Topic:
    """A topic: its name, its id, its partitions and what it is set to.

    Whoever holds one may ask it at any time, and must be ready for it to be gone: it grows and is
    set anew in place, and a topic made under the same name later is another object with another
    id. Only `Topics` changes it.
    """

    is_internal = False
    """No topic is: what the broker has to remember is not kept in topics."""

    def __init__(self, name: str, row: TopicRow, revision: int, config: TopicConfig) -> None:
        self.name = name
        self.config = config
        self._log_config = (config, config.log_config())
        self.partitions: list[Partition] = []
        self.row = row
        self.revision = revision
        """That of the row; `ABSENT` where the topic was only checked, and not created."""

    @property
    def id(self) -> uuid.UUID:
        """What tells it from every other topic there ever was."""
        return self.row.id

    @property
    def partition_count(self) -> int:
        """How many partitions it has, or would have."""
        return self.row.partitions

    @property
    def is_created(self) -> bool:
        """Whether it was created, and not only checked."""
        return self.revision != ABSENT

    @property
    def log_config(self) -> LogConfig:
        """What its logs are set to. Worked out once: upkeep asks for every log there is."""
        config, found = self._log_config
        if config is not self.config:
            found = self.config.log_config()
            self._log_config = (self.config, found)
        return found

    def partition(self, index: int) -> Partition:
        """Return one of its partitions; raises `UnknownTopic` where it has no such."""
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        raise UnknownTopic(
            f"{self.name} has no partition {index}, it has 0 to {len(self.partitions) - 1}"
        )


def topic_key(name: str) -> str:
    """Return the key of a topic's row."""
    return TOPICS_PREFIX + name


def encode_row(row: TopicRow) -> bytes:
    """Write a row."""
    return msgspec.json.encode(row)


def decode_row(entry: MetadataEntry) -> tuple[str, TopicRow]:
    """Return the name of a topic, and its row."""
    try:
        version = msgspec.json.decode(entry.value, type=_Versioned).version
        if version != ROW_VERSION:
            raise UnknownFormat(f"{entry.key}: found version {version}, known is {ROW_VERSION}")
        row = msgspec.json.decode(entry.value, type=TopicRow)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{entry.key} is not the row of a topic: {error}") from error
    if row.partitions < 1:
        raise CorruptFile(f"{entry.key} has {row.partitions} partitions, least is 1")
    return entry.key.removeprefix(TOPICS_PREFIX), row


def make_topic_id(
    is_taken: Callable[[uuid.UUID], bool], draw: Callable[[], uuid.UUID]
) -> uuid.UUID:
    """Return an id that no topic has.

    Never one that begins with a dash in Kafka's notation, which is base 64: tools take that for an
    option. The reserved ids 0 and 1 are no random ids, so they never come up.
    """
    while True:
        topic_id = draw()
        if topic_id.bytes[0] >> 2 != 62 and topic_id.int > 1 and not is_taken(topic_id):
            return topic_id


class KeyedLocks:
    """Changes, those of one name after each other, each to its end even if no one waits for it."""

    def __init__(self) -> None:
        self._turns: dict[str, _KeyedLock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def run(self, name: str, change: Coroutine[Any, Any, T]) -> T:
        """Make a change once all that were begun before under the same name are made."""
        if self._is_closed:
            change.close()
            raise Stopping("the node is stopping, and takes no more changes")
        task = asyncio.get_running_loop().create_task(self._in_turn(name, change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Take no more changes, and wait for those that were begun."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _in_turn(self, name: str, change: Coroutine[Any, Any, T]) -> T:
        turn = self._turns.setdefault(name, _KeyedLock())
        turn.users += 1
        try:
            async with turn.lock:
                return await change
        finally:
            turn.users -= 1
            if turn.users == 0:
                del self._turns[name]


@dataclass(slots=True)
class _KeyedLock:
    """Who changes what bears a name, and who waits to."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class _Versioned(msgspec.Struct):
    version: int
