"""A real node with a native server; one per file, with topic names of each test's own."""

from __future__ import annotations

import itertools

import pytest

from millstream.config.schema import NativeConfig
from millstream.testing.broker import running_broker

from .client import NativeClient

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("node"), native_server=NativeConfig()) as running:
        yield running


@pytest.fixture
def client(broker):
    with NativeClient(broker.native) as connected:
        yield connected


@pytest.fixture
def name():
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(client, name):
    """The number of a new topic."""
    return client.create(name)["id"]
