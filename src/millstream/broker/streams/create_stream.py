"""What a stream is asked to be, and whether one that is there is that."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from millstream.broker.streams.row import StreamFork, StreamRow
from millstream.broker.streams.stream import DurableStream
from millstream.errors import InvalidRequest, StreamExists, StreamGone, StreamMismatch

JSON_TYPE = "application/json"
DEFAULT_TYPE = "application/octet-stream"


class ForkSource(NamedTuple):
    """What a stream is to be a fork of."""

    source: str
    offset: int | None = None
    """`None` for all there is."""
    sub_offset: int = 0


class CreateStream(NamedTuple):
    """What a stream is asked to be."""

    content_type: str | None = None
    ttl_seconds: int | None = None
    expires_ms: int | None = None
    expires_text: str | None = None
    is_closed: bool = False
    fork: ForkSource | None = None

    @property
    def has_expiry(self) -> bool:
        """Whether it says when the stream ends."""
        return self.ttl_seconds is not None or self.expires_ms is not None


class ClockReading(NamedTuple):
    """The time, by both clocks."""

    wall_ms: int
    steady_ms: int


def essence(content_type: str) -> str:
    """Return a content type without its parameters, in small letters: what has to be equal."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Whether a stream of this type consists of messages, and not of bytes."""
    return essence(content_type) == JSON_TYPE


def new_stream_row(
    asked: CreateStream,
    source: DurableStream | None,
    *,
    topic: str,
    topic_id: uuid.UUID,
    now: ClockReading,
) -> StreamRow:
    """Return the row of a stream that is to be made; raises where it cannot be."""
    ttl, expires_ms, expires_text = asked[1:4]
    content_type = asked.content_type or DEFAULT_TYPE
    fork, floor = None, 0
    if source is not None:
        content_type = _inherited_type(asked, source)
        if not asked.has_expiry:
            of_source = source.row
            ttl, expires_ms = of_source.ttl_seconds, of_source.expires_ms
            expires_text = of_source.expires_text
        fork = _fork(asked, source)
        floor = _floor(source)
    return StreamRow(
        topic=topic,
        topic_id=topic_id,
        content_type=content_type,
        created_ms=now.wall_ms,
        touched_ms=now.steady_ms,
        ttl_seconds=ttl,
        expires_ms=expires_ms,
        expires_text=expires_text,
        fork=fork,
        floor=floor,
    )


def _inherited_type(asked: CreateStream, source: DurableStream) -> str:
    found = source.row.content_type
    if asked.content_type is None:
        return found
    if essence(asked.content_type) != essence(found):
        raise StreamMismatch(f"source is of type {found!r}, and its fork cannot be of another")
    return asked.content_type


def _fork(asked: CreateStream, source: DurableStream) -> StreamFork:
    fork = asked.fork
    assert fork is not None
    tail = source.next_offset
    offset = tail if fork.offset is None else fork.offset
    if offset > tail:
        raise InvalidRequest(f"fork is asked for at offset {offset}, and the source ends at {tail}")
    if offset < _floor(source):
        raise StreamGone(f"fork is asked for at offset {offset}, before what the source still has")
    return StreamFork(
        source=source.path,
        offset=offset,
        sub_offset=fork.sub_offset,
        is_expiry_inherited=not asked.has_expiry,
    )


def _floor(source: DurableStream) -> int:
    evicted = source.partition.reader.describe().eviction_floor
    return max(source.row.floor, evicted + source.row.shift if evicted else 0)


def check_same(there: DurableStream, asked: CreateStream) -> None:
    """Raise `StreamExists` unless a stream is what was asked for."""
    row = there.row
    if asked.content_type is None:
        is_type = asked.fork is not None or essence(row.content_type) == DEFAULT_TYPE
    else:
        is_type = essence(asked.content_type) == essence(row.content_type)
    if not is_type:
        raise StreamExists(f"stream {there.path[:300]!r} is of type {row.content_type!r}")
    if not _is_same_fork(row.fork, asked.fork):
        raise StreamExists(f"stream {there.path[:300]!r} is not a fork of the same")
    is_inherited = row.fork is not None and row.fork.is_expiry_inherited and not asked.has_expiry
    is_expiry = (row.ttl_seconds, row.expires_ms) == (asked.ttl_seconds, asked.expires_ms)
    if not is_inherited and not is_expiry:
        raise StreamExists(f"stream {there.path[:300]!r} expires at another time")
    if asked.is_closed != (there.closure is not None):
        state = "closed" if there.closure is not None else "open"
        raise StreamExists(f"stream {there.path[:300]!r} is {state}")


def _is_same_fork(fork: StreamFork | None, asked: ForkSource | None) -> bool:
    if fork is None or asked is None:
        return fork is None and asked is None
    is_offset = asked.offset is None or asked.offset == fork.offset
    return fork.source == asked.source and is_offset and fork.sub_offset == asked.sub_offset
