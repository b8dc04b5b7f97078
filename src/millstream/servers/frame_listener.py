"""The listener of a server whose requests are frames: its socket and all connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Generic, TypeVar

from millstream.config.schema import KafkaConfig, NativeConfig, PeerConfig
from millstream.servers.acceptor import Acceptor
from millstream.servers.block_pool import BlockPool
from millstream.servers.connection_set import ConnectionSet
from millstream.servers.frame_connection import FrameConnection
from millstream.servers.frame_counters import FrameCounters

SWEEP_SECONDS_MAX = 1.0
"""Longest interval at which deadlines are checked."""

C = TypeVar("C", bound=FrameConnection)


class FrameListener(Generic[C]):
    """The listener of one server of a node."""

    config: KafkaConfig | NativeConfig | PeerConfig
    counters: FrameCounters
    blocks: BlockPool

    def __init__(self, connections: ConnectionSet[C], acceptor: Acceptor) -> None:
        """Take over an `acceptor` that adds to `connections`."""
        self.is_draining = False
        self._connections = connections
        self._acceptor = acceptor
        self._sweep: asyncio.TimerHandle | None = None

    # Connections.

    async def listen(self, host: str, port: int) -> int:
        """Accept connections at `host`; return the port, which the system picks for 0."""
        bound_port = await self._acceptor.listen(host, port)
        self._sweep_later()
        return bound_port

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use another context for new connections: certificates have changed."""
        self._acceptor.use_tls(context)

    @property
    def is_exhausted(self) -> bool:
        """Return whether no descriptor was left for the last connection."""
        return self._acceptor.is_exhausted

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def connections(self) -> Iterable[C]:
        """The open connections."""
        return self._connections

    def admit(self, connection: C) -> bool:
        """Return whether one more connection is allowed, and count it if so."""
        if self.is_draining:
            self._note_refused("draining")
            return False
        self._connections.add(connection, connection.host)
        self.counters.accepted += 1
        return True

    def forget(self, connection: C) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)

    def _note_refused(self, reason: str) -> None:
        self.counters.refused[reason] += 1

    def _sweep_later(self) -> None:
        config = self.config
        shortest_ms = min(
            config.handshake_ms_max,
            config.request_ms_max,
            config.idle_ms_max,
            config.output_ms_max,
        )
        seconds = min(SWEEP_SECONDS_MAX, shortest_ms / 4000)
        self._sweep = asyncio.get_running_loop().call_later(seconds, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._connections):
            connection.check_deadlines(now)
        self._sweep_later()

    # Stopping.

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        self._acceptor.stop()
        if self._sweep is not None:
            self._sweep.cancel()

    def abort(self) -> None:
        """Close all connections at once."""
        self.is_draining = True
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close("the node stops")
