"""The handlers of streams: create, append and close, read, describe, delete."""

from __future__ import annotations

import random
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.quotas import QuotaKind
from millstream.broker.streams.create_stream import media_type
from millstream.broker.streams.stream import DurableStream, StreamAppendResult
from millstream.broker.streams.writers import WriteMark
from millstream.config.schema import MIB
from millstream.errors import InvalidRequest, StreamMismatch
from millstream.records.batch import BATCH_SIZE_MAX
from millstream.servers.http.routing.bodies import read_bytes
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.streams.messages import body_of, values_of
from millstream.servers.http.streams.positions import cursor_after, offset_text
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
    url_of,
    write_mark,
)
from millstream.servers.http.streams.sse import StreamEventsResponse, events_of, is_text
from millstream.servers.http.streams.stream_chunk import (
    StreamChunk,
    first_offset,
    read_chunk,
    wait_for_chunk,
)

BATCH_ROOM = 4 * MIB
"""What a batch needs beside the body that it came from: some forty bytes for each message."""

METHODS = "GET, HEAD, POST, PUT, DELETE, OPTIONS"

CACHED = "private, max-age=60, stale-while-revalidate=300"
"""A piece that others follow never changes."""
REVALIDATED = "private, no-cache"
"""At the end of a stream there may be more the next time, which the ETag tells."""


async def create_stream(request: HttpRequest) -> Response:
    """Create a stream, or a fork of one; or find that there is one that is just this."""
    path = path_of(request)
    asked = parse_create_stream(request)
    streams = request.context.broker.streams
    body = await read_bytes(request, size_max=request.context.config.append_size_max)
    values = await values_of(streams.content_type_of(path, asked), body)
    size_max = min(BATCH_SIZE_MAX, request.context.config.append_size_max + BATCH_ROOM)
    stream, is_new = await streams.create(path, asked, values, message_bytes_max=size_max)
    streams.use(stream)
    usage = request.usage
    usage.charge(QuotaKind.PRODUCE, len(body))
    usage.charge(QuotaKind.MUTATION, int(is_new))
    headers = {NEXT_OFFSET: offset_text(stream.next_offset), "Cache-Control": "no-store"}
    if stream.closure is not None:
        headers[CLOSED] = "true"
    if is_new:
        headers["Location"] = url_of(request)
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return _typed(stream, Response(status_code=status, headers=headers))


async def append_to_stream(request: HttpRequest) -> Response:
    """Append to a stream, and close it where that is asked for.

    Answered once the durability class of its topic is met. Appends of one producer are stored
    once, however often they are sent.
    """
    path = path_of(request)
    mark = write_mark(request)
    streams = request.context.broker.streams
    body = await read_bytes(request, size_max=request.context.config.append_size_max)
    stream = streams.get(path)
    streams.use(stream)
    if not body:
        if not mark.is_closing:
            raise InvalidRequest("body is empty, and the stream is not to be closed: nothing to do")
        closed = await stream.close(mark)
        streams.counters.closes += 1
        return _append_answer(request, closed)
    await _check_type(request, stream, mark)
    values = await values_of(stream.row.content_type, body)
    if not values:
        raise InvalidRequest("body is an empty array: there is nothing to append")
    outcome = await stream.append(values, mark)
    request.usage.charge(QuotaKind.PRODUCE, len(body))
    counters = streams.counters
    if outcome.is_duplicate:
        counters.duplicates += 1
    else:
        counters.appends += 1
        counters.records += len(values)
        counters.bytes += len(body)
    return _append_answer(request, outcome)


async def _check_type(request: HttpRequest, stream: DurableStream, mark: WriteMark) -> None:
    """Refuse what is of another type; before that, what a closed stream refuses anyway."""
    found = content_type_of(request)
    if found is None:
        raise InvalidRequest("Content-Type is missing, and needed where there is a body")
    if media_type(found) != media_type(stream.row.content_type):
        await stream.check_open(mark)
        raise StreamMismatch(
            f"body is of type {found!r}, and the stream of type {stream.row.content_type!r}"
        )


