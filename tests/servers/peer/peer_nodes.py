"""Nodes that consist of a peer listener and a pool, on real sockets of this machine."""

from __future__ import annotations

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from millstream.clients.peer.connection import PeerConnection, connect
from millstream.clients.peer.pool import PeerPool
from millstream.cluster.hlc import HybridClock
from millstream.config.schema import Endpoint, PeerConfig
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.identity import PeerIdentity
from millstream.servers.peer.listener import PeerListener
from millstream.servers.peer.peer_context import ConnectingPeer
from millstream.testing import ManualClock

HOST = "127.0.0.1"
CLUSTER = "cluster-1"
SECONDS = 30.0
"""A deadline that no test reaches."""


def identity(node_id: int, *, cluster_id: str = CLUSTER) -> PeerIdentity:
    return PeerIdentity(cluster_id, node_id, uuid.UUID(int=node_id), "0.1.0")


class PeerServer:
    """A listener of node 1, and the means to connect to it."""

    def __init__(
        self,
        *,
        node_id: int = 1,
        config: PeerConfig | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.config = config or PeerConfig()
        self.clock = ManualClock()
        self.refusals: dict[int, PeerErrorCode] = {}
        """Nodes that are not admitted, and why."""
        self.seen: list[ConnectingPeer] = []
        self.listener = PeerListener(
            identity(node_id),
            authorize=self._authorize,
            clock=self.clock,
            hlc=HybridClock(),
            config=self.config,
            ssl_context=ssl_context,
        )
        self.node_id = node_id
        self.port = 0

    def _authorize(self, peer: ConnectingPeer) -> PeerErrorCode:
        self.seen.append(peer)
        return self.refusals.get(peer.identity.node_id, PeerErrorCode.NONE)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(HOST, self.port)

    @property
    def counters(self) -> Any:
        return self.listener.counters

    async def connect(
        self,
        *,
        local: PeerIdentity | None = None,
        target: int | None = None,
        purpose: Purpose = Purpose.FORWARDING,
        config: PeerConfig | None = None,
        ssl_context: ssl.SSLContext | None = None,
        clock: ManualClock | None = None,
    ) -> PeerConnection:
        """Return a connection of node 2 to this node."""
        pool = self.pool(local=local, config=config, clock=clock)
        made = target or self.node_id
        return await connect(
            lambda: PeerConnection(
                pool.local,
                made,
                self.endpoint,
                purpose,
                clock=pool.clock,
                hlc=pool.hlc,
                config=pool.config,
                counters=pool.counters,
            ),
            self.endpoint,
            timeout_s=SECONDS,
            ssl_context=ssl_context,
        )

    def pool(
        self,
        *,
        local: PeerIdentity | None = None,
        config: PeerConfig | None = None,
        address_of: Callable[[int], Endpoint | None] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        clock: ManualClock | None = None,
    ) -> PeerPool:
        """Return a pool of node 2, for which all nodes are this one."""
        return PeerPool(
            local or identity(2),
            address_of=address_of or (lambda _: self.endpoint),
            clock=clock or ManualClock(),
            hlc=HybridClock(),
            random=lambda: 0.5,
            config=config or PeerConfig(backoff_ms_min=0, backoff_ms_max=0),
            ssl_context=ssl_context,
        )


@asynccontextmanager
async def running_peer(**options: Any) -> AsyncIterator[PeerServer]:
    """Run a listener on a port of its own."""
    server = PeerServer(**options)
    server.port = await server.listener.listen(HOST, 0)
    try:
        yield server
    finally:
        server.listener.abort()
        await until(lambda: not server.listener.connection_count)


async def until(is_true: Callable[[], bool]) -> None:
    """Let the loop run until something is true; the time limit of the test ends it otherwise."""
    while not is_true():  # noqa: ASYNC110 - what it waits for is an effect of the sockets.
        await asyncio.sleep(0)


class RawPeer:
    """A socket that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Read until the other side has closed the connection; return whether it sent nothing."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_peer(port: int) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection(HOST, port)
    raw = RawPeer(reader, writer)
    try:
        yield raw
    finally:
        raw.close()
