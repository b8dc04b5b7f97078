"""Fixtures for both HTTP clients: one real node per file, and topics with unique names."""

from __future__ import annotations

import itertools

import pytest

from millstream.clients.http.core.config import ClientConfig
from millstream.testing.broker import running_broker
from tests.clients.proxy import Proxy

from .both import KINDS

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(params=KINDS)
def connect(request):
    """Create clients of either kind, and close them at the end."""
    made = []

    def connect(url, **options):
        if "config" in options and isinstance(options["config"], dict):
            options["config"] = ClientConfig(**options["config"])
        made.append(KINDS[request.param](url, **options))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def client(connect, broker):
    return connect(broker.url)


@pytest.fixture
def name():
    """A unique name."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(client, name):
    client.create_topic(name)
    return name


@pytest.fixture
def proxy(broker):
    """A proxy in front of the node."""
    with Proxy(int(broker.url.rpartition(":")[2])) as standing:
        yield standing
