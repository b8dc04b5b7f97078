"""The listener of the Kafka server: its socket and all connections."""

from __future__ import annotations

from millstream.broker.broker import Broker
from millstream.config.schema import KafkaConfig
from millstream.servers.acceptor import Acceptor
from millstream.servers.block_pool import BlockPool
from millstream.servers.connection_set import ConnectionSet
from millstream.servers.frame_listener import FrameListener
from millstream.servers.kafka.apis import HANDLERS
from millstream.servers.kafka.backlogs import Backlogs
from millstream.servers.kafka.counters import KafkaCounters
from millstream.servers.kafka.dispatcher import Dispatcher
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.kafka_protocol import KafkaProtocol
from millstream.servers.kafka.response_memory import ResponseMemory
from millstream.tracing import Tracer

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


class KafkaListener(FrameListener[KafkaProtocol]):
    """The listener of the Kafka server of a node."""

    config: KafkaConfig
    counters: KafkaCounters

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
        connections: ConnectionSet[KafkaProtocol] = ConnectionSet()
        acceptor = Acceptor(
            _DynamicLimits(broker, self.config),
            connections,
            lambda: KafkaProtocol(self),
            on_refused=self._note_refused,
            unsent_bytes_max=UNSENT_BYTES_MAX,
        )
        super().__init__(connections, acceptor)

    async def drain(self) -> None:
        """Accept nothing new, answer the requests in flight, and wait until none is left."""
        self.is_draining = True
        self.stop_accepting()
        if self._connections:
            self.fetch_sessions.answer_all_waiting()
            for session in list(self._connections):
                session.drain()
            await self._connections.wait_until_none()
