"""Handlers of durable streams."""

from __future__ import annotations

import random
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.quotas import QuotaKind
from millstream.broker.streams.create_stream import CreateStream, media_type
from millstream.broker.streams.paths import topic_of_path
from millstream.broker.streams.stream import DurableStream, StreamAppendResult
from millstream.broker.streams.writers import WriteMark
from millstream.config.schema import MIB
from millstream.errors import InvalidRequest, StreamMismatch
from millstream.records.batch import BATCH_SIZE_MAX
from millstream.servers.http.routing.bodies import read_bytes
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.streams.messages import body_of, values_of
from millstream.servers.http.streams.positions import cursor_after
from millstream.servers.http.streams.requests import (
    CLOSED,
    CURSOR,
    EXPIRES,
    HEADERS,
    NEXT_OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_NUMBER,
    TTL,
    UP_TO_DATE,
    ReadStream,
    content_type_of,
    parse_create_stream,
    parse_read_stream,
    path_of,
    stream_topic_of,
    url_of,
    write_mark,
)
from millstream.servers.http.streams.sse import StreamEventsResponse, events_of, is_text
from millstream.servers.http.streams.stream_chunk import (
    StreamChunk,
    first_offset,
    read_chunk,
    text_of,
    wait_for_chunk,
)

BATCH_ROOM = 4 * MIB
"""Bytes of a batch in addition to the body: some forty for each message."""

METHODS = "GET, HEAD, POST, PUT, DELETE, OPTIONS"

CACHED = "private, max-age=60, stale-while-revalidate=300"
"""A chunk that is followed by another never changes."""
REVALIDATED = "private, no-cache"
"""The chunk at the end of a stream may grow; the ETag tells."""


async def create_stream(request: HttpRequest) -> Response:
    """Create a stream, or a fork of one. Succeeds if the same stream exists."""
    path = path_of(request)
    requested = parse_create_stream(request)
    _check_creation(request, requested)
    streams = request.context.broker.streams.of(path)
    body = await read_bytes(request, size_max=request.context.config.append_size_max)
    values = await values_of(streams.content_type_of(path, requested), body)
    size_max = min(BATCH_SIZE_MAX, request.context.config.append_size_max + BATCH_ROOM)
    stream, is_new = await streams.create(
        path, requested, values, message_bytes_max=size_max, creator=request.caller
    )
    streams.use(stream)
    usage = request.usage
    usage.charge(QuotaKind.PRODUCE, len(body))
    usage.charge(QuotaKind.MUTATION, int(is_new))
    headers = {NEXT_OFFSET: text_of(stream, stream.next_offset), "Cache-Control": "no-store"}
    if stream.closure is not None:
        headers[CLOSED] = "true"
    if is_new:
        headers["Location"] = url_of(request)
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return _typed(stream, Response(status_code=status, headers=headers))


def _check_creation(request: HttpRequest, requested: CreateStream) -> None:
    """Raise unless the caller may create the stream, or write to it if it exists.

    A fork shows the records of its source.
    """
    name = stream_topic_of(request)
    is_new = request.context.broker.topics.find(name) is None
    if is_new or not request.may_describe_topic(name):  # The same answer to strangers.
        request.require_creation(name)
    if not is_new:
        request.require_topic(Operation.WRITE, name)
    if requested.fork is not None:
        request.require_topic(Operation.READ, topic_of_path(requested.fork.source))


async def append_to_stream(request: HttpRequest) -> Response:
    """Append to a stream, and close it if requested.

    The response is sent when the durability class of its topic is met. Appends of one producer are
    stored once, however often they are sent.
    """
    path = path_of(request)
    mark = write_mark(request)
    streams = request.context.broker.streams.of(path)
    body = await read_bytes(request, size_max=request.context.config.append_size_max)
    stream = streams.get(path)
    streams.use(stream)
    if not body:
        if not mark.is_closing:
            raise InvalidRequest("body must not be empty unless the stream is closed")
        closed = await stream.close(mark)
        streams.counters.closes += 1
        return _append_answer(request, stream, closed)
    await _check_type(request, stream, mark)
    values = await values_of(stream.row.content_type, body)
    if not values:
        raise InvalidRequest("body must not be an empty array")
    outcome = await stream.append(values, mark, request.caller)
    request.usage.charge(QuotaKind.PRODUCE, len(body))
    counters = streams.counters
    if outcome.is_duplicate:
        counters.duplicates += 1
    else:
        counters.appends += 1
        counters.records += len(values)
        counters.bytes += len(body)
    return _append_answer(request, stream, outcome)


async def _check_type(request: HttpRequest, stream: DurableStream, mark: WriteMark) -> None:
    """Refuse a body of another type; before that, everything that a closed stream refuses."""
    content_type = content_type_of(request)
    if content_type is None:
        raise InvalidRequest("Content-Type must be set if there is a body")
    if media_type(content_type) != media_type(stream.row.content_type):
        await stream.check_open(mark)
        raise StreamMismatch(
            f"body must have the type of the stream, {stream.row.content_type!r},"
            f" got {content_type!r}"
        )


