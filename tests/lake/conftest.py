"""One node for this folder; each test has its own topics and tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.testing.broker import RunningBroker, running_broker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def client(node: RunningBroker) -> Iterator[KafkaClient]:
    with KafkaClient(node.bootstrap) as client:
        yield client


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")
