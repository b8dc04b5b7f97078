"""The table that a topic names in its config, where readers and writers find it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import RecordSource
from millstream.errors import InvalidConfig, TopicExists
from millstream.formats.names import (
    LAKE_DELETIONS_CONFIG,
    LAKE_POSITIONS_CONFIG,
    LAKE_REQUIRED_CONFIG,
    LAKE_TABLE_CONFIG,
)
from millstream.lake.table import LakeTable, absolute_uri
from millstream.lake.topic_log import open_log

DELETIONS_SUFFIX = ".lake-deletions"
"""Of the topic that records deletions by key."""

POSITIONS_SIZE_MAX = 0x7FFF
"""Bytes of all positions: the longest string of Kafka's protocol."""

_LAKE_CONFIGS = (
    LAKE_REQUIRED_CONFIG,
    LAKE_POSITIONS_CONFIG,
    LAKE_DELETIONS_CONFIG,
    LAKE_TABLE_CONFIG,
)

_DELETIONS_CONFIGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "millstream.durability": "fsync",
}


def configured_table(source: RecordSource, topic: str) -> str | None:
    """Return the address of the table of a topic; `None` if it names none."""
    if not isinstance(source, KafkaClient):
        return None  # A data directory does not have the configs of topics.
    return source.topic_configs([topic])[topic].get(LAKE_TABLE_CONFIG) or None


def table_of(source: RecordSource, topic: str, table: str | None) -> str:
    """Return the given table, or the one of the topic; raises `InvalidConfig` without either."""
    found = table or configured_table(source, topic)
    if found is None:
        raise no_table(topic)
    return found


def no_table(topic: str) -> InvalidConfig:
    """Return the error of a topic for which no table is known."""
    return InvalidConfig(
        f"topic {topic!r} has no lake table: give the address of one, or set its config"
        f" {LAKE_TABLE_CONFIG} (`millstream lake enable`)"
    )


class PositionReport:
    """Tells a topic whose retention waits for its table how far that is."""

    def __init__(self, source: RecordSource, topic: str, uri: str) -> None:
        self._source = source
        self._topic = topic
        self._reported: str | None = None
        """`None` if this table has not to report."""
        if isinstance(source, KafkaClient):
            configs = source.topic_configs([topic])[topic]
            is_own = configs.get(LAKE_TABLE_CONFIG) == absolute_uri(uri)
            if is_own and configs.get(LAKE_REQUIRED_CONFIG) == "true":
                self._reported = configs.get(LAKE_POSITIONS_CONFIG, "")

    def send(self, positions: Mapping[int, int]) -> None:
        """Report positions that are committed, unless they were the last time too."""
        text = ",".join(f"{number}:{offset}" for number, offset in sorted(positions.items()))
        if self._reported in (None, text):
            return
        if len(text) > POSITIONS_SIZE_MAX:
            raise InvalidConfig(
                f"{LAKE_REQUIRED_CONFIG} must be false for topic {self._topic!r}: the positions of"
                f" its {len(positions)} partitions have {len(text)} bytes, limit is"
                f" {POSITIONS_SIZE_MAX}"
            )
        assert isinstance(self._source, KafkaClient)
        self._source.alter_topic_configs(self._topic, {LAKE_POSITIONS_CONFIG: text})
        self._reported = text


def enable_lake(
    client: KafkaClient, topic: str, table: str, *, is_required: bool | None = None
) -> str:
    """Create the table of a topic if there is none, and note it in the topic; return its address.

    `is_required` says whether retention waits for the table; `None` leaves that as it is.

    Raises `LakeError` if the table belongs to another topic, and `InvalidConfig` if the topic has
    another table.
    """
    log = open_log(client, topic)
    address = absolute_uri(table)
    present = configured_table(client, topic)
    if present not in (None, address):
        raise InvalidConfig(
            f"topic {topic!r} has the lake table {present}, got {address}: disable that first"
        )
    if log.topic.id is None:
        raise InvalidConfig(f"topic {topic!r} has no id, which a table needs")
    LakeTable.create(address, topic=topic, topic_id=log.topic.id, typed=log.typed)
    deletions = f"{topic}{DELETIONS_SUFFIX}"
    with contextlib.suppress(TopicExists):
        client.create_topic(deletions, partitions=1, configs=_DELETIONS_CONFIGS)
    changes: dict[str, str | None] = {
        LAKE_TABLE_CONFIG: address,
        LAKE_DELETIONS_CONFIG: deletions,
    }
    if present is None:
        changes[LAKE_POSITIONS_CONFIG] = None  # Of another table.
    if is_required is not None:
        changes[LAKE_REQUIRED_CONFIG] = "true" if is_required else None
    client.alter_topic_configs(topic, changes)
    return address


def disable_lake(client: KafkaClient, topic: str) -> str | None:
    """Remove the address of its table from a topic; return it. The topic of deletions stays.

    Retention does not wait any more.
    """
    present = configured_table(client, topic)
    if present is not None:
        client.alter_topic_configs(topic, dict.fromkeys(_LAKE_CONFIGS))
    return present
