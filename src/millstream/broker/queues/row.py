"""The metadata row of a queue."""

from __future__ import annotations

import uuid

import msgspec

from millstream.broker.queues.values import QueueConfig
from millstream.errors import CorruptFile, UnknownFormat

QUEUES_PREFIX = "queues/"

ROW_VERSION = 1


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored settings and identity of a queue, without its events."""

    version: int = ROW_VERSION
    topic_id: uuid.UUID
    name: str
    """The name of the topic."""
    config: QueueConfig
    secret: bytes
    """The key that seals its receipts."""
    is_ephemeral: bool = False
    """Whether its topic is in memory only, and created again at each start."""
    is_clean: bool = False
    """Whether the queue was closed with all answers on the disk. It matters for classes below
    `fsync`, which may have lost some otherwise.
    """
    owner: str | None = None
    """Who has created it, for caps: `User:alice`. None for those of older releases."""


def queue_key(topic_id: uuid.UUID) -> str:
    return QUEUES_PREFIX + topic_id.hex


def encode_row(row: QueueRow) -> bytes:
    return msgspec.json.encode(row)


def decode_row(key: str, value: bytes) -> QueueRow:
    """Decode a row; raises `UnknownFormat` or `CorruptFile`."""
    try:
        version = msgspec.json.decode(value, type=_Versioned).version
        if version != ROW_VERSION:
            raise UnknownFormat(f"{key}: row has version {version}, expected {ROW_VERSION}")
        return msgspec.json.decode(value, type=QueueRow)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{key}: invalid row of a queue: {error}") from error


class _Versioned(msgspec.Struct):
    version: int
