"""The stored form of streams, in the state log `streams`.

    key                             value, in JSON
    s <path>                        the stream: topic, type, expiry, source of the fork
    w <path>                        the state of its writers, up to an offset of the log
    p <path> 00 <producer>          [epoch, number] of one producer, up to the same offset
    ff clock                        in a cluster: the time by which streams age (`state_clock.py`)

The offset is a checkpoint: opening a stream replays the marks in its log from there on. The entries
of one put are stored together.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Literal

import msgspec

from millstream.broker.state.state_clock import CLOCK_KEY
from millstream.broker.streams.writers import StreamClosure, WriterPosition
from millstream.errors import CorruptFile, UnknownFormat

ROW_VERSION = 1

ROW_KEY = b"s"
MARK_MIN, MARK_MAX = 10**15, 10**16 - 1
"""Marks have sixteen digits."""

WRITERS_KEY = b"w"
PRODUCER_KEY = b"p"


class StreamFork(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a fork, as it was requested."""

    source: str
    """The path of the source."""
    offset: int
    """End of the inherited records, as an offset of the source."""
    sub_offset: int = 0
    """Messages, or bytes, inherited after that offset."""
    is_expiry_inherited: bool = False


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a stream."""

    version: int = ROW_VERSION
    topic: str
    topic_id: uuid.UUID
    content_type: str
    created_ms: int
    state: Literal["making", "live", "deleted"] = "live"
    """`making` is not complete, and is removed when the node starts; `deleted` does not exist any
    more, but its path stays in use as long as it has forks.
    """
    ttl_seconds: int | None = None
    touched_ms: int = 0
    """Time of the retention clock at the last use that was stored."""
    expires_ms: int | None = None
    """Wall time of the expiry; `expires_text` is the text in which it was given."""
    expires_text: str | None = None
    fork: StreamFork | None = None
    shift: int = 0
    """Difference between offsets of the stream and offsets of its partition."""
    floor: int = 0
    """Records before this offset of the stream had been deleted when it was forked."""
    inherited_marks: tuple[tuple[int, int], ...] = ()
    """Of a fork: offsets, rising, and the mark of the offsets up to each. Those are offsets of its
    source too, and name the same records there.
    """

    def mark_at(self, offset: int) -> int:
        """Return the mark of an offset: a number that tells this stream from others of its path."""
        for until, mark in self.inherited_marks:
            if offset <= until:
                return mark
        return MARK_MIN + self.topic_id.int % (MARK_MAX - MARK_MIN + 1)

    def marks_until(self, offset: int) -> tuple[tuple[int, int], ...]:
        """Return the marks that a fork at an offset inherits."""
        before = [(until, mark) for until, mark in self.inherited_marks if until < offset]
        return (*before, (offset, self.mark_at(offset)))


class WritersRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a stream's writers up to an offset; producers have entries of their own."""

    offset: int
    sequence: str | None = None
    closure: StreamClosure | None = None


class _Versioned(msgspec.Struct):
    version: int = ROW_VERSION


def row_key(path: str) -> bytes:
    return ROW_KEY + path.encode()


def writers_key(path: str) -> bytes:
    return WRITERS_KEY + path.encode()


def producer_key(path: str, producer: str) -> bytes:
    """Return the key of one producer of a stream. No path contains the byte 0."""
    return PRODUCER_KEY + path.encode() + b"\0" + producer.encode()


def encode(value: StreamRow | WritersRow | WriterPosition) -> bytes:
    return msgspec.json.encode(value)


class StoredStream(msgspec.Struct):
    """All entries of one stream."""

    row: StreamRow | None = None
    writers: WritersRow = msgspec.field(default_factory=lambda: WritersRow(offset=0))
    producers: dict[str, WriterPosition] = {}


def decode_entry(streams: dict[str, StoredStream], key: bytes, value: bytes) -> None:
    """Add an entry to its stream, by path; raises `CorruptFile` or `UnknownFormat`."""
    if key == CLOCK_KEY:  # Of no stream: `StateClock` reads it.
        return
    kind, name = key[:1], key[1:]
    try:
        path, _, producer = name.partition(b"\0")
        stream = streams.setdefault(path.decode(), StoredStream())
        if kind == ROW_KEY:
            stream.row = _decode_row(value)
        elif kind == WRITERS_KEY:
            stream.writers = msgspec.json.decode(value, type=WritersRow)
        elif kind == PRODUCER_KEY:
            stream.producers[producer.decode()] = msgspec.json.decode(value, type=WriterPosition)
        else:
            raise UnknownFormat(f"state of streams has an entry of unknown kind {kind!r}")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"state of streams, {key[:100]!r}: {error}") from error


def _decode_row(value: bytes) -> StreamRow:
    version = msgspec.json.decode(value, type=_Versioned).version
    if version != ROW_VERSION:
        raise UnknownFormat(f"row of a stream has version {version}, expected {ROW_VERSION}")
    return msgspec.json.decode(value, type=StreamRow)


def stored_dates(entries: Mapping[bytes, bytes]) -> list[int]:
    """Return the times of the retention clock that are stored."""
    return [_decode_row(value).touched_ms for key, value in entries.items() if key[:1] == ROW_KEY]
