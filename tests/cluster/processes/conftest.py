"""One cluster of real processes for this folder; each test has its own topics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from millstream.testing.cluster import RunningCluster, running_cluster

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
