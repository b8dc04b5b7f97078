"""A peer server that does what a test tells it to, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from millstream.clients.peer.connection import PeerConnection, connect
from millstream.clients.peer.counters import PeerClientCounters
from millstream.cluster.hlc import HybridClock
from millstream.config.schema import Endpoint, PeerConfig
from millstream.protocols.kafka.codec.message import encode_parts
from millstream.protocols.peer.apis import ANNOUNCED
from millstream.protocols.peer.frame import FrameHeader, FrameKind, decode_frame, encode_frame
from millstream.protocols.peer.handshake import (
    HandshakeRequest,
    HandshakeResponse,
    Purpose,
    decode_handshake_request,
    encode_handshake,
)
from millstream.testing import ManualClock
from tests.servers.peer.peer_nodes import CLUSTER, HOST, SECONDS, RawPeer, identity

Script = Callable[["ScriptedConnection"], Awaitable[None]]


def welcome(**changes: object) -> bytes:
    """Return the handshake of node 1."""
    values: dict[str, object] = {
        "cluster_id": CLUSTER,
        "node_id": 1,
        "incarnation": identity(1).incarnation,
        "software_version": "0.1.0",
        "apis": ANNOUNCED,
    }
    return encode_handshake(HandshakeResponse(**values | changes))


class ScriptedConnection(RawPeer):
    """The server's side of one connection."""

    async def hello(self) -> HandshakeRequest:
        """Return the handshake of the client."""
        return decode_handshake_request(memoryview(await self.frame()))

    async def welcome(self, **changes: object) -> None:
        """Exchange handshakes."""
        await self.hello()
        await self.send(welcome(**changes))

    async def next_frame(self) -> tuple[FrameHeader, memoryview]:
        return decode_frame(memoryview(await self.frame()))

    async def answer(
        self, header: FrameHeader, response: object, *, is_last: bool = True, **changes: object
    ) -> None:
        """Send a response to the request with this header."""
        reply = header._replace(kind=FrameKind.RESPONSE, is_last=is_last, deadline_ms=0)
        parts = encode_frame(reply._replace(**changes), encode_parts(response, header.version))
        await self.send(b"".join(parts))


@asynccontextmanager
async def scripted_peer(script: Script) -> AsyncIterator[Endpoint]:
    """Run `script` for each connection at a port of its own."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        connection = ScriptedConnection(reader, writer)
        try:
            await script(connection)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            connection.close()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield Endpoint(HOST, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def connection_to(
    endpoint: Endpoint,
    *,
    config: PeerConfig | None = None,
    timeout_s: float = SECONDS,
    counters: PeerClientCounters | None = None,
) -> PeerConnection:
    """Connect as node 2 to node 1."""
    return await connect(
        lambda: PeerConnection(
            identity(2),
            1,
            endpoint,
            Purpose.FORWARDING,
            clock=ManualClock(),
            hlc=HybridClock(),
            config=config or PeerConfig(),
            counters=counters or PeerClientCounters(),
        ),
        endpoint,
        timeout_s=timeout_s,
    )
