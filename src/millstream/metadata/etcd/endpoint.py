"""One member of etcd: its address and the connections to it."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from urllib.parse import urlsplit

from millstream.config.schema import SERVER_URLS_WORDS, is_server_url
from millstream.errors import InvalidConfig, NodeUnreachable
from millstream.http1.connection import AsyncConnection

IDLE_S_MAX = 30.0
"""A connection that was idle for longer is not used again: a firewall may have forgotten it."""

KEEPALIVE_S = 2
"""A connection whose peer sends no sign of life for some of these is closed by the kernel."""

_KEEPALIVE_PROBES = 3


class EtcdEndpoint:
    """The client address of one member."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        if not is_server_url(url):
            raise InvalidConfig(f"endpoints of etcd must be {SERVER_URLS_WORDS}, got {url!r}")
        parts = urlsplit(url)
        assert parts.hostname is not None, "is_server_url"
        assert parts.port is not None, "is_server_url"
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.is_checked = False
        """Whether its version was found to be allowed since it was last unreachable."""
        self._host, self._port = parts.hostname, parts.port
        self._authority = parts.netloc
        self._tls = tls if parts.scheme == "https" else None
        self._idle: deque[tuple[float, AsyncConnection]] = deque()
        self._open: set[AsyncConnection] = set()

    def __str__(self) -> str:
        return self.url

    async def take(self) -> AsyncConnection:
        """Return an idle connection, or a new one. Raises `NodeUnreachable`."""
        oldest = asyncio.get_running_loop().time() - IDLE_S_MAX
        while self._idle:
            used_at, connection = self._idle.pop()
            if connection.is_open and used_at > oldest:
                return connection
            connection.close()
        return await self.connect()

    async def connect(self) -> AsyncConnection:
        """Return a new connection. Raises `NodeUnreachable`."""
        loop = asyncio.get_running_loop()
        try:
            transport, connection = await loop.create_connection(
                lambda: AsyncConnection(self.url), self._host, self._port, ssl=self._tls
            )
        except (OSError, ssl.SSLError) as error:
            raise NodeUnreachable(self.url, f"cannot connect: {error}") from error
        _keep_alive(transport)
        self._open.add(connection)
        connection.ended.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def give_back(self, connection: AsyncConnection, *, keeps: bool) -> None:
        """Take a connection back; it is closed unless `keeps` is set."""
        connection.end()
        if keeps and connection.is_open:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.close()

    def forget(self) -> None:
        """Close the idle connections after a failure, and check the version again."""
        self.is_checked = False
        while self._idle:
            self._idle.pop()[1].close()

    async def close(self) -> None:
        """Close all connections, including those in use, and wait until they are closed."""
        connections = list(self._open)
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.ended for connection in connections))

    def encoded(self, method: str, path: str, body: bytes, token: str | None) -> Sequence[bytes]:
        """Return the pieces of a request."""
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: {self._authority}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            # A member that is cut off from its leader refuses at once, and ends its watches:
            # otherwise calls would hang there and watches would stay silent.
            "grpc-metadata-hasleader: true",
        ]
        if token is not None:
            lines.append(f"authorization: {token}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
        return [head, body] if body else [head]


def _keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel find out that the peer is gone, on connections that are silent for long."""
    # Through a duplicate of the descriptor: the socket that uvloop shows has no options.
    number = os.dup(transport.get_extra_info("socket").fileno())
    with socket.socket(fileno=number) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_S),
            ("TCP_KEEPINTVL", KEEPALIVE_S),
            ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ):
            if (option := getattr(socket, name, None)) is not None:
                duplicate.setsockopt(socket.IPPROTO_TCP, option, value)
