"""The row that metadata has of a queue."""

from __future__ import annotations

import uuid

import msgspec

from millstream.broker.queues.values import QueueConfig
from millstream.errors import CorruptFile, UnknownFormat
from millstream.metadata.interface import MetadataEntry

QUEUES_PREFIX = "queues/"

ROW_VERSION = 1


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a queue, beside its events."""

    version: int = ROW_VERSION
    topic_id: uuid.UUID
    name: str
    """That of the topic."""
    config: QueueConfig
    secret: bytes
    """What its receipts are sealed with."""
    is_ephemeral: bool = False
    """Whether its topic is in memory only, and made anew at each start."""
    is_clean: bool = False
    """Whether the queue was closed with all that it had answered on the disk. It counts for classes
    below `fsync`, which may have lost some of that otherwise."""


def queue_key(topic_id: uuid.UUID) -> str:
    """Return the key of a queue's row."""
    return QUEUES_PREFIX + topic_id.hex


def encode_row(row: QueueRow) -> bytes:
    """Write a row."""
    return msgspec.json.encode(row)


def decode_row(entry: MetadataEntry) -> QueueRow:
    """Read a row; raises `UnknownFormat` or `CorruptFile`."""
    try:
        version = msgspec.json.decode(entry.value, type=_Versioned).version
        if version != ROW_VERSION:
            raise UnknownFormat(f"{entry.key}: found version {version}, known is {ROW_VERSION}")
        return msgspec.json.decode(entry.value, type=QueueRow)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{entry.key} is not the row of a queue: {error}") from error


class _Versioned(msgspec.Struct):
    version: int
