"""One connection of an HTTP client.

    bytes ──► framing ──► parser (httptools) ──► one request at work ──► answer ──► bytes
                 │                                         │                │
                 └── holds what follows, and reading stops ◄────────────────┘
                     until the answer is written

Uvicorn's protocol runs the application. This one stands around it and gives nothing to it that is
in doubt, late, or too much: what a client may send is bounded in bytes (`framing.py`), in time
(`deadlines.py`) and, with all other clients, in memory. Whoever is refused hears why where that can
still be said, and is not listened to any more.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from http import HTTPStatus
from typing import cast

import httptools
import uvicorn
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from millstream.servers.http.routing.errors import RETRY_AFTER_SECONDS
from millstream.servers.http.routing.request_state import is_resumable
from millstream.servers.http.server.connection_deadlines import ConnectionDeadlines, has_read_enough
from millstream.servers.http.server.flow_control import PausableFlowControl, ResponseTransport
from millstream.servers.http.server.raw_responses import raw_error_response
from millstream.servers.http.server.request_framer import RequestFramer, RequestPart
from millstream.servers.http.server.server_state import HttpServerState

logger = logging.getLogger(__name__)

LINGER_MS = 500
"""How long what still comes from a refused client is thrown away before the connection is cut. If
it were cut at once, the system would throw away the answer too."""

LINGER_SIZE_MAX = 32 * 1024 * 1024
"""How much of it is thrown away: enough for one who sends all of a body that is somewhat too large
before looking at the answer."""


class ConnectionPhase(enum.Enum):
    """What a connection waits for."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"


