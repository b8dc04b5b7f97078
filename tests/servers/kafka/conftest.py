"""A real broker for the tests of the Kafka server; one per file, with unique topic names."""

from __future__ import annotations

import itertools

import pytest

from millstream.protocols.kafka.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
)
from millstream.testing.broker import running_broker

from .client import RawClient

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def client(broker):
    with RawClient(broker.bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client):
    """The name of a new topic with two partitions."""
    return make_topic(client, partitions=2)


def make_topic(client, *, partitions=1, **configs):
    name = f"topic-{next(_numbers)}"
    wanted = CreateTopicsRequestTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=tuple(
            CreateTopicsRequestConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ),
    )
    answer = client.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000))
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message
    return name
