"""The table that a topic names in its config, where readers and writers find it."""

from __future__ import annotations

import contextlib

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import RecordSource
from millstream.errors import InvalidConfig, TopicExists
from millstream.formats.names import LAKE_DELETIONS_CONFIG, LAKE_TABLE_CONFIG
from millstream.lake.table import LakeTable, absolute_uri
from millstream.lake.topic_log import open_log

DELETIONS_SUFFIX = ".lake-deletions"
"""Of the topic that records deletions by key."""

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


def enable_lake(client: KafkaClient, topic: str, table: str) -> str:
    """Create the table of a topic if there is none, and note it in the topic; return its address.

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
    client.alter_topic_configs(
        topic, {LAKE_TABLE_CONFIG: address, LAKE_DELETIONS_CONFIG: deletions}
    )
    return address


def disable_lake(client: KafkaClient, topic: str) -> str | None:
    """Remove the address of its table from a topic; return it. The topic of deletions stays."""
    present = configured_table(client, topic)
    if present is not None:
        client.alter_topic_configs(topic, {LAKE_TABLE_CONFIG: None, LAKE_DELETIONS_CONFIG: None})
    return present
