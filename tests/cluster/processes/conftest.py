"""One cluster of real processes for this folder; each test has its own topics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from millstream.testing.cluster import RunningCluster, running_cluster

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
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
