"""Connection pool of the blocking client. Thread-safe.

A connection has one request at a time. Every wait ends at an absolute deadline for the whole
request, even if bytes keep arriving one by one.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.request import Request
from millstream.clients.http.core.response import ClientResponse
from millstream.clients.http.core.token import token_of
from millstream.clients.http.transport.http1 import answer_of, head_of
from millstream.clock import Clock
from millstream.errors import InvalidRequest, MalformedAnswer, NodeUnreachable
from millstream.http1.response_reader import STREAM_PIECE_MAX, ResponseReader

if TYPE_CHECKING:
    import ssl

_PIECE = 256 * 1024


class HttpConnection:
    def __init__(
        self,
        connected: socket.socket,
        address: NodeUrl,
        client_id: str,
        token: str | None,
        clock: Clock,
    ) -> None:
        self._socket = connected
        self._token = token
        self._client_id = client_id
        self._address = address
        self._clock = clock
        self.used_at = clock.monotonic()

    def send(self, request: Request, deadline: float) -> None:
        """Send a request. If this raises, the node did not get all of it and did not execute it."""
        self._wait_until(deadline)
        head = head_of(request, self._address, self._client_id, self._token)
        try:
            if len(request.body) > _PIECE:
                self._socket.sendall(head)
                self._socket.sendall(request.body)
            else:
                self._socket.sendall(head + request.body)
        except OSError as error:
            raise self._lost(error, may_be_done=False) from error

    def receive(self, deadline: float) -> bytes:
        """Return the next bytes; empty if the node closed the connection."""
        self._wait_until(deadline)
        try:
            return self._socket.recv(_PIECE)
        except OSError as error:
            raise self._lost(error, may_be_done=True) from error

    def _wait_until(self, deadline: float) -> None:
        # A timeout of 0 would make the socket non-blocking.
        self._socket.settimeout(max(0.001, deadline - self._clock.monotonic()))

    def _lost(self, error: OSError, *, may_be_done: bool) -> NodeUnreachable:
        reason = "no response in time" if isinstance(error, TimeoutError) else str(error)
        return NodeUnreachable(str(self._address), reason, may_be_done=may_be_done)

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to read. A closed connection counts as readable."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def hang_up(self) -> None:
        """Shut the socket down, so that a thread that waits for bytes stops. From any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Only for the thread that uses it."""
        self.hang_up()
        self._socket.close()


class ConnectionPool:
    """All connections of a client to its node."""

    def __init__(
        self,
        address: NodeUrl,
        config: ClientConfig,
        *,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._config = config
        self._token = token_of(config)
        self.clock = clock
        self._tls = tls or (config.tls.or_environment().context() if address.is_tls else None)
        self._idle: deque[HttpConnection] = deque()
        self._open: set[HttpConnection] = set()
        self._slots = threading.BoundedSemaphore(config.connections_max)
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, request: Request, timeout_s: float) -> ClientResponse:
        """Send a request and return its response."""
        deadline = self.clock.monotonic() + timeout_s
        connection, reader = self._begin(request, deadline, self._config.answer_size_max)
        keeps = False
        try:
            while not reader.is_done:
                self.feed(connection, reader, deadline)
            keeps = reader.keeps_alive
            return answer_of(reader)
        finally:
            self.give_back(connection, keeps=keeps)

    def stream(self, request: Request) -> ResponseStream:
        """Send a request with an endless response; returns when its headers have arrived."""
        deadline = self.clock.monotonic() + self._config.answer_s_max
        connection, reader = self._begin(request, deadline, STREAM_PIECE_MAX)
        try:
            while not (reader.has_head and (reader.status == 200 or reader.is_done)):
                self.feed(connection, reader, deadline)
        except BaseException:
            self.give_back(connection, keeps=False)
            raise
        return ResponseStream(self, connection, reader)

    def close(self) -> None:
        """Close all connections, including those in use."""
        with self._lock:
            self._is_closed = True
            in_use = self._open.difference(self._idle)
            idle = list(self._idle)
            self._idle.clear()
        for connection in in_use:
            connection.hang_up()
        for connection in idle:
            self._forget(connection)

    # One request.

    def _begin(
        self, request: Request, deadline: float, body_size_max: int
    ) -> tuple[HttpConnection, ResponseReader]:
        """Send a request on an idle connection, or on a new one."""
        connection = self._take(deadline)
        reader = ResponseReader(
            head_size_max=self._config.head_size_max, body_size_max=body_size_max
        )
        try:
            connection.send(request, deadline)
        except NodeUnreachable:
            # The node may have sent an error before it closed the connection.
            if not self._is_answered_early(connection, reader, deadline):
                self.give_back(connection, keeps=False)
                raise
        except BaseException:
            self.give_back(connection, keeps=False)
            raise
        return connection, reader

    def _is_answered_early(
        self, connection: HttpConnection, reader: ResponseReader, deadline: float
    ) -> bool:
        with contextlib.suppress(NodeUnreachable, MalformedAnswer):
            while not reader.is_done and not connection.is_quiet:
                self.feed(connection, reader, deadline)
        reader.keeps_alive = False
        return reader.is_done

    def feed(self, connection: HttpConnection, reader: ResponseReader, deadline: float) -> None:
        """Wait for bytes of a response and parse them."""
        if self.clock.monotonic() > deadline:
            raise self.lost("no response in time", may_be_done=True)
        data = connection.receive(deadline)
        if not data:
            raise self.lost("connection closed before a response", may_be_done=True)
        reader.feed(data)

    # Idle connections.

    def _take(self, deadline: float) -> HttpConnection:
        if not self._slots.acquire(timeout=max(0.0, deadline - self.clock.monotonic())):
            limit = self._config.connections_max
            raise self.lost(f"all {limit} connections are in use", may_be_done=False)
        try:
            return self._find_idle() or self._connect(deadline)
        except BaseException:
            self._slots.release()
            raise

    def _find_idle(self) -> HttpConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            is_fresh = self.clock.monotonic() - connection.used_at < self._config.idle_s_max
            if is_fresh and connection.is_quiet:
                return connection
            self._forget(connection)

    def _connect(self, deadline: float) -> HttpConnection:
        left_s = max(0.001, deadline - self.clock.monotonic())
        timeout_s = min(left_s, self._config.connect_s_max)
        try:
            connected = socket.create_connection(self._address[:2], timeout=timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connected = _wrapped(connected, self._tls, self._address.host)
        except OSError as error:
            raise self.lost(f"cannot connect: {error}", may_be_done=False) from error
        connection = HttpConnection(
            connected, self._address, self._config.client_id, self._token, self.clock
        )
        with self._lock:
            self._open.add(connection)
            is_closed = self._is_closed
        if is_closed:
            self._forget(connection)
            raise InvalidRequest("the client was closed")
        return connection

    def give_back(self, connection: HttpConnection, *, keeps: bool) -> None:
        """Return a connection to the pool; it is closed unless `keeps` is set."""
        connection.used_at = self.clock.monotonic()
        with self._lock:
            keeps = keeps and not self._is_closed
            if keeps:
                self._idle.append(connection)
        if not keeps:
            self._forget(connection)
        self._slots.release()

    def _forget(self, connection: HttpConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def lost(self, reason: str, *, may_be_done: bool) -> NodeUnreachable:
        """Return the error for a missing response."""
        return NodeUnreachable(str(self._address), reason, may_be_done=may_be_done)


def _wrapped(plain: socket.socket, tls: ssl.SSLContext, host: str) -> socket.socket:
    try:
        return tls.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


class ResponseStream:
    """Response without an end."""

    def __init__(
        self, pool: ConnectionPool, connection: HttpConnection, reader: ResponseReader
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._reader = reader
        self._is_closed = False

    @property
    def answer(self) -> ClientResponse:
        """Head of the response; with its body, if it is not a stream."""
        if self._reader.is_done:
            return answer_of(self._reader)
        return ClientResponse(self._reader.status, self._reader.headers, b"")

    def receive(self, timeout_s: float) -> bytes:
        """Return the next bytes. Raises `NodeUnreachable` if the stream ended."""
        deadline = self._pool.clock.monotonic() + timeout_s
        while True:
            if data := self._reader.take():
                return data
            if self._reader.is_done:
                raise self._pool.lost("the stream ended", may_be_done=False)
            self._pool.feed(self._connection, self._reader, deadline)

    def hang_up(self) -> None:
        """Shut the connection down, so that a thread that waits for bytes stops."""
        self._connection.hang_up()

    def close(self) -> None:
        """End the stream and close its connection. Only for the thread that reads it."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.give_back(self._connection, keeps=False)
