"""One topic: its metadata row, its events and its partitions."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from millstream.broker.topics.configs.topic_config import TopicConfig
from millstream.config.schema import LogConfig
from millstream.errors import CorruptFile, UnknownFormat, UnknownTopic
from millstream.metadata.interface import ABSENT

if TYPE_CHECKING:
    from millstream.broker.partition.partition import Partition

T = TypeVar("T")

TOPICS_PREFIX = "topics/"

ROW_VERSION = 1

NO_ID = uuid.UUID(int=0)
"""Means no topic. The other reserved id, 1, is that of Kafka's own metadata."""


class TopicEvent(enum.Enum):
    """A change of a topic."""

    CREATED = "created"
    GROWN = "grown"
    """The number of partitions has increased."""
    ALTERED = "altered"
    """The config has changed."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A durable change of a topic."""

    topic: Topic
    event: TopicEvent


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of a topic."""

    version: int = ROW_VERSION
    id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    state: Literal["live", "deleting"] = "live"
    """`deleting` is final: the topic no longer exists, only its data may still be there."""
    replication_factor: int | None = None
    """Replicas of each partition; None on a lone node, and in a cluster for its default."""
    assignments: tuple[tuple[int, ...], ...] | None = None
    """Nodes that a client chose for the first partitions; those of the others, and of partitions
    with an empty list, are chosen by the cluster."""
    is_internal: bool = False
    """Whether the cluster keeps its own state in it: clients cannot write to it or change it."""
    owner: str | None = None
    """Who created it, `User:alice`; None without logins, and for what nodes create themselves."""


class Topic:
    """A topic: its name, id, partitions and config.

    Callers may keep one, and must expect that it is deleted: it grows and is reconfigured in place,
    and a topic that is created with the same name later is another object with another id. Only
    `Topics` changes it.
    """

    def __init__(self, name: str, row: TopicRow, revision: int, config: TopicConfig) -> None:
        self.name = name
        self.config = config
        self._log_config = (config, config.log_config())
        self.partitions: list[Partition] = []
        self.row = row
        self.revision = revision
        """Revision of the row; `ABSENT` if the topic was only validated, not created."""

    @property
    def id(self) -> uuid.UUID:
        """The id, different from that of every other topic there ever was."""
        return self.row.id

    @property
    def is_internal(self) -> bool:
        """Whether a cluster keeps its own state in it. A lone node has no such topics."""
        return self.row.is_internal

    @property
    def partition_count(self) -> int:
        """The number of partitions it has, or would have."""
        return self.row.partitions

    @property
    def is_created(self) -> bool:
        """Whether it was created, not only validated."""
        return self.revision != ABSENT

    @property
    def log_config(self) -> LogConfig:
        """The config of its logs, computed once: maintenance reads it for every log."""
        config, log_config = self._log_config
        if config is not self.config:
            log_config = self.config.log_config()
            self._log_config = (self.config, log_config)
        return log_config

    def partition(self, index: int) -> Partition:
        """Return one of its partitions; raises `UnknownTopic` if it does not exist."""
        if 0 <= index < len(self.partitions):
            return self.partitions[index]
        raise UnknownTopic(
            f"partition of {self.name} must be between 0 and {len(self.partitions) - 1},"
            f" got {index}"
        )


def topic_key(name: str) -> str:
    """Return the key of a topic's row."""
    return TOPICS_PREFIX + name


def encode_row(row: TopicRow) -> bytes:
    return msgspec.json.encode(row)


def decode_row(key: str, value: bytes) -> tuple[str, TopicRow]:
    """Return the name of a topic, and its row."""
    try:
        version = msgspec.json.decode(value, type=_Versioned).version
        if version != ROW_VERSION:
            raise UnknownFormat(f"{key} has version {version}, expected {ROW_VERSION}")
        row = msgspec.json.decode(value, type=TopicRow)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{key} is not a valid topic: {error}") from error
    if row.partitions < 1:
        raise CorruptFile(f"{key}: partitions must be at least 1, got {row.partitions}")
    return key.removeprefix(TOPICS_PREFIX), row


def make_topic_id(
    is_taken: Callable[[uuid.UUID], bool], draw: Callable[[], uuid.UUID]
) -> uuid.UUID:
    """Return an id that no topic has.

    Never one that starts with a dash in Kafka's base 64 notation, which tools would take for an
    option. The reserved ids 0 and 1 are not random ids, so they never occur.
    """
    while True:
        topic_id = draw()
        if topic_id.bytes[0] >> 2 != 62 and topic_id.int > 1 and not is_taken(topic_id):
            return topic_id


class _Versioned(msgspec.Struct):
    version: int
