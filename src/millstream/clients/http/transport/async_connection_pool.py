"""Connection pool of the asyncio client. For one event loop and any number of its tasks.

Corresponds to `connection_pool.py`, which blocks. Bytes are parsed in the protocol, where they
arrive, so a request wakes its task once.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import cast

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import Request
from millstream.clients.http.core.responses import ClientResponse
from millstream.clients.http.transport.http1 import STREAM_PIECE_MAX, ResponseReader, head_of
from millstream.clock import Clock
from millstream.errors import InvalidRequest, MalformedAnswer, MillstreamError, NodeUnreachable

BUFFERED_BYTES_MAX = 1024 * 1024
"""Bytes of a stream that wait for their reader before receiving is paused."""


class AsyncConnection(asyncio.Protocol):
    """Connection to a node, with one response at a time."""

    def __init__(self, address: NodeUrl, client_id: str) -> None:
        self._client_id = client_id
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: MillstreamError | None = None
        self._buffered = 0
        self._is_stream = False
        self.is_open = False
        self.used_at = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is closed."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own classes.
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a response. Unexpected bytes close the connection."""
        reader = self._reader
        if reader is None:
            self.close()
            return
        try:
            reader.feed(data)
        except MalformedAnswer as error:
            self._fail(error)
            return
        self._buffered += len(data)
        if self._is_stream and self._buffered > BUFFERED_BYTES_MAX and self._transport:
            self._transport.pause_reading()
        if reader.is_done or self._is_stream:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.ended.done():
            self.ended.set_result(None)
        reason = f"connection lost: {exc}" if exc else "connection closed before a response"
        self._fail(NodeUnreachable(str(self._address), reason, may_be_done=True))

    def _fail(self, error: MillstreamError) -> None:
        self._error = self._error or error
        self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Called by the pool.

    def begin(self, request: Request, reader: ResponseReader, *, is_stream: bool) -> None:
        """Send a request; its response goes to `reader`."""
        if self._transport is None or not self.is_open:
            raise NodeUnreachable(str(self._address), "connection closed before the request")
        self._reader = reader
        self._is_stream = is_stream
        self._buffered = 0
        head = head_of(request, self._address, self._client_id)
        self._transport.writelines([head, request.body] if request.body else [head])

    async def more(self) -> None:
        """Wait for the response; for a stream, until more bytes arrive."""
        if self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        is_done = self._reader is not None and self._reader.is_done
        if self._error is not None and not is_done:
            raise self._error

    def took(self) -> None:
        """Resume receiving after the buffered bytes of a stream were taken."""
        if self._buffered > BUFFERED_BYTES_MAX and self._transport and self.is_open:
            self._transport.resume_reading()
        self._buffered = 0

    def end(self) -> None:
        """Expect no more bytes of this response."""
        self._reader = None

    def close(self) -> None:
        """Close the connection immediately."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()


class AsyncConnectionPool:
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
        self._clock = clock
        self._tls = tls or (ssl.create_default_context() if address.is_tls else None)
        self._idle: deque[AsyncConnection] = deque()
        self._open: set[AsyncConnection] = set()
        self._slots = asyncio.Semaphore(config.connections_max)
        self._is_closed = False

    async def send(self, request: Request, timeout_s: float) -> ClientResponse:
        """Send a request and return its response."""
        is_sent = False
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._take()
                reader = self._reader(self._config.answer_size_max)
                try:
                    connection.begin(request, reader, is_stream=False)
                    is_sent = True
                    while not reader.is_done:
                        await connection.more()
                    return reader.answer()
                finally:
                    self.give_back(connection, keeps=reader.is_done and reader.keeps_alive)
        except TimeoutError:
            raise self.lost("no response in time", may_be_done=is_sent) from None

    async def stream(self, request: Request) -> AsyncResponseStream:
        """Send a request with an endless response; returns when its headers have arrived."""
        try:
            async with asyncio.timeout(self._config.answer_s_max):
                connection = await self._take()
                reader = self._reader(STREAM_PIECE_MAX)
                try:
                    connection.begin(request, reader, is_stream=True)
                    while not (reader.has_head and (reader.status == 200 or reader.is_done)):
                        await connection.more()
                except BaseException:
                    self.give_back(connection, keeps=False)
                    raise
        except TimeoutError:
            raise self.lost("no response in time", may_be_done=False) from None
        return AsyncResponseStream(self, connection, reader)

    async def close(self) -> None:
        """Close all connections, including those in use, and wait until they are closed."""
        self._is_closed = True
        connections = list(self._open)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.ended for connection in connections))

    def _reader(self, body_size_max: int) -> ResponseReader:
        head_size_max = self._config.head_size_max
        return ResponseReader(head_size_max=head_size_max, body_size_max=body_size_max)

    # Idle connections.

    async def _take(self) -> AsyncConnection:
        await self._slots.acquire()
        try:
            return self._find_idle() or await self._connect()
        except BaseException:
            self._slots.release()
            raise

    def _find_idle(self) -> AsyncConnection | None:
        while self._idle:
            connection = self._idle.pop()
            is_fresh = self._clock.monotonic() - connection.used_at < self._config.idle_s_max
            if connection.is_open and is_fresh:
                return connection
            connection.close()
        return None

    async def _connect(self) -> AsyncConnection:
        if self._is_closed:
            raise InvalidRequest("the client was closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._config.connect_s_max):
                _, connection = await loop.create_connection(
                    lambda: AsyncConnection(self._address, self._config.client_id),
                    *self._address[:2],
                    ssl=self._tls,
                )
        except (OSError, TimeoutError) as error:
            reason = f"cannot connect: {error or 'timed out'}"
            raise self.lost(reason, may_be_done=False) from error
        self._open.add(connection)
        connection.ended.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def give_back(self, connection: AsyncConnection, *, keeps: bool) -> None:
        """Return a connection to the pool; it is closed unless `keeps` is set."""
        connection.end()
        connection.used_at = self._clock.monotonic()
        if keeps and connection.is_open and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()
        self._slots.release()

    def lost(self, reason: str, *, may_be_done: bool) -> NodeUnreachable:
        """Return the error for a missing response."""
        return NodeUnreachable(str(self._address), reason, may_be_done=may_be_done)


class AsyncResponseStream:
    """Response without an end."""

    def __init__(
        self, pool: AsyncConnectionPool, connection: AsyncConnection, reader: ResponseReader
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._reader = reader
        self._is_closed = False

    @property
    def answer(self) -> ClientResponse:
        """Head of the response; with its body, if it is not a stream."""
        if self._reader.is_done:
            return self._reader.answer()
        return ClientResponse(self._reader.status, self._reader.headers, b"")

    async def receive(self, timeout_s: float) -> bytes:
        """Return the next bytes. Raises `NodeUnreachable` if the stream ended."""
        while True:
            if data := self._reader.take():
                self._connection.took()
                return data
            if self._reader.is_done:
                raise self._pool.lost("the stream ended", may_be_done=False)
            try:
                async with asyncio.timeout(timeout_s):
                    await self._connection.more()
            except TimeoutError:
                raise self._pool.lost(
                    "no data on the stream for too long", may_be_done=False
                ) from None

    def hang_up(self) -> None:
        """Close the connection, so that a task that waits for bytes gets an error."""
        self._connection.close()

    def close(self) -> None:
        """End the stream and close its connection."""
        if not self._is_closed:
            self._is_closed = True
            self._pool.give_back(self._connection, keeps=False)
