"""The listener of the Kafka server: its socket and all connections."""

from __future__ import annotations

import ssl

from millstream.broker.broker import Broker
from millstream.config.principal_rules import DEFAULT_RULES
from millstream.config.schema import AccessConfig, KafkaConfig
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
from millstream.servers.kafka.logins import KafkaLogins
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
        self,
        broker: Broker,
        config: KafkaConfig | None = None,
        *,
        tracer: Tracer | None = None,
        ssl_context: ssl.SSLContext | None = None,
        principal_rules: str = DEFAULT_RULES,
        access_config: AccessConfig | None = None,
    ) -> None:
        """Create a listener, for TLS if there is an `ssl_context`.

        `principal_rules` name the users of clients that show a certificate. `access_config` says
        how clients log in, if the broker has a gate.
        """
        self.config = config or KafkaConfig()
        self.principal_rules = principal_rules
        self.access = broker.access
        self.caps = broker.caps
        self.logins = (
            None
            if broker.access is None
            else KafkaLogins(
                broker.access,
                access_config or AccessConfig(),
                secret=broker.login_secret,
                clock=broker.clock,
                is_tls=ssl_context is not None,
            )
        )
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
        self.fetch_sessions.answer_all_waiting()

    def stop_accepting(self) -> None:
        """Accept no more connections, and no more logins."""
        super().stop_accepting()
        if self.logins is not None:
            self.logins.close()

    async def drain(self) -> None:
        """Accept nothing new, answer the requests in flight, and wait until none is left."""
        self.is_draining = True
        self.stop_accepting()
        if self._connections:
            self.fetch_sessions.answer_all_waiting()
            for session in list(self._connections):
                session.drain()
            await self._connections.wait_until_none()
