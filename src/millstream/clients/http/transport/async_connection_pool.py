"""Connection pool of the asyncio client. For one event loop and any number of its tasks.

Corresponds to `connection_pool.py`, which blocks.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.request import Request
from millstream.clients.http.core.response import ClientResponse
from millstream.clients.http.core.token import token_of
from millstream.clients.http.transport.http1 import answer_of, head_of
from millstream.clock import Clock
from millstream.errors import InvalidRequest, NodeUnreachable
from millstream.http1.connection import AsyncConnection
from millstream.http1.response_reader import STREAM_PIECE_MAX, ResponseReader


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
        self._token = token_of(config)
        self._clock = clock
        self._tls = tls or (config.tls.or_environment().context() if address.is_tls else None)
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
                    connection.begin(self._encoded(request), reader, is_stream=False)
                    is_sent = True
                    while not reader.is_done:
                        await connection.more()
                    return answer_of(reader)
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
                    connection.begin(self._encoded(request), reader, is_stream=True)
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

    def _encoded(self, request: Request) -> list[bytes]:
        head = head_of(request, self._address, self._config.client_id, self._token)
        return [head, request.body] if request.body else [head]

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
                    lambda: AsyncConnection(str(self._address)),
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
            return answer_of(self._reader)
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
