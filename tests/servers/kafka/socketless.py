"""Handlers without a socket, for tests that need only topics and quotas.

Every request and every response is encoded and decoded, in the version under test.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from millstream.broker.broker import epoch_of
from millstream.broker.cluster_admin import LoneNodeAdmin
from millstream.broker.cluster_view import LoneNodeView
from millstream.broker.dynamic_configs import DynamicConfigs
from millstream.broker.quotas import Quotas
from millstream.broker.topics.topics import Topics
from millstream.config.schema import BrokerConfig, Endpoint, KafkaConfig, LogConfig
from millstream.metadata.interface import Metadata
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.servers.kafka.request_context import RequestContext
from millstream.testing import ManualClock
from tests.broker.topic_nodes import running
from tests.metadata.memory import MemoryMetadata

NODE_ID = 7
CLUSTER_ID = "cluster-of-one"


class HandlerNode:
    """Calls handlers, each time with a new context."""

    def __init__(
        self, topics: Topics, quotas: Quotas, configs: DynamicConfigs, config: BrokerConfig
    ) -> None:
        self.topics = topics
        self.quotas = quotas
        self.configs = configs
        self.clock = ManualClock()
        self.broker = SimpleNamespace(
            topics=topics,
            quotas=quotas,
            config=config,
            node_id=NODE_ID,
            cluster_id=CLUSTER_ID,
            configs=configs,
            listener=Endpoint("0.0.0.0", 9092),
            advertised=Endpoint("there", 9092),
            clock=self.clock,
            admin=LoneNodeAdmin(NODE_ID, topics, lambda: Endpoint("there", 9092)),
            cluster=LoneNodeView(
                NODE_ID,
                lambda: Endpoint("there", 9092),
                lambda topic, index: epoch_of(topics, topic, index),
            ),
        )

    async def ask(
        self,
        handler: Callable[[Any, RequestContext], Any],
        request: object,
        *,
        version: int,
        client_id: str = "client",
    ) -> Any:
        """Return the response as a client decodes it."""
        context = RequestContext(
            broker=self.broker,
            config=KafkaConfig(),
            fetch_sessions=None,
            version=version,
            client_id=client_id,
        )
        received = decode(type(request), memoryview(encode(request, version)), version)
        response = handler(received, context)
        if inspect.isawaitable(response):
            response = await response
        return decode(type(response), memoryview(encode(response, version)), version)


@asynccontextmanager
async def open_handler_node(
    config: BrokerConfig | None = None,
    *,
    metadata: Metadata | None = None,
    log_config: LogConfig | None = None,
) -> AsyncIterator[HandlerNode]:
    config = config or BrokerConfig(node_id=NODE_ID)
    metadata = metadata or MemoryMetadata()
    async with running(metadata, config=config, log_config=log_config) as topics:
        quotas = Quotas(metadata)
        await quotas.open()
        configs = DynamicConfigs(metadata, config)
        await configs.open()
        yield HandlerNode(topics, quotas, configs, config)
