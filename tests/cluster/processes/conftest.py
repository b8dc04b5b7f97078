"""One cluster of real processes for this folder; each test has its own topics."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.testing.cluster import RunningCluster, running_cluster

# Queries of tests are short: optimizing compilation would take half of their time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

LAG_MS_MAX = "60000"
"""With the default, replicas on a busy machine leave and join the ISR all the time, and are hardly
ever all in sync. Those of dead nodes leave it at once in any case."""

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, settings={"cluster.replica_lag_ms_max": LAG_MS_MAX}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RunningCluster) -> RunningCluster:
    """A cluster of three nodes, all of which run and are in sync, whatever the last test did."""
    shared_cluster.start()
    shared_cluster.wait_until_in_sync()
    return shared_cluster


@pytest.fixture
def name() -> str:
    """A name for topics, groups and ids that no other test uses."""
    return f"test-{next(_numbers)}"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    # Here and not above: few tests of this folder need Spark.
    from millstream.spark import source_cache  # noqa: PLC0415
    from millstream.spark.session import running_session  # noqa: PLC0415

    conf = {"spark.sql.shuffle.partitions": "2"}
    with running_session("millstream cluster tests", "local[2,3]", conf) as session:
        yield session
    while source_cache._sources:
        source_cache._sources.popitem()[1].close()
