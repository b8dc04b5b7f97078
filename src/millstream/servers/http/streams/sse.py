"""A stream as server-sent events.

    event: data        new data: text as it is, JSON as an array, everything else in base64
    event: control     {"streamNextOffset": "...", "streamCursor": "...", "upToDate": true}

A control event follows every data event, and comes first if there is no new data. The connection
ends when the stream does, when the node stops, and after a minute, so that caches can share one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from millstream.broker.broker import Broker
from millstream.broker.partition.record_page import NewRecordsWaiter
from millstream.broker.quotas import QuotaKind
from millstream.broker.streams.create_stream import is_json, media_type
from millstream.broker.streams.stream import DurableStream
from millstream.errors import MillstreamError
from millstream.servers.http.routing.throttle import Throttle
from millstream.servers.http.routing.usage import ClientUsage
from millstream.servers.http.streams.messages import body_of
from millstream.servers.http.streams.positions import cursor_after
from millstream.servers.http.streams.stream_chunk import StreamChunk, read_chunk

logger = logging.getLogger(__name__)

EVENTS_SECONDS_MAX = 60.0
"""How long one connection lasts; the client reconnects at its position."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


def is_text(content_type: str) -> bool:
    """Return whether the data of a stream is sent in events as it is."""
    return is_json(content_type) or media_type(content_type).startswith("text/")


class StreamEventsResponse(StreamingResponse):
    """Sends events as fast as they are read, and drops a client that reads nothing for too long."""

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        headers: dict[str, str],
        *,
        output_seconds_max: float,
        slot: AbstractContextManager[None],
    ) -> None:
        """`slot` is that of the live connection, for as long as it lasts."""
        super().__init__(events, headers=headers)
        self._events = events
        self.headers["content-type"] = "text/event-stream"
        self._output_seconds_max = output_seconds_max
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, or raise if the client has too many live connections."""
        with self._slot:
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send all events, each within its deadline."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._output_seconds_max):
                await send(message)

        async with contextlib.aclosing(self._events):
            try:
                await super().stream_response(send_in_time)
            except TimeoutError:
                logger.info("a client read no events for %g s", self._output_seconds_max)


async def events_of(
    broker: Broker,
    stream: DurableStream,
    chunk: StreamChunk,
    cursor: str | None,
    usage: ClientUsage,
    *,
    heartbeat_seconds: float,
    draw: Callable[[int, int], int],
) -> AsyncGenerator[bytes]:
    """Yield the events of a stream, beginning with a chunk that was read already."""
    waiter = NewRecordsWaiter((), broker.timers)
    clock = broker.clock
    deadline = clock.monotonic() + EVENTS_SECONDS_MAX
    is_sent = False
    throttle = Throttle(usage, broker.timers, waiter.wake)
    streams = broker.streams.of(stream.path)
    with streams.reading(stream, waiter.wake), contextlib.closing(throttle):
        while True:
            is_held = bool(chunk.records) and throttle.is_held()
            if not is_held and (chunk.records or chunk.is_end or not is_sent):
                cursor = cursor_after(cursor, clock.wall_ms(), draw)
                data = _data(stream, chunk)
                yield data + _control(chunk, cursor)
                is_sent = chunk.is_up_to_date
                usage.charge(QuotaKind.CONSUME, len(data))
                usage.settle()
            remaining = deadline - clock.monotonic()
            is_done = chunk.is_end and not is_held
            if is_done or remaining <= 0 or streams.is_stopping:
                return
            if is_sent or is_held:
                before = clock.monotonic()
                await waiter.wait(min(remaining, heartbeat_seconds))
                if clock.monotonic() - before >= heartbeat_seconds:
                    yield b": \n\n"  # This notices a client that has disconnected.
            if is_held and throttle.is_held():
                continue
            try:
                # Delayed records are read again: some may have been deleted meanwhile.
                offset = chunk.from_offset if is_held else chunk.next_offset
                chunk = await read_chunk(stream, offset)
            except MillstreamError:
                return  # It is deleted; the client gets the reason when it reconnects.


def _data(stream: DurableStream, chunk: StreamChunk) -> bytes:
    if not chunk.records:
        return b""
    content_type = stream.row.content_type
    body = body_of(content_type, chunk.records)
    if not is_text(content_type):
        return b"event: data\ndata:" + base64.b64encode(body) + b"\n\n"
    lines = [
        b"data:" + (b" " if line[:1] == b" " else b"") + line for line in _LINE_END.split(body)
    ]
    return b"event: data\n" + b"\n".join(lines) + b"\n\n"


def _control(chunk: StreamChunk, cursor: str) -> bytes:
    control: dict[str, str | bool] = {"streamNextOffset": chunk.next_text}
    if chunk.is_end:
        control["streamClosed"] = True
    else:
        control["streamCursor"] = cursor
    if chunk.is_up_to_date:
        control["upToDate"] = True
    return b"event: control\ndata:" + msgspec.json.encode(control) + b"\n\n"
