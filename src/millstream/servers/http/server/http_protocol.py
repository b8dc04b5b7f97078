"""One connection of an HTTP client.

    bytes ──► framer ──► parser (httptools) ──► one request at work ──► response ──► bytes
                 │                                         │                │
                 └── holds what follows; reading is paused ◄────────────────┘
                     until the response is written

The parser sees only what is unambiguous, in time and within the limits: input is bounded in bytes
(`request_framer.py`), in time (`connection_deadlines.py`) and, over all clients, in memory. A
refused client gets an error response if none has begun, and its further input is discarded.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import unquote

import httptools
from starlette.exceptions import HTTPException
from starlette.types import Scope

from millstream.servers.client_host import client_host
from millstream.servers.http.routing.callers import CERTIFICATE_USER
from millstream.servers.http.routing.errors import RETRY_AFTER_SECONDS
from millstream.servers.http.server.connection_deadlines import ConnectionDeadlines, has_read_enough
from millstream.servers.http.server.raw_responses import raw_error_response
from millstream.servers.http.server.request_cycle import RequestCycle
from millstream.servers.http.server.request_framer import RequestFramer, RequestPart
from millstream.servers.http.server.server_state import HttpServerState
from millstream.servers.http.server.websocket_protocol import WebSocketProtocol
from millstream.servers.tls import certificate_holder, close_idle

logger = logging.getLogger(__name__)

LINGER_MS = 500
"""How long input of a refused client is discarded before the connection is closed. If it were
closed at once, the kernel would discard the response too."""

LINGER_SIZE_MAX = 32 * 1024 * 1024
"""How much input is discarded: enough for a client that sends a whole body that is somewhat too
large before it looks at the response."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}


