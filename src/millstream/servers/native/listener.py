"""The listener of the native server: its socket and all connections."""

from __future__ import annotations

import ssl

from millstream.broker.broker import Broker
from millstream.broker.topics.topic_numbers import TopicNumbers
from millstream.config.principal_rules import DEFAULT_RULES
from millstream.config.schema import NativeConfig
from millstream.servers.native.counters import NativeCounters
from millstream.servers.native.dispatcher import NativeDispatcher
from millstream.servers.native.native_protocol import NativeProtocol
from millstream.servers.native.operations import HANDLERS
from millstream.servers.native.subscriptions import Subscriptions
from millstream.servers.request_listener import RequestListener
from millstream.servers.response_memory import ResponseMemory
from millstream.tracing import Tracer


class NativeListener(RequestListener[NativeProtocol]):
    """The listener of the native server of a node."""

    config: NativeConfig
    counters: NativeCounters

    def __init__(
        self,
        broker: Broker,
        config: NativeConfig | None = None,
        *,
        tracer: Tracer | None = None,
        ssl_context: ssl.SSLContext | None = None,
        principal_rules: str = DEFAULT_RULES,
    ) -> None:
        """Create a listener, for TLS if there is an `ssl_context`."""
        self.config = config or NativeConfig()
        self.counters = NativeCounters()
        self.numbers = TopicNumbers(broker.metadata, broker.topics, broker.clock)
        self.subscriptions = Subscriptions()
        super().__init__(
            broker,
            self.config,
            lambda: NativeProtocol(self),
            response_memory=ResponseMemory(bytes_max=self.config.responses_bytes_max),
            ssl_context=ssl_context,
            principal_rules=principal_rules,
        )
        self.dispatcher = NativeDispatcher(
            broker,
            HANDLERS,
            config=self.config,
            numbers=self.numbers,
            subscriptions=self.subscriptions,
            counters=self.counters,
            response_memory=self.response_memory,
            tracer=tracer,
        )

    async def listen(self, host: str, port: int) -> int:
        """Load the numbers of topics, then accept connections at `host`; return the port."""
        await self.numbers.open()
        return await super().listen(host, port)

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        super().stop_accepting()
        self.numbers.close()
