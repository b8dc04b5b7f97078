"""Requests to create a stream, and whether an existing stream matches one."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from millstream.broker.streams.row import StreamFork, StreamRow
from millstream.broker.streams.stream import DurableStream
from millstream.errors import InvalidRequest, StreamExists, StreamGone, StreamMismatch

JSON_TYPE = "application/json"
DEFAULT_TYPE = "application/octet-stream"


class ForkSource(NamedTuple):
    """The requested source of a fork."""

    source: str
    offset: int | None = None
    """`None` for the end of the source."""
    sub_offset: int = 0
    mark: int | None = None
    """Mark of the offset, if it has one."""


class CreateStream(NamedTuple):
    """The requested properties of a stream."""

    content_type: str | None = None
    ttl_seconds: int | None = None
    expires_ms: int | None = None
    expires_text: str | None = None
    is_closed: bool = False
    fork: ForkSource | None = None

    @property
    def has_expiry(self) -> bool:
        return self.ttl_seconds is not None or self.expires_ms is not None


class ClockReading(NamedTuple):
    """The time of both clocks."""

    wall_ms: int
    retention_ms: int


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Return whether a stream of this type consists of messages, not of bytes."""
    return media_type(content_type) == JSON_TYPE


def new_stream_row(
    request: CreateStream,
    source: DurableStream | None,
    *,
    topic: str,
    topic_id: uuid.UUID,
    now: ClockReading,
) -> StreamRow:
    """Return the row of a new stream; raises if the request is invalid."""
    ttl, expires_ms, expires_text = request[1:4]
    content_type = request.content_type or DEFAULT_TYPE
    fork, floor = None, 0
    marks: tuple[tuple[int, int], ...] = ()
    if source is not None:
        content_type = _inherited_type(request, source)
        if not request.has_expiry:
            ttl, expires_ms = source.row.ttl_seconds, source.row.expires_ms
            expires_text = source.row.expires_text
        fork = _fork(request, source)
        floor = _floor(source)
        marks = source.row.marks_until(fork.offset)
    return StreamRow(
        topic=topic,
        topic_id=topic_id,
        content_type=content_type,
        created_ms=now.wall_ms,
        touched_ms=now.retention_ms,
        ttl_seconds=ttl,
        expires_ms=expires_ms,
        expires_text=expires_text,
        fork=fork,
        floor=floor,
        inherited_marks=marks,
    )


def _inherited_type(request: CreateStream, source: DurableStream) -> str:
    inherited = source.row.content_type
    if request.content_type is None:
        return inherited
    if media_type(request.content_type) != media_type(inherited):
        raise StreamMismatch(f"a fork must have the type of its source, {inherited!r}")
    return request.content_type


def _fork(request: CreateStream, source: DurableStream) -> StreamFork:
    fork = request.fork
    assert fork is not None
    tail = source.next_offset
    offset = tail if fork.offset is None else fork.offset
    if offset > tail:
        raise InvalidRequest(
            f"fork offset must be at most {tail}, the end of the source, got {offset}"
        )
    if fork.offset is not None and fork.mark is not None:
        check_mark(source.row, fork.offset, fork.mark)
    if offset < _floor(source):
        raise StreamGone(
            f"the source has no records before its start any more: cannot fork at offset {offset}"
        )
    return StreamFork(
        source=source.path,
        offset=offset,
        sub_offset=fork.sub_offset,
        is_expiry_inherited=not request.has_expiry,
    )


def check_mark(row: StreamRow, offset: int, mark: int) -> None:
    """Raise `StreamGone` if an offset with this mark is one of another stream of the same path."""
    if row.mark_at(offset) != mark:
        raise StreamGone(
            f"offset {offset} is one of a stream that was deleted; this one was created after it:"
            " start at -1"
        )


def _floor(source: DurableStream) -> int:
    gap = source.source.reader.gap_at(0)
    evicted = 0 if gap is None else gap.to_offset + 1
    return max(source.row.floor, evicted + source.row.shift if evicted else 0)


def check_matches(existing: DurableStream, request: CreateStream) -> None:
    """Raise `StreamExists` unless a stream has the requested properties."""
    row = existing.row
    if request.content_type is None:
        is_type = request.fork is not None or media_type(row.content_type) == DEFAULT_TYPE
    else:
        is_type = media_type(request.content_type) == media_type(row.content_type)
    if not is_type:
        raise StreamExists(f"stream {existing.path[:300]!r} has the type {row.content_type!r}")
    if not _is_same_fork(row.fork, request.fork):
        raise StreamExists(
            f"stream {existing.path[:300]!r} is not a fork of the same source and offset"
        )
    is_inherited = row.fork is not None and row.fork.is_expiry_inherited and not request.has_expiry
    is_expiry = (row.ttl_seconds, row.expires_ms) == (request.ttl_seconds, request.expires_ms)
    if not is_inherited and not is_expiry:
        raise StreamExists(f"stream {existing.path[:300]!r} has another expiry")
    if request.is_closed != (existing.closure is not None):
        state = "closed" if existing.closure is not None else "open"
        raise StreamExists(f"stream {existing.path[:300]!r} is {state}")


def _is_same_fork(fork: StreamFork | None, request: ForkSource | None) -> bool:
    if fork is None or request is None:
        return fork is None and request is None
    is_offset = request.offset is None or request.offset == fork.offset
    return fork.source == request.source and is_offset and fork.sub_offset == request.sub_offset