def _append_answer(request: HttpRequest, outcome: StreamAppendResult) -> Response:
    if outcome.timings is not None:
        request.note_timings(outcome.timings)
    headers = {NEXT_OFFSET: offset_text(outcome.next_offset), "Cache-Control": "no-store"}
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
    """Tell what a stream is and where it ends. This does not count as a use of it."""
    stream = request.context.broker.streams.get(path_of(request))
    await stream.open()
    row = stream.row
    headers = {NEXT_OFFSET: offset_text(stream.next_offset), "Cache-Control": "no-store"}
    if row.ttl_seconds is not None:
        headers[TTL] = str(row.ttl_seconds)
    if row.expires_text is not None:
        headers[EXPIRES] = row.expires_text
    if stream.closure is not None:
        headers[CLOSED] = "true"
    return _typed(stream, Response(headers=headers))


async def delete_stream(request: HttpRequest) -> Response:
    """Delete a stream and its records; where it has forks, its path stays taken."""
    await request.context.broker.streams.delete(path_of(request))
    request.usage.charge(QuotaKind.MUTATION, 1)
    return Response(status_code=HTTPStatus.NO_CONTENT, headers={"Cache-Control": "no-store"})


async def describe_streams(_: HttpRequest) -> Response:
    """Tell what may be asked of streams, as a browser asks before it does.

    Which pages may ask is not said here, so pages of other origins may not.
    """
    headers = {
        "Allow": METHODS,
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": ", ".join(HEADERS),
    }
    return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)


async def read_stream(request: HttpRequest) -> Response:
    """Read a stream from an offset on; live, wait for what is new or be sent it as it comes."""
    asked = parse_read_stream(request)
    usage = request.usage
    if asked.live != "sse":  # Events wait, where something is owed.
        usage.check(QuotaKind.CONSUME)
    broker = request.context.broker
    stream = broker.streams.get(path_of(request))
    await stream.open()
    broker.streams.use(stream)
    broker.streams.counters.reads[asked.live or "catch-up"] += 1
    offset = first_offset(stream, asked)
    if asked.live == "sse":
        return await _events(request, stream, offset, asked)
    if asked.live is None:
        piece = await read_chunk(stream, offset)
    else:
        request.is_long_poll = True
        seconds = request.context.config.stream_wait_ms / 1000
        piece = await wait_for_chunk(broker, stream, offset, seconds)
    return _piece_answer(request, stream, piece, asked)


def _piece_answer(
    request: HttpRequest, stream: DurableStream, piece: StreamChunk, asked: ReadStream
) -> Response:
    headers = {NEXT_OFFSET: piece.next_text}
    if piece.is_up_to_date:
        headers[UP_TO_DATE] = "true"
    if piece.is_end:
        headers[CLOSED] = "true"
    if asked.live is not None and not piece.is_end:
        now_ms = request.context.broker.clock.wall_ms()
        headers[CURSOR] = cursor_after(asked.cursor, now_ms, random.randint)
    if asked.live is not None and not piece.records:
        headers["Cache-Control"] = "no-store"
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)
    if asked.is_now:
        headers["Cache-Control"] = "no-store"
    else:
        etag = headers["ETag"] = piece.etag(stream)
        headers["Cache-Control"] = REVALIDATED if piece.is_up_to_date else CACHED
        if asked.live is None and _is_known(request, etag):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    body = body_of(stream.row.content_type, piece.records)
    request.usage.charge(QuotaKind.CONSUME, len(body))
    return _typed(stream, Response(body, headers=headers))


def _is_known(request: HttpRequest, etag: str) -> bool:
    known = request.headers.get("if-none-match", "")
    return known == "*" or etag in (one.strip().removeprefix("W/") for one in known.split(","))


async def _events(
    request: HttpRequest, stream: DurableStream, offset: int, asked: ReadStream
) -> Response:
    broker, config = request.context.broker, request.context.config
    piece = await read_chunk(stream, offset)
    headers = {"Cache-Control": "no-cache"}
    if not is_text(stream.row.content_type):
        headers["Stream-SSE-Data-Encoding"] = "base64"
    events = events_of(
        broker,
        stream,
        piece,
        asked.cursor,
        request.usage,
        heartbeat_seconds=config.heartbeat_ms / 1000,
        draw=random.randint,
    )
    return StreamEventsResponse(events, headers, output_seconds_max=config.output_ms_max / 1000)


def _typed(stream: DurableStream, response: Response) -> Response:
    """Say of which type the stream is, in the words that it was given in."""
    response.headers["content-type"] = stream.row.content_type
    return response