class HttpProtocol(HttpToolsProtocol):
    """The protocol of one connection. All of it runs on the event loop."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, doorway: HttpServerState
    ) -> None:
        super().__init__(config, state, {})
        # What follows a last request is never given to the parser, so it need not bear with it.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self._doorway = doorway
        self._flow: PausableFlowControl
        self._outlet: ResponseTransport
        self._limits = doorway.config
        self._counters = doorway.counters
        self._framing = RequestFramer(head_size_max=doorway.config.head_size_max)
        self._deadlines = ConnectionDeadlines(
            doorway.clock,
            doorway.timers,
            on_input_late=self._input_late,
            on_output_late=self._output_late,
        )
        self._phase = ConnectionPhase.HEAD
        self._phase_ms_max = {
            ConnectionPhase.IDLE: doorway.config.idle_ms_max,
            ConnectionPhase.HEAD: doorway.config.head_ms_max,
            ConnectionPhase.BODY: doorway.config.body_ms_max,
            ConnectionPhase.ANSWER: None,
        }
        self._is_over = False
        """Whether nothing that comes is listened to any more."""
        self._is_message_complete = False
        self._held_size = 0
        self._unread_size = 0
        self._thrown_away_size = 0

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, which was admitted."""
        super().connection_made(transport)
        self.flow = self._flow = PausableFlowControl(transport)
        self._outlet = ResponseTransport(transport, self._counters, self._close_behind_answer)
        self._doorway.connections.place(self, self._address)
        self._deadlines.set_input(self._limits.head_ms_max)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back; who works for this client learns that it is gone."""
        self._is_over = True
        self._deadlines.cancel()
        self._hold(0)
        self._note_unread(0)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close now, or when the request that is under way is answered."""
        if self._is_over:
            return
        if self._is_answering and self.flow.write_paused and is_resumable(self.scope):
            self._abort("output", "the node stops, and it does not read")
        elif self._phase is ConnectionPhase.ANSWER or self._is_answering:
            self.cycle.keep_alive = False
        else:
            self._close()

    @property
    def _address(self) -> str:
        return str(self.client[0]) if self.client else ""

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # What comes in.

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        self._counters.received_bytes += len(data)
        if self._is_over:
            self._thrown_away_size += len(data)
            if self._thrown_away_size > LINGER_SIZE_MAX:
                self.transport.abort()
            return
        self._hold(self._held_size + len(data))
        if self._counters.held_bytes > self._limits.receive_bytes_max:
            self._refuse_for_memory()
            return
        self._framing.receive(data)
        self._proceed()

    def _proceed(self) -> None:
        """Give the parser what belongs to the request at hand."""
        try:
            while (piece := self._framing.take()) is not None:
                self._parse(piece)
                if self._is_over:
                    return
        except HTTPException as refused:
            self._refuse(HTTPStatus(refused.status_code), refused.detail, "malformed")
            return
        if self._framing.part is RequestPart.NOTHING and self._framing.held_size:
            self._flow.hold()
        self._enter(self._phase_now())

    def _parse(self, piece: bytes) -> None:
        """Have a piece of a request parsed; refuse it where framing and parser disagree."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._upgrade()
                return
            # Without WebSockets it is a request as any other.
        except httptools.HttpParserInvalidMethodError:
            message = "method is not known here"
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, message) from None
        except httptools.HttpParserError as error:
            message = f"request cannot be read: {error}"
            raise HTTPException(HTTPStatus.BAD_REQUEST, message) from None
        if self._is_message_complete is not (self._framing.part is RequestPart.NOTHING):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "it is in doubt where the request ends")

    def _upgrade(self) -> None:
        """Hand the connection over; it stays counted, and has deadlines of its own."""
        if self._framing.held_size:
            message = "something follows the request for a WebSocket before it was granted"
            raise HTTPException(HTTPStatus.BAD_REQUEST, message)
        self._is_over = True
        self._deadlines.cancel()
        self._hold(0)
        self.handle_websocket_upgrade()
        self._doorway.connections.place(self.transport.get_protocol(), self._address)

    def _phase_now(self) -> ConnectionPhase:
        part = self._framing.part
        if part is RequestPart.NOTHING:
            return ConnectionPhase.ANSWER
        if part is not RequestPart.HEAD:
            return ConnectionPhase.BODY
        if self._framing.held_size or self.cycle is None:
            return ConnectionPhase.HEAD
        return ConnectionPhase.IDLE

    def _enter(self, phase: ConnectionPhase) -> None:
        """Set the deadline of a phase when it begins, and never again within it."""
        if phase is self._phase:
            return
        self._phase = phase
        self._deadlines.set_input(self._phase_ms_max[phase])

    # What the parser finds.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._is_message_complete = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin to answer. While the body is on its way, an answer ends the connection."""
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is before:
            return  # It becomes a WebSocket.
        self.cycle.transport = cast("asyncio.Transport", self._outlet)
        if self._framing.part is not RequestPart.NOTHING:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """All of the request is there; the connection may be used again behind its answer."""
        self._is_message_complete = True
        super().on_message_complete()
        if self._is_answering and not self._doorway.closing.is_closing:
            version = self.scope["http_version"]
            self.cycle.keep_alive = version != "1.0" and self.parser.should_keep_alive()

    def on_response_complete(self) -> None:
        """Go on to the next request, which may have come already."""
        self.server_state.total_requests += 1
        if self._is_over or self.transport.is_closing():
            return
        self._framing.finish()
        self._hold(self._framing.held_size)
        self._flow.release()
        self._proceed()

    # What goes out.

    def pause_writing(self) -> None:
        """More waits to be read than the transport likes."""
        super().pause_writing()
        self._note_unread(self.transport.get_write_buffer_size())
        self._deadlines.set_output(self._limits.output_ms_max)
        if self._counters.unread_bytes > self._limits.output_bytes_max:
            self._abort("memory", "too much waits for all clients together")

    def resume_writing(self) -> None:
        """It was read."""
        self._note_unread(0)
        if not self.transport.is_closing():
            self._deadlines.set_output(None)
        super().resume_writing()

    # Deadlines.

    def _input_late(self) -> None:
        """End what took too long to come."""
        if self._is_over:
            self.transport.abort()
        elif self._phase is ConnectionPhase.BODY:
            message = f"body took longer than {self._limits.body_ms_max} ms to arrive"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "body")
        elif self._framing.held_size:
            message = f"head took longer than {self._limits.head_ms_max} ms to arrive"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "head")
        else:
            self._counters.ended["idle"] += 1
            self._close()

    def _output_late(self) -> None:
        """Cut off a client that does not read, or all too slowly."""
        left = self.transport.get_write_buffer_size()
        if has_read_enough(self._unread_size, left):
            self._note_unread(left)
            self._deadlines.set_output(self._limits.output_ms_max)
            return
        self._abort("output", f"read nothing for {self._limits.output_ms_max} ms")

    # Endings.

    def _refuse_for_memory(self) -> None:
        message = "all clients together send more than the node has memory for"
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, message, "memory", headers)

    def _refuse(
        self, status: HTTPStatus, message: str, why: str, headers: dict[str, str] | None = None
    ) -> None:
        """Say what is wrong, where no answer has begun, and listen no more."""
        logger.info("%s: refused with %d: %s", self._address, status, message)
        self._counters.ended[why] += 1
        if self.transport.is_closing() or (self._is_answering and self.cycle.response_started):
            self._is_over = True
            self.transport.abort()
            return
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(raw_error_response(status, message, headers))
        self._linger()

    def _linger(self) -> None:
        """Close once what was written is on its way, and the client has stopped sending."""
        self._is_over = True
        self._hold(0)
        if self.transport.is_closing():
            return
        self.transport.write_eof()
        self._flow.release()
        self._deadlines.set_input(LINGER_MS)

    def _close(self) -> None:
        """Close once what was written is read, or is not read in time."""
        self._is_over = True
        self._deadlines.set_input(None)
        self._deadlines.set_output(self._limits.output_ms_max)
        self.transport.close()

    def _close_behind_answer(self) -> None:
        """Close when an answer is written: with care where something of the client is unread."""
        if self._is_over:
            return
        if self._framing.part is RequestPart.NOTHING and not self._framing.held_size:
            self._close()
        else:
            self._linger()

    def _abort(self, why: str, message: str) -> None:
        """Cut the connection, without a word."""
        logger.info("%s: closed: %s", self._address, message)
        self._counters.ended[why] += 1
        self._is_over = True
        self.transport.abort()

    # What is held.

    def _hold(self, size: int) -> None:
        """Count so many bytes as held by this connection."""
        self._counters.held_bytes += size - self._held_size
        self._held_size = size

    def _note_unread(self, size: int) -> None:
        self._counters.unread_bytes += size - self._unread_size
        self._unread_size = size
