"""One Spark and one node for the folder; each test has topics of its own."""

from __future__ import annotations

import itertools
import os

import pytest

from millstream.spark.session import running_session
from millstream.spark.source_cache import close_sources
from millstream.testing.broker import running_broker

_numbers = itertools.count()

# Queries of tests are short: half of the time would go into making them fast.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.python.filterPushdown.enabled": "true"}


@pytest.fixture(scope="session")
def spark():
    """A real Spark with two threads, which gives a task three attempts."""
    with running_session("millstream tests", "local[2,3]", CONF) as session:
        yield session


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """A node that all tests of a worker share."""
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker
        close_sources()


@pytest.fixture
def topic():
    """The name of a topic that no other test uses."""
    return f"topic-{next(_numbers)}"