def _append_answer(
    request: HttpRequest, stream: DurableStream, outcome: StreamAppendResult
) -> Response:
    if outcome.timings is not None:
        request.note_timings(outcome.timings)
    headers = {NEXT_OFFSET: text_of(stream, outcome.next_offset), "Cache-Control": "no-store"}
    if outcome.is_closed:
        headers[CLOSED] = "true"
    status = HTTPStatus.NO_CONTENT
    if outcome.position is not None:
        headers[PRODUCER_EPOCH] = str(outcome.position.epoch)
        headers[PRODUCER_NUMBER] = str(outcome.position.number)
        if not outcome.is_duplicate and outcome.has_data:
            status = HTTPStatus.OK
    return Response(status_code=status, headers=headers)


async def describe_stream(request: HttpRequest) -> Response:
    """Return the type and the end of a stream. This does not count as a use of it."""
    path = path_of(request)
    stream = request.context.broker.streams.of(path).get(path)
    await stream.open()
    await stream.catch_up()
    row = stream.row
    headers = {NEXT_OFFSET: text_of(stream, stream.next_offset), "Cache-Control": "no-store"}
    if row.ttl_seconds is not None:
        headers[TTL] = str(row.ttl_seconds)
    if row.expires_text is not None:
        headers[EXPIRES] = row.expires_text
    if stream.closure is not None:
        headers[CLOSED] = "true"
    return _typed(stream, Response(headers=headers))


async def delete_stream(request: HttpRequest) -> Response:
    """Delete a stream and its records. If it has forks, its path stays reserved."""
    path = path_of(request)
    await request.context.broker.streams.of(path).delete(path)
    request.usage.charge(QuotaKind.MUTATION, 1)
    return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Cache-Control": "no-store"})


async def describe_streams(_: HttpRequest) -> Response:
    """Return the methods and headers of streams, for the preflight request of a browser.

    The response allows no other origin, so pages of other origins cannot use them.
    """
    headers = {
        "Allow": METHODS,
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": ", ".join(HEADERS),
    }
    return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)


async def read_stream(request: HttpRequest) -> Response:
    """Read a stream from an offset on; with `live`, wait for new data or get it as events."""
    read = parse_read_stream(request)
    usage = request.usage
    if read.live != "sse":  # Events wait if the client owes.
        usage.check(QuotaKind.CONSUME)
    broker = request.context.broker
    path = path_of(request)
    streams = broker.streams.of(path)
    stream = streams.get(path)
    await stream.open()
    streams.use(stream)
    streams.counters.reads[read.live or "catch-up"] += 1
    if read.is_now:
        await stream.catch_up()
    offset = first_offset(stream, read)
    if read.live == "sse":
        return await _events(request, stream, offset, read)
    if read.live is None:
        chunk = await read_chunk(stream, offset, is_newest=True)
    else:
        request.is_long_poll = True
        seconds = request.context.config.stream_wait_ms / 1000
        chunk = await wait_for_chunk(broker, stream, offset, seconds)
    return _chunk_answer(request, stream, chunk, read)


def _chunk_answer(
    request: HttpRequest, stream: DurableStream, chunk: StreamChunk, read: ReadStream
) -> Response:
    headers = {NEXT_OFFSET: chunk.next_text}
    if chunk.is_up_to_date:
        headers[UP_TO_DATE] = "true"
    if chunk.is_end:
        headers[CLOSED] = "true"
    if read.live is not None and not chunk.is_end:
        now_ms = request.context.broker.clock.wall_ms()
        headers[CURSOR] = cursor_after(read.cursor, now_ms, random.randint)
    if read.live is not None and not chunk.records:
        headers["Cache-Control"] = "no-store"
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
    if read.is_now:
        headers["Cache-Control"] = "no-store"
    else:
        etag = headers["ETag"] = chunk.etag(stream)
        headers["Cache-Control"] = REVALIDATED if chunk.is_up_to_date else CACHED
        if read.live is None and _is_known(request, etag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    body = body_of(stream.row.content_type, chunk.records)
    request.usage.charge(QuotaKind.CONSUME, len(body))
    return _typed(stream, Response(body, headers=headers))


def _is_known(request: HttpRequest, etag: str) -> bool:
    known = request.headers.get("if-none-match", "")
    return known == "*" or etag in (tag.strip().removeprefix("W/") for tag in known.split(","))


async def _events(
    request: HttpRequest, stream: DurableStream, offset: int, read: ReadStream
) -> Response:
    broker, config = request.context.broker, request.context.config
    chunk = await read_chunk(stream, offset)
    headers = {"Cache-Control": "no-cache"}
    if not is_text(stream.row.content_type):
        headers["Stream-SSE-Data-Encoding"] = "base64"
    events = events_of(
        broker,
        stream,
        chunk,
        read.cursor,
        request.usage,
        heartbeat_seconds=config.heartbeat_ms / 1000,
        draw=random.randint,
    )
    return StreamEventsResponse(
        events,
        headers,
        output_seconds_max=config.output_ms_max / 1000,
        slot=request.live_slot(),
    )


def _typed(stream: DurableStream, response: Response) -> Response:
    """Set the content type of a response to that of the stream."""
    response.headers["content-type"] = stream.row.content_type
    return response
