"""One WebSocket connection: frames by `websockets`, limits and ASGI here.

Bounds on what waits: one message is read at a time, and no more are read until the application has
taken it. While a client does not read, nothing is read from it either, and one that reads nothing
for too long is cut off. Pings are answered here, and sent, so that a dead client is noticed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from http import HTTPStatus

from starlette.types import Message, Scope
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from millstream.clock import Timer
from millstream.servers.http.routing.callers import SUBPROTOCOL
from millstream.servers.http.server.server_state import HttpServerState

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""How long a client has to answer a close frame."""

STOP_CLOSE_SECONDS = 0.5
"""The same while the node stops."""

ABNORMAL_CLOSURE = 1006
NO_STATUS = 1005
PING_TIMEOUT = 1011

_frames_logger = logging.getLogger(f"{__name__}.frames")
_frames_logger.setLevel(logging.WARNING)  # It logs every frame and every connection.


class WebSocketProtocol(asyncio.Protocol):
    """The protocol of one WebSocket connection. All of it runs on the event loop."""

    is_websocket = True

    def __init__(self, state: HttpServerState, scope: Scope) -> None:
        """`scope` is that of the HTTP request for the WebSocket."""
        self.transport: asyncio.Transport
        self._state = state
        self._scope: Scope = {
            **scope,
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "scheme": "wss" if scope["scheme"] == "https" else "ws",
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self._frames = ServerProtocol(
            extensions=[],
            select_subprotocol=_select_subprotocol,
            max_size=state.config.append_size_max,
            logger=_frames_logger,
        )
        self._response: Response
        """What accepts the WebSocket."""
        self._denial: tuple[int, Headers, bytes] | None = None
        """Status, headers and body of a response that refuses the WebSocket."""
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        self._fragments: list[bytes] = []
        self._is_open = False
        """Whether the handshake is over."""
        self._is_close_sent = False
        self._is_disconnected = False
        self._is_read_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._close_seconds = CLOSE_SECONDS
        self._close_timer: Timer | None = None
        self._output_timer: Timer | None = None
        self._ping_timer: Timer | None = None
        """The next ping, or the deadline for the answer to the last one."""
        self._ping: bytes | None = None

    # The connection.

    def begin(self, transport: asyncio.Transport, request: bytes) -> None:
        """Take over a connection whose client sent `request`."""
        self.transport = transport
        transport.set_protocol(self)
        self._frames.receive_data(request)
        self._handle_events()

    def connection_lost(self, _: Exception | None) -> None:
        """Release everything; the application learns that the client has disconnected."""
        code = NO_STATUS if self._is_open else ABNORMAL_CLOSURE
        self._queue.put_nowait({"type": "websocket.disconnect", "code": code})
        self._state.connections.discard(self)
        self._is_open = self._is_disconnected = True
        self._writable.set()  # A sender that waits would wait forever.
        self._stop_pings()
        for timer in (self._close_timer, self._output_timer):
            if timer is not None:
                timer.cancel()
        self._close_timer = self._output_timer = None

    def pause_writing(self) -> None:
        """Stop reading too while the client does not read, and limit how long that may take."""
        self._writable.clear()
        self.transport.pause_reading()
        seconds = self._state.config.output_ms_max / 1000
        self._output_timer = self._state.timers.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue: the client has read."""
        self._writable.set()
        if self._output_timer is not None:
            self._output_timer.cancel()
            self._output_timer = None
        if not self._is_read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def shutdown(self) -> None:
        """End soon: the application was notified, and closes with a close frame.

        A client that would not read that is cut off.
        """
        self._stop_pings()
        self._close_seconds = STOP_CLOSE_SECONDS
        if not self._writable.is_set():
            self.transport.abort()
        elif self._is_close_sent:
            self.transport.close()
        elif not self._is_open:
            self._reject()
            self.transport.close()

    def _flush(self) -> None:
        """Write what the frame layer has to send."""
        self.transport.write(b"".join(self._frames.data_to_send()))

    # Input.

    def data_received(self, data: bytes) -> None:
        """Process frames; stop reading if the answers to them cannot be written."""
        self._frames.receive_data(data)
        self._handle_events()
        if not self._writable.is_set() and not self.transport.is_closing():
            self.transport.pause_reading()

    def _handle_events(self) -> None:
        if self._frames.parser_exc is not None:
            self._fail()
            return
        for event in self._frames.events_received():
            if isinstance(event, Request):
                self._handle_request(event)
            elif isinstance(event, Frame):
                self._handle_frame(event)

    def _handle_request(self, request: Request) -> None:
        self._response = self._frames.accept(request)
        if self._response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._is_open = self._is_close_sent = True
            self._frames.send_response(self._response)
            self._flush()
            self.transport.close()
            return
        self._queue.put_nowait({"type": "websocket.connect"})
        self._state.start_task(self._run())

    def _handle_frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            # Text is passed on as bytes: whether it is UTF-8 is checked when it is decoded.
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                self._end_message()
        elif frame.opcode is Opcode.PING:
            self._flush()  # The frame layer has the pong ready.
        elif frame.opcode is Opcode.PONG:
            self._handle_pong(bytes(frame.data))
        elif frame.opcode is Opcode.CLOSE:
            self._handle_close()

    def _end_message(self) -> None:
        data = b"".join(self._fragments)
        self._fragments = []
        if self._is_close_sent:
            return  # The application has finished; only the client's close frame matters now.
        self._queue.put_nowait({"type": "websocket.receive", "bytes": data})
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def _handle_close(self) -> None:
        if self._is_close_sent:
            if self._close_timer is not None:
                self._close_timer.cancel()
                self._close_timer = None
                self.transport.close()
        elif not self.transport.is_closing():
            close = self._frames.close_rcvd
            assert close is not None
            self._put_disconnect(close.code, close.reason)
            self._flush()
            self.transport.close()

    def _fail(self) -> None:
        """End the connection: the client sent something that is not a frame, or too large."""
        close = self._frames.close_sent
        assert close is not None
        self._put_disconnect(close.code, close.reason)
        self._flush()
        self._is_close_sent = True
        self.transport.close()

    def _put_disconnect(self, code: int, reason: str = "") -> None:
        self._queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})

    # Pings.

    def _schedule_ping(self) -> None:
        seconds = self._state.config.heartbeat_ms / 1000
        self._ping_timer = self._state.timers.call_later(seconds, self._send_ping)

    def _send_ping(self) -> None:
        self._ping_timer = None
        if self._is_close_sent or self.transport.is_closing():
            return
        self._ping = os.urandom(4)  # A pong with other bytes answers no ping of ours.
        self._frames.send_ping(self._ping)
        self._flush()
        seconds = self._state.config.output_ms_max / 1000
        self._ping_timer = self._state.timers.call_later(seconds, self._ping_late)

    def _handle_pong(self, data: bytes) -> None:
        if self._ping is not None and data == self._ping:
            self._stop_pings()
            self._schedule_ping()

    def _ping_late(self) -> None:
        self._ping_timer = self._ping = None
        if self._is_close_sent or self.transport.is_closing():
            return
        self._frames.fail(PING_TIMEOUT, "keepalive ping timeout")
        self._flush()
        self._is_close_sent = True
        self.transport.close()

    def _stop_pings(self) -> None:
        self._ping = None
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None

    # The application.

    async def _run(self) -> None:
        try:
            await self._state.app(self._scope, self._receive, self._send)
        except ConnectionResetError:
            pass  # The client has disconnected.
        except Exception:
            logger.exception("the application failed")
        if not self._is_open:
            self._reject()
        if self._close_timer is None:
            self.transport.close()

    def _reject(self) -> None:
        """Refuse the WebSocket because the application did not answer."""
        if self._denial is None and not self._is_open:
            self._is_open = True
            self._frames.send_response(self._frames.reject(500, "Internal Server Error"))
            self._flush()

    async def _receive(self) -> Message:
        message = await self._queue.get()
        if self._is_read_paused and self._queue.empty():
            self._is_read_paused = False
            self.transport.resume_reading()
        return message

    async def _send(self, message: Message) -> None:
        await self._writable.wait()
        if self._is_disconnected:
            raise ConnectionResetError("the client has disconnected")
        kind = message["type"]
        if self._denial is not None and kind == "websocket.http.response.body":
            self._deny(message.get("body", b""), is_last=not message.get("more_body", False))
        elif self._is_open and not self._is_close_sent:
            self._send_frame(message)
        elif self._is_open or self._denial is not None:
            raise RuntimeError(f"unexpected ASGI message {kind!r}: the WebSocket is closed")
        elif kind == "websocket.accept":
            self._accept()
        elif kind == "websocket.close":
            self._denial = (HTTPStatus.FORBIDDEN, Headers(), b"")
            self._deny(b"", is_last=True)
        elif kind == "websocket.http.response.start":
            headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
            self._denial = (message["status"], Headers(headers), b"")
        else:
            raise RuntimeError(f"unexpected ASGI message {kind!r}: the WebSocket is not accepted")

    def _accept(self) -> None:
        if not self.transport.is_closing():
            self._is_open = True
            self._frames.send_response(self._response)
            self._flush()
            self._schedule_ping()

    def _deny(self, body: bytes, *, is_last: bool) -> None:
        """Collect a response that refuses the WebSocket; send it when it is complete."""
        assert self._denial is not None
        status, headers, before = self._denial
        self._denial = status, headers, before + body
        if not is_last:
            return
        headers.setdefault("Date", self._state.date)
        headers.setdefault("Connection", "close")
        headers.setdefault("Content-Length", str(len(before + body)))
        self._put_disconnect(ABNORMAL_CLOSURE)
        phrase = HTTPStatus(status).phrase
        self._frames.send_response(Response(status, phrase, headers, before + body))
        self._flush()
        self._is_open = self._is_close_sent = True
        self.transport.close()

    def _send_frame(self, message: Message) -> None:
        try:
            if message["type"] == "websocket.close":
                self._send_close(message.get("code", 1000), message.get("reason") or "")
                return
            data = message.get("bytes")
            if data is not None:
                self._frames.send_binary(data)
            else:
                self._frames.send_text(message["text"].encode())
            self._flush()
        except InvalidState:
            raise ConnectionResetError("the WebSocket is closing") from None

    def _send_close(self, code: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        self._put_disconnect(code, reason)
        self._frames.send_close(code, reason)
        self._flush()
        self._is_close_sent = True
        if self._is_read_paused:  # The client's close frame is read.
            self._is_read_paused = False
            self.transport.resume_reading()
        self._close_timer = self._state.timers.call_later(self._close_seconds, self.transport.close)


def _select_subprotocol(_: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Return our protocol if a client offers it. A browser closes what chooses none of its offers.

    The response never repeats another offer, which may have a token.
    """
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in offered else None
