"""Fixtures for client tests: one real node per file, and topics with unique names."""

from __future__ import annotations

import itertools

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.testing.broker import running_broker

from .proxy import Proxy

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def node(broker):
    with KafkaClient(broker.bootstrap) as connected:
        yield connected


@pytest.fixture
def new_topic(node):
    """Create a topic and return its name."""

    def create(partitions=1, **configs):
        name = f"topic-{next(_numbers)}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        node.create_topic(name, partitions=partitions, configs=settings)
        return name

    return create


@pytest.fixture
def topic(new_topic):
    return new_topic()


@pytest.fixture
def proxy(broker):
    """A proxy in front of the node; the node advertises the proxy's port."""
    real = broker.server.broker.advertised
    with Proxy(real.port) as standing:
        broker.server.broker.advertised = real._replace(port=standing.port)
        yield standing
        broker.server.broker.advertised = real