class ConnectionPhase(enum.Enum):
    """What a connection waits for."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"


class HttpProtocol(asyncio.Protocol):
    """The protocol of one connection. All of it runs on the event loop."""

    is_websocket = False

    def __init__(self, state: HttpServerState) -> None:
        self.transport: asyncio.Transport
        self.is_write_paused = False
        self._state = state
        self._limits = state.config
        self._counters = state.counters
        self._parser = httptools.HttpRequestParser(self)
        # Nothing that follows a last request is given to the parser.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self._framer = RequestFramer(head_size_max=state.config.head_size_max)
        self._deadlines = ConnectionDeadlines(
            state.clock,
            state.timers,
            on_input_late=self._input_late,
            on_output_late=self._output_late,
        )
        self._phase = ConnectionPhase.HEAD
        self._cycle: RequestCycle | None = None
        """The request at work, or the last one."""
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        self._scheme = "http"
        self._certificate_user: str | None = None
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._scope: Scope = {}
        self._expects_continue = False
        self._is_upgrade = False
        """Whether the request being parsed asks for a WebSocket."""
        self._is_message_complete = False
        self._is_over = False
        """Whether input is discarded from now on."""
        self._is_reading = True
        self._is_held = False
        """Whether a request waits behind the one at work; then the application cannot resume
        reading."""
        self._writable: asyncio.Event | None = None
        """Created when a response has to wait for the first time."""
        self._held_size = 0
        self._unread_size = 0
        self._discarded_size = 0

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a connection that was admitted."""
        self.transport = transport
        self._client = _address_of(transport, "peername")
        self._server = _address_of(transport, "sockname")
        self._counters.accepted += 1
        self._state.connections.add(self, self._address)
        self._deadlines.set_input(self._limits.head_ms_max)
        if transport.get_extra_info("ssl_object") is not None:
            self._scheme = "https"
            self._identify()

    def _identify(self) -> None:
        """Take note of the user that the certificate of the client belongs to."""
        holder = certificate_holder(self.transport, self._state.principal_rules)
        if holder is None:
            return
        if holder.user is None:
            shown = holder.name[:200]
            self._abort("tls", f"tls.principal_rules name no user for {shown!r}")
        else:
            self._certificate_user = holder.user

    def connection_lost(self, _: Exception | None) -> None:
        """Release everything; the application learns that the client has disconnected."""
        self._is_over = True
        self._deadlines.cancel()
        self._hold(0)
        self._note_unread(0)
        self._state.connections.discard(self)
        if self._cycle is not None:
            self._cycle.disconnect()
        if self._writable is not None:
            self._writable.set()
        del self._parser  # It refers to this protocol: without the cycle, both are freed at once.

    def shutdown(self) -> None:
        """Close now, or after the response to the request in flight."""
        if self._is_over:
            return
        cycle = self._cycle
        if cycle is None or (cycle.is_complete and self._phase is not ConnectionPhase.ANSWER):
            self._is_over = True
            self._deadlines.set_input(None)
            self._deadlines.set_output(self._limits.output_ms_max)
            close_idle(self.transport)
        elif self.is_write_paused and cycle.is_resumable and not cycle.is_complete:
            self._abort("output", "the node stops and the client does not read")
        else:
            cycle.keep_alive = False

    @property
    def _address(self) -> str:
        return self._client[0] if self._client else ""

    # Input.

    def data_received(self, data: bytes) -> None:
        """Process input."""
        self._counters.received_bytes += len(data)
        if self._is_over:
            self._discarded_size += len(data)
            if self._discarded_size > LINGER_SIZE_MAX:
                self.transport.abort()
            return
        self._hold(self._held_size + len(data))
        if self._counters.held_bytes > self._limits.receive_bytes_max:
            self._refuse_for_memory()
            return
        self._framer.receive(data)
        self._proceed()

    def _proceed(self) -> None:
        """Give the parser the bytes of the current request, as far as they have arrived."""
        try:
            while (piece := self._framer.take()) is not None:
                self._parse(piece)
                if self._is_over:
                    return
        except HTTPException as refused:
            self._refuse(HTTPStatus(refused.status_code), refused.detail, "malformed")
            return
        if self._framer.part is RequestPart.NOTHING and self._framer.held_size:
            self._is_held = True
            self._pause_reading()
        self._enter(self._phase_now())

    def _parse(self, piece: bytes) -> None:
        """Parse a piece of a request; refuse it if framer and parser disagree about its end."""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            if self._is_upgrade:
                self._upgrade()
                return
            # Not for a WebSocket: a request like any other.
        except httptools.HttpParserInvalidMethodError:
            message = "method is not supported"
            raise HTTPException(HTTPStatus.NOT_IMPLEMENTED, message) from None
        except httptools.HttpParserError as error:
            message = f"request cannot be parsed: {error}"
            raise HTTPException(HTTPStatus.BAD_REQUEST, message) from None
        if self._is_message_complete is not (self._framer.part is RequestPart.NOTHING):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "the end of the request is ambiguous")

    def _upgrade(self) -> None:
        """Hand the connection over. It stays counted, and has deadlines of its own."""
        if self._framer.held_size:
            message = "data follows the WebSocket request before it was accepted"
            raise HTTPException(HTTPStatus.BAD_REQUEST, message)
        self._is_over = True
        self._deadlines.cancel()
        self._hold(0)
        self._state.connections.discard(self)
        websocket = WebSocketProtocol(self._state, self._scope)
        self._state.connections.add(websocket, self._address)
        lines = [b"GET %b HTTP/1.1" % self._target]
        lines += [b"%b: %b" % header for header in self._headers]
        websocket.begin(self.transport, b"\r\n".join(lines) + b"\r\n\r\n")

    def _phase_now(self) -> ConnectionPhase:
        part = self._framer.part
        if part is RequestPart.NOTHING:
            return ConnectionPhase.ANSWER
        if part is not RequestPart.HEAD:
            return ConnectionPhase.BODY
        if self._framer.held_size or self._cycle is None:
            return ConnectionPhase.HEAD
        return ConnectionPhase.IDLE

    def _enter(self, phase: ConnectionPhase) -> None:
        """Set the deadline of a phase when it begins, and never again within it."""
        if phase is self._phase:
            return
        self._phase = phase
        self._deadlines.set_input(self._phase_ms_max(phase))

    def _phase_ms_max(self, phase: ConnectionPhase) -> int | None:
        match phase:
            case ConnectionPhase.IDLE:
                return self._limits.idle_ms_max
            case ConnectionPhase.HEAD:
                return self._limits.head_ms_max
            case ConnectionPhase.BODY:
                return self._limits.body_ms_max
            case ConnectionPhase.ANSWER:
                return None

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._target = b""
        self._headers = []
        self._expects_continue = self._is_message_complete = self._is_upgrade = False

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header field."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the application; the body may still be on its way."""
        parser = self._parser
        version = parser.get_http_version()
        raw_path, _, query = origin_form(self._target).partition(b"?")
        path = raw_path.decode("ascii")
        self._scope = scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "root_path": "",
            "headers": self._headers,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }
        if self._certificate_user is not None:
            scope[CERTIFICATE_USER] = self._certificate_user
        if parser.should_upgrade() and _asks_for_websocket(self._headers):
            self._is_upgrade = True
            return
        # A response that comes before the end of the body ends the connection.
        is_whole = self._framer.part is RequestPart.NOTHING
        self._cycle = RequestCycle(
            self,
            scope,
            keep_alive=is_whole and version != "1.0" and parser.should_keep_alive(),
            expects_continue=self._expects_continue,
        )
        self._state.start_task(self._cycle.run(self._state.app))

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the application."""
        assert self._cycle is not None
        if self._cycle.add_body(body):
            self._pause_reading()

    def on_message_complete(self) -> None:
        """End the request; from now on its response may keep the connection."""
        self._is_message_complete = True
        cycle = self._cycle
        if self._is_upgrade or cycle is None or cycle.is_complete:
            return
        cycle.end_body()
        if not self._state.shutdown.is_closing:
            version = cycle.scope["http_version"]
            cycle.keep_alive = version != "1.0" and self._parser.should_keep_alive()

    # Reading.

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless a request waits behind the one at work."""
        if not self._is_reading and not self._is_held:
            self._is_reading = True
            self.transport.resume_reading()

    def _release(self) -> None:
        self._is_held = False
        self.resume_reading()

    # Output.

    @property
    def date_line(self) -> bytes:
        """Return the `Date` line of a response head."""
        return self._state.date_line

    def write(self, data: bytes) -> None:
        """Send a part of a response."""
        self._counters.sent_bytes += len(data)
        self.transport.write(data)

    async def wait_until_writable(self) -> None:
        """Return when the client has read enough, or has disconnected."""
        if self._writable is None:
            self._writable = asyncio.Event()
        await self._writable.wait()

    def on_response_complete(self) -> None:
        """Continue with the next request, which may have arrived already."""
        if self._is_over or self.transport.is_closing():
            return
        self._framer.finish()
        self._hold(self._framer.held_size)
        self._release()
        self._proceed()

    def pause_writing(self) -> None:
        """Limit how much the client may leave unread, and for how long."""
        self.is_write_paused = True
        if self._writable is not None:
            self._writable.clear()
        self._note_unread(self.transport.get_write_buffer_size())
        self._deadlines.set_output(self._limits.output_ms_max)
        if self._counters.unread_bytes > self._limits.output_bytes_max:
            self._abort("memory", "clients together leave too many response bytes unread")

    def resume_writing(self) -> None:
        """Continue: the client has read."""
        self._note_unread(0)
        if not self.transport.is_closing():
            self._deadlines.set_output(None)
        self.is_write_paused = False
        if self._writable is not None:
            self._writable.set()

    # Deadlines.

    def _input_late(self) -> None:
        """Refuse a request that took too long to arrive, or close an idle connection."""
        if self._is_over:
            self.transport.abort()
        elif self._phase is ConnectionPhase.BODY:
            message = f"body took longer than {self._limits.body_ms_max} ms to arrive"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "body")
        elif self._framer.held_size:
            message = f"head took longer than {self._limits.head_ms_max} ms to arrive"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "head")
        else:
            self._counters.ended["idle"] += 1
            self._close()

    def _output_late(self) -> None:
        """Cut off a client that does not read, or reads too slowly."""
        unread_size = self.transport.get_write_buffer_size()
        if has_read_enough(self._unread_size, unread_size):
            self._note_unread(unread_size)
            self._deadlines.set_output(self._limits.output_ms_max)
            return
        self._abort("output", f"the client read nothing for {self._limits.output_ms_max} ms")

    # Endings.

    def _refuse_for_memory(self) -> None:
        message = "requests of all clients together exceed the memory for them"
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, message, "memory", headers)

    def _refuse(
        self, status: HTTPStatus, message: str, reason: str, headers: dict[str, str] | None = None
    ) -> None:
        """Send an error if no response has begun, and discard further input."""
        logger.info("%s: refused with %d: %s", self._address, status, message)
        self._counters.ended[reason] += 1
        cycle = self._cycle
        if cycle is not None and cycle.is_complete:
            cycle = None
        if self.transport.is_closing() or (cycle is not None and cycle.is_started):
            self._is_over = True
            self.transport.abort()
            return
        if cycle is not None:
            cycle.disconnect()
        self.transport.write(raw_error_response(status, message, headers))
        self._linger()

    def _linger(self) -> None:
        """Close once the output is on its way and the client has stopped sending."""
        self._is_over = True
        self._hold(0)
        if self.transport.is_closing():
            return
        self.transport.write_eof()
        self._release()
        self._deadlines.set_input(LINGER_MS)

    def _close(self) -> None:
        """Close once the output was read, or was not read in time."""
        self._is_over = True
        self._deadlines.set_input(None)
        self._deadlines.set_output(self._limits.output_ms_max)
        self.transport.close()

    def close_after_response(self) -> None:
        """Close when a response is written; linger if some input of the client is unread."""
        if self._is_over:
            return
        if self._framer.part is RequestPart.NOTHING and not self._framer.held_size:
            self._close()
        else:
            self._linger()

    def fail_response(self) -> None:
        """Close after the application failed; answer 500 if no response has begun."""
        cycle = self._cycle
        if self._is_over or cycle is None:
            return
        if not cycle.is_started:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            self.write(raw_error_response(status, status.phrase))
        cycle.disconnect()
        self.close_after_response()

    def _abort(self, reason: str, message: str) -> None:
        """Close the connection at once, without a response."""
        logger.info("%s: closed: %s", self._address, message)
        self._counters.ended[reason] += 1
        self._is_over = True
        self.transport.abort()

    # Memory.

    def _hold(self, size: int) -> None:
        """Set the bytes of requests that this connection holds."""
        self._counters.held_bytes += size - self._held_size
        self._held_size = size

    def _note_unread(self, size: int) -> None:
        """Set the bytes of responses that the client has not read."""
        self._counters.unread_bytes += size - self._unread_size
        self._unread_size = size


def origin_form(target: bytes) -> bytes:
    """Return path and query of a request target, which may name the server before them."""
    return target if target.startswith(b"/") else target[target.index(b"/", len(b"http://")) :]


def _asks_for_websocket(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    values = dict(headers)
    tokens = [token.strip() for token in values.get(b"connection", b"").lower().split(b",")]
    return b"upgrade" in tokens and values.get(b"upgrade", b"").lower() == b"websocket"


def _address_of(transport: asyncio.Transport, end: str) -> tuple[str, int] | None:
    """Return host and port of one end; nothing if the connection is lost already."""
    address = transport.get_extra_info(end)
    return (client_host(address), int(address[1])) if address else None
