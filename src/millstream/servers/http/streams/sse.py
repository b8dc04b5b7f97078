"""A stream as server-sent events.

    event: data        what is new: text as it is, JSON as an array, all else in base64
    event: control     {"streamNextOffset": "...", "streamCursor": "...", "upToDate": true}

A control event follows every data event, and comes first where there is nothing new. The connection
ends when the stream does, when the node stops, and after a minute: then others may share one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

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
"""How long one connection lasts; its client comes back to where it was."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


def is_text(content_type: str) -> bool:
    """Whether a stream goes into events as it is."""
    return is_json(content_type) or media_type(content_type).startswith("text/")


class StreamEventsResponse(StreamingResponse):
    """Sends events as fast as they are read, and drops a client that reads nothing for long."""

    def __init__(
        self, events: AsyncGenerator[bytes], headers: dict[str, str], *, output_seconds_max: float
    ) -> None:
        super().__init__(events, headers=headers)
        self._events = events
        self.headers["content-type"] = "text/event-stream"
        self._output_seconds_max = output_seconds_max

    async def stream_response(self, send: Send) -> None:
        """Send all events, each within its time."""

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
    piece: StreamChunk,
    cursor: str | None,
    usage: ClientUsage,
    *,
    heartbeat_seconds: float,
    draw: Callable[[int, int], int],
) -> AsyncGenerator[bytes]:
    """Yield the events of a stream, beginning with a piece that was read already."""
    arrival = NewRecordsWaiter((), broker.timers)
    clock = broker.clock
    deadline = clock.monotonic() + EVENTS_SECONDS_MAX
    is_told = False
    holding = Throttle(usage, broker.timers, arrival.wake)
    with broker.streams.reading(stream, arrival.wake), contextlib.closing(holding):
        while True:
            is_held = bool(piece.records) and holding.is_held()
            if not is_held and (piece.records or piece.is_end or not is_told):
                cursor = cursor_after(cursor, clock.wall_ms(), draw)
                data = _data(stream, piece)
                yield data + _control(piece, cursor)
                is_told = piece.is_up_to_date
                usage.charge(QuotaKind.CONSUME, len(data))
                usage.settle()
            left = deadline - clock.monotonic()
            is_done = piece.is_end and not is_held
            if is_done or left <= 0 or broker.streams.is_stopping:
                return
            if is_told or is_held:
                before = clock.monotonic()
                await arrival.wait(min(left, heartbeat_seconds))
                if clock.monotonic() - before >= heartbeat_seconds:
                    yield b": \n\n"  # Whoever hung up is noticed by this.
            if is_held and holding.is_held():
                continue
            try:
                # What was held back is read again: some of it may have been deleted meanwhile.
                offset = piece.from_offset if is_held else piece.next_offset
                piece = await read_chunk(stream, offset)
            except MillstreamError:
                return  # It is gone, and its client hears why when it comes back.


def _data(stream: DurableStream, piece: StreamChunk) -> bytes:
    if not piece.records:
        return b""
    content_type = stream.row.content_type
    body = body_of(content_type, piece.records)
    if not is_text(content_type):
        return b"event: data\ndata:" + base64.b64encode(body) + b"\n\n"
    lines = [
        b"data:" + (b" " if line[:1] == b" " else b"") + line for line in _LINE_END.split(body)
    ]
    return b"event: data\n" + b"\n".join(lines) + b"\n\n"


def _control(piece: StreamChunk, cursor: str) -> bytes:
    told: dict[str, str | bool] = {"streamNextOffset": piece.next_text}
    if piece.is_end:
        told["streamClosed"] = True
    else:
        told["streamCursor"] = cursor
    if piece.is_up_to_date:
        told["upToDate"] = True
    return b"event: control\ndata:" + msgspec.json.encode(told) + b"\n\n"
