"""The stored form of committed offsets: one entry each, JSON, with a version."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from millstream.broker.groups.group import encode_key
from millstream.broker.groups.offsets.committed_offsets import (
    CommittedOffset,
    OffsetChange,
    OffsetKey,
    PendingOffsetKey,
)
from millstream.broker.groups.values import NO_EPOCH, OffsetAndMetadata
from millstream.broker.state.state_log import StateEntry
from millstream.errors import CorruptData, UnknownFormat
from millstream.records.topic_partition import TopicPartition

RECORD_VERSION = 1

OFFSET = "offset"
PENDING = "pending"
FAMILIES = (OFFSET, PENDING)
"""First parts of the keys; the others are the owner and the partition."""


class OffsetRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An offset that was committed, or is pending in a transaction."""

    version: int
    offset: int
    committed_ms: int
    order: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: uuid.UUID | None = None
    expires_ms: int | None = None
    producer_epoch: int = -1


_decoder = msgspec.json.Decoder(OffsetRecord)


def encode_change(change: OffsetChange) -> StateEntry:
    """Return the entry of the state log that stores a change."""
    key, committed = change
    if isinstance(key, OffsetKey):
        name = encode_key(OFFSET, key.group_id, *key.partition)
    else:
        name = encode_key(PENDING, key.producer_id, key.group_id, *key.partition)
    return name, None if committed is None else _encode(committed)


def decode_change(parts: list[Any], value: bytes) -> OffsetChange:
    """Return the change that an entry stores; `parts` are those of its key."""
    try:
        if parts[0] == OFFSET:
            _, group_id, topic, partition = parts
            return OffsetKey(group_id, TopicPartition(topic, partition)), _decode(value)
        _, producer_id, group_id, topic, partition = parts
        return PendingOffsetKey(producer_id, group_id, TopicPartition(topic, partition)), _decode(
            value
        )
    except ValueError as error:
        raise CorruptData(f"groups: {parts} is not a key of an offset: {error}") from error


def _encode(committed: CommittedOffset) -> bytes:
    offset = committed.offset
    return msgspec.json.encode(
        OffsetRecord(
            version=RECORD_VERSION,
            offset=offset.offset,
            committed_ms=committed.committed_ms,
            order=committed.order,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            topic_id=offset.topic_id,
            expires_ms=committed.expires_ms,
            producer_epoch=committed.producer_epoch,
        )
    )


def _decode(value: bytes) -> CommittedOffset:
    try:
        record = _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"groups: invalid offset record: {error}") from error
    if record.version != RECORD_VERSION:
        raise UnknownFormat(
            f"offset record has version {record.version}, expected {RECORD_VERSION}"
        )
    return CommittedOffset(
        offset=OffsetAndMetadata(
            offset=record.offset,
            leader_epoch=record.leader_epoch,
            metadata=record.metadata,
            topic_id=record.topic_id,
        ),
        committed_ms=record.committed_ms,
        order=record.order,
        expires_ms=record.expires_ms,
        producer_epoch=record.producer_epoch,
    )
