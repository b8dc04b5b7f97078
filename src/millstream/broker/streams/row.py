"""What is kept of a stream, in the state log `streams`.

    key                             value, in JSON
    s <path>                        the stream: its topic, its type, its end, what it is a fork of
    w <path>                        its writers, as far as the log told up to an offset
    p <path> 00 <producer>          [epoch, number] of one producer, up to the same offset

The offset is a checkpoint: who opens a stream reads the marks in its log from there on. What one
put changes, it changes together.
"""

from __future__ import annotations

import uuid
from typing import Literal

import msgspec

from millstream.broker.streams.writers import StreamClosure, WriterPosition
from millstream.errors import CorruptFile, UnknownFormat

ROW_VERSION = 1

ROW_KEY = b"s"
WRITERS_KEY = b"w"
PRODUCER_KEY = b"p"


class StreamFork(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream was forked from, as it was asked for."""

    source: str
    """Its path."""
    offset: int
    """Up to which record, as the source counts."""
    sub_offset: int = 0
    """And how many messages, or bytes, of what lies there."""
    is_expiry_inherited: bool = False


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is."""

    version: int = ROW_VERSION
    topic: str
    topic_id: uuid.UUID
    content_type: str
    created_ms: int
    state: Literal["making", "live", "deleted"] = "live"
    """`making` is not there yet, and goes when the node starts; `deleted` is gone, and its path
    stays taken for as long as it has forks."""
    ttl_seconds: int | None = None
    touched_ms: int = 0
    """Steady time of the last use that was written down."""
    expires_ms: int | None = None
    """Wall time, and the words it was given in."""
    expires_text: str | None = None
    fork: StreamFork | None = None
    shift: int = 0
    """How much greater the stream's offsets are than those of its records."""
    floor: int = 0
    """Before this offset of the stream, records were gone when it was forked."""


class WritersRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who wrote to a stream, up to an offset; producers have entries of their own."""

    offset: int
    sequence: str | None = None
    closure: StreamClosure | None = None


class _Versioned(msgspec.Struct):
    version: int = ROW_VERSION


def row_key(path: str) -> bytes:
    """Return the key of a stream."""
    return ROW_KEY + path.encode()


def writers_key(path: str) -> bytes:
    """Return the key of a stream's writers."""
    return WRITERS_KEY + path.encode()


def producer_key(path: str, producer: str) -> bytes:
    """Return the key of one producer of a stream. No path has the byte 0 in it."""
    return PRODUCER_KEY + path.encode() + b"\0" + producer.encode()


def encode(value: StreamRow | WritersRow | WriterPosition) -> bytes:
    """Write a value."""
    return msgspec.json.encode(value)


class StoredStream(msgspec.Struct):
    """All that is kept of one stream."""

    row: StreamRow | None = None
    writers: WritersRow = msgspec.field(default_factory=lambda: WritersRow(offset=0))
    producers: dict[str, WriterPosition] = {}


def decode_all(entries: dict[bytes, bytes]) -> dict[str, StoredStream]:
    """Return all that is kept, by path; raises `CorruptFile` where that makes no sense."""
    found: dict[str, StoredStream] = {}
    for key, value in entries.items():
        kind, rest = key[:1], key[1:]
        try:
            path, _, producer = rest.partition(b"\0")
            one = found.setdefault(path.decode(), StoredStream())
            if kind == ROW_KEY:
                one.row = _decode_row(value)
            elif kind == WRITERS_KEY:
                one.writers = msgspec.json.decode(value, type=WritersRow)
            elif kind == PRODUCER_KEY:
                one.producers[producer.decode()] = msgspec.json.decode(value, type=WriterPosition)
            else:
                raise UnknownFormat(f"state of streams has an entry of the kind {kind!r}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptFile(f"state of streams, {key[:100]!r}: {error}") from error
    return found


def _decode_row(value: bytes) -> StreamRow:
    version = msgspec.json.decode(value, type=_Versioned).version
    if version != ROW_VERSION:
        raise UnknownFormat(f"a stream is of version {version}, known is {ROW_VERSION}")
    return msgspec.json.decode(value, type=StreamRow)
