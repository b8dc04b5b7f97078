"""The listener of a server whose clients send requests as frames: Kafka's and the native one."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

from millstream.broker.broker import Broker
from millstream.config.schema import KafkaConfig, NativeConfig
from millstream.servers.acceptor import Acceptor, ConnectionLimits
from millstream.servers.backlogs import Backlogs
from millstream.servers.block_pool import BlockPool, ReceiveBlock
from millstream.servers.connection_set import ConnectionSet
from millstream.servers.frame_listener import FrameListener
from millstream.servers.request_connection import RequestConnection, StartedRequest
from millstream.servers.request_counters import RequestCounters
from millstream.servers.response_memory import ResponseMemory

UNSENT_BYTES_MAX = 256 * 1024
"""Bytes of responses that the kernel takes of a connection before it can send them. By itself it
takes up to 4 MB: a client that reads nothing could have thousands of small requests processed.
"""

R = TypeVar("R", bound=RequestConnection)
C_contra = TypeVar("C_contra", bound=RequestConnection, contravariant=True)


class RequestDispatcher(Protocol[C_contra]):
    """Starts the requests of a server."""

    def begin(
        self, connection: C_contra, frame: memoryview, block: ReceiveBlock, /
    ) -> StartedRequest:
        """Start one request. Raises if the connection has to be closed.

        The request takes over the use of `block`, unless this raises.
        """
        ...


class RequestListener(FrameListener[R]):
    """The listener of one server of a node."""

    config: KafkaConfig | NativeConfig
    counters: RequestCounters
    dispatcher: RequestDispatcher[R]

    def __init__(
        self,
        broker: Broker,
        limits: ConnectionLimits,
        make_protocol: Callable[[], R],
        *,
        response_memory: ResponseMemory,
        ssl_context: ssl.SSLContext | None,
        principal_rules: str,
    ) -> None:
        """Create a listener for TLS if there is an `ssl_context`.

        Set `config` and `counters` before. `principal_rules` name the users of clients that show a
        certificate.
        """
        self.principal_rules = principal_rules
        self.access = broker.access
        self.caps = broker.caps
        self.blocks = BlockPool(bytes_max=self.config.receive_bytes_max)
        self.backlogs = Backlogs(broker.store.yield_to_syncs)
        self.response_memory = response_memory
        connections: ConnectionSet[R] = ConnectionSet()
        acceptor = Acceptor(
            limits,
            connections,
            make_protocol,
            on_refused=self._note_refused,
            unsent_bytes_max=UNSENT_BYTES_MAX,
            ssl_context=ssl_context,
            ssl_seconds_max=self.config.handshake_ms_max / 1000,
        )
        super().__init__(connections, acceptor)
        if self.access is not None:
            self.access.on_change.append(self._check_logins)

    def _check_logins(self) -> None:
        """Close the connections whose login has ended, and let waiting fetches ask again."""
        access = self.access
        if access is None or self.is_draining:
            return
        for connection in list(self._connections):
            if not access.is_current(connection.caller):
                access.counters.cut_off += 1
                connection.close(f"the login of {connection.caller.principal} has ended")
        self.answer_waiting()

    def answer_waiting(self) -> None:
        """Answer the requests that wait for something to happen; a server may have none."""

    async def drain(self) -> None:
        """Accept nothing new, answer the requests in flight, and wait until none is left."""
        self.is_draining = True
        self.stop_accepting()
        if self._connections:
            self.answer_waiting()
            for session in list(self._connections):
                session.drain()
            await self._connections.wait_until_none()
