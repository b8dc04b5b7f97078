"""Encoding of a transactional id in the state log.

The key is the transactional id; the value is one JSON object:

    {"version": 2, "state": "Ongoing", "producer": [4001, 3], "previous": null, ...,
     "partitions": {"orders": [0, 5]}, "groups": ["billing"]}

A value of a newer version is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import msgspec

from millstream.broker.transactions.transaction import (
    TransactionMetadata,
    TransactionProducer,
    TransactionState,
)
from millstream.errors import CorruptData, UnknownFormat
from millstream.records.topic_partition import TopicPartition

VERSION = 2
"""Version 1 has no `begun_ms`."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    state: TransactionState
    producer: TransactionProducer
    previous: TransactionProducer | None
    next_producer_id: int | None
    timeout_ms: int
    update_ms: int
    start_ms: int
    begun_ms: int = -1
    partitions: dict[str, list[int]]
    groups: list[str]


class _Version(msgspec.Struct):
    version: int


_SAME = tuple(
    field.name
    for field in fields(TransactionMetadata)
    if field.name not in ("transactional_id", "partitions", "groups")
)
"""Fields that are stored as they are."""


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id."""
    return transactional_id.encode()


def encode(transaction: TransactionMetadata) -> bytes:
    """Return the stored form of a transactional id."""
    stored = _Stored(
        version=VERSION,
        partitions=partitions_by_topic(transaction.partitions),
        groups=sorted(transaction.groups),
        **{name: getattr(transaction, name) for name in _SAME},
    )
    return msgspec.json.encode(stored)


def decode(key: bytes, value: bytes) -> TransactionMetadata:
    """Decode the result of `encode`."""
    try:
        transactional_id = key.decode()
        version = msgspec.json.decode(value, type=_Version).version
        if not 1 <= version <= VERSION:
            raise UnknownFormat(
                f"transactional id {transactional_id!r} has version {version}, which must be"
                f" between 1 and {VERSION}"
            )
        stored = msgspec.json.decode(value, type=_Stored)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"transactional id {key!r}: {error}") from error
    return TransactionMetadata(
        transactional_id=transactional_id,
        partitions=frozenset(
            TopicPartition(topic, partition)
            for topic, partitions in stored.partitions.items()
            for partition in partitions
        ),
        groups=frozenset(stored.groups),
        **{name: getattr(stored, name) for name in _SAME},
    )


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions of each topic, in order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics
