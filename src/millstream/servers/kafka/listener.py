"""The listener of the Kafka server: its socket and all connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from millstream.broker.broker import Broker
from millstream.config.schema import KafkaConfig
from millstream.servers.acceptor import Acceptor
from millstream.servers.block_pool import BlockPool
from millstream.servers.connection_set import ConnectionSet
from millstream.servers.kafka.apis import HANDLERS
from millstream.servers.kafka.backlogs import Backlogs
from millstream.servers.kafka.counters import KafkaCounters
from millstream.servers.kafka.dispatcher import Dispatcher
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.kafka_protocol import KafkaProtocol
from millstream.servers.kafka.response_memory import ResponseMemory
from millstream.tracing import Tracer

SWEEP_SECONDS_MAX = 1.0
"""Longest interval at which deadlines are checked."""

UNSENT_BYTES_MAX = 256 * 1024
"""Bytes of responses that the kernel takes of a connection before it can send them. By itself it
takes up to 4 MB: a client that reads nothing could have thousands of small requests processed.
"""


class _DynamicLimits:
    """Limits of connections, which clients can change."""

    def __init__(self, broker: Broker, config: KafkaConfig) -> None:
        self._broker = broker
        self._config = config

    @property
    def connections_max(self) -> int:
        return self._broker.configs.kafka_config(self._config).connections_max

    @property
    def connections_per_address_max(self) -> int:
        return self._broker.configs.kafka_config(self._config).connections_per_address_max


class KafkaListener:
    """The listener of the Kafka server of a node."""

    def __init__(
        self, broker: Broker, config: KafkaConfig | None = None, *, tracer: Tracer | None = None
    ) -> None:
        self.config = config or KafkaConfig()
        self.counters = KafkaCounters()
        self.blocks = BlockPool(bytes_max=self.config.receive_bytes_max)
        self.backlogs = Backlogs(broker.store.yield_to_syncs)
        self.fetch_sessions = FetchSessions(self.config.fetch_sessions_max)
        self.response_memory = ResponseMemory(
            bytes_max=self.config.responses_bytes_max, fetch_sessions=self.fetch_sessions
        )
        self.dispatcher = Dispatcher(
            broker,
            HANDLERS,
            config=self.config,
            fetch_sessions=self.fetch_sessions,
            response_memory=self.response_memory,
            counters=self.counters,
            tracer=tracer,
        )
        self.is_draining = False
        self._connections: ConnectionSet[KafkaProtocol] = ConnectionSet()
        self._acceptor = Acceptor(
            _DynamicLimits(broker, self.config),
            self._connections,
            lambda: KafkaProtocol(self),
            on_refused=self._note_refused,
            unsent_bytes_max=UNSENT_BYTES_MAX,
        )
        self._sweep: asyncio.TimerHandle | None = None

    # Connections.

    async def listen(self, host: str, port: int) -> int:
        """Accept connections at `host`; return the port, which the system picks for 0."""
        bound_port = await self._acceptor.listen(host, port)
        self._sweep_later()
        return bound_port

    @property
    def is_exhausted(self) -> bool:
        """Return whether no descriptor was left for the last connection."""
        return self._acceptor.is_exhausted

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def connections(self) -> Iterable[KafkaProtocol]:
        """The open connections."""
        return self._connections

    def admit(self, session: KafkaProtocol) -> bool:
        """Return whether one more connection is allowed, and count it if so."""
        if self.is_draining:
            self._note_refused("draining")
            return False
        self._connections.add(session, session.host)
        self.counters.accepted += 1
        return True

    def forget(self, session: KafkaProtocol) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(session)

    def _note_refused(self, _: str) -> None:
        self.counters.refused += 1

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
        for session in list(self._connections):
            session.check_deadlines(now)
        self._sweep_later()

    # Stopping.

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        self._acceptor.stop()
        if self._sweep is not None:
            self._sweep.cancel()

    async def drain(self) -> None:
        """Accept nothing new, answer the requests in flight, and wait until none is left."""
        self.is_draining = True
        self.stop_accepting()
        if self._connections:
            self.fetch_sessions.answer_all_waiting()
            for session in list(self._connections):
                session.drain()
            await self._connections.wait_until_none()

    def abort(self) -> None:
        """Close all connections at once."""
        self.is_draining = True
        self.stop_accepting()
        for session in list(self._connections):
            session.close("the node stops")
