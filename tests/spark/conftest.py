"""One Spark session and one node for this folder; each test has its own topics."""

from __future__ import annotations

import itertools
import os

import pytest

from millstream.spark import source_cache
from millstream.spark.session import running_session
from millstream.testing.broker import running_broker

_numbers = itertools.count()

# Queries of tests are short: optimizing compilation would take half of their time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.python.filterPushdown.enabled": "true"}


@pytest.fixture(scope="session")
def spark():
    """A Spark session with two threads and three attempts per task."""
    with running_session("millstream tests", "local[2,3]", CONF) as session:
        yield session


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """A node shared by all tests of a worker."""
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker
        while source_cache._sources:
            source_cache._sources.popitem()[1].close()


@pytest.fixture
def topic():
    """A topic name that no other test uses."""
    return f"topic-{next(_numbers)}"
