"""The listener of the Kafka server: its socket and all connections."""

from __future__ import annotations

import ssl

from millstream.broker.broker import Broker
from millstream.config.principal_rules import DEFAULT_RULES
from millstream.config.schema import AccessConfig, KafkaConfig
from millstream.servers.kafka.apis import HANDLERS
from millstream.servers.kafka.counters import KafkaCounters
from millstream.servers.kafka.dispatcher import Dispatcher
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.kafka_protocol import KafkaProtocol
from millstream.servers.kafka.logins import KafkaLogins
from millstream.servers.request_listener import RequestListener
from millstream.servers.response_memory import ResponseMemory
from millstream.tracing import Tracer


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


class KafkaListener(RequestListener[KafkaProtocol]):
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
        self.counters = KafkaCounters()
        self.fetch_sessions = FetchSessions(self.config.fetch_sessions_max)
        super().__init__(
            broker,
            _DynamicLimits(broker, self.config),
            lambda: KafkaProtocol(self),
            response_memory=ResponseMemory(
                bytes_max=self.config.responses_bytes_max, waiting=self.fetch_sessions.waiting
            ),
            ssl_context=ssl_context,
            principal_rules=principal_rules,
        )
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
        self.dispatcher = Dispatcher(
            broker,
            HANDLERS,
            config=self.config,
            fetch_sessions=self.fetch_sessions,
            response_memory=self.response_memory,
            counters=self.counters,
            tracer=tracer,
        )

    def answer_waiting(self) -> None:
        """Answer the fetches that wait for records."""
        self.fetch_sessions.answer_all_waiting()

    def stop_accepting(self) -> None:
        """Accept no more connections, and no more logins."""
        super().stop_accepting()
        if self.logins is not None:
            self.logins.close()
