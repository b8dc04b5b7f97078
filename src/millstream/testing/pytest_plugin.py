"""Pytest plugin with the fixtures `millstream_broker`, `millstream_cluster` and `millstream_etcd`.

    def test_orders_arrive(millstream_broker):
        producer = Producer({"bootstrap.servers": millstream_broker.bootstrap})

Each test has a real broker, a real cluster of three nodes, or a real etcd with one member.

pytest loads it automatically if Millstream is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millstream.testing.broker import RunningBroker
    from millstream.testing.cluster import RunningCluster
    from millstream.testing.etcd import RunningEtcd


@pytest.fixture
def millstream_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker on a free port, with an empty data directory, stopped after the test."""
    from millstream.testing.broker import running_broker  # noqa: PLC0415 - pytest starts quickly.

    with running_broker(tmp_path_factory.mktemp("millstream")) as broker:
        yield broker


@pytest.fixture
def millstream_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    """An etcd with one member on free ports, without data, stopped after the test."""
    from millstream.testing.etcd import running_etcd  # noqa: PLC0415 - pytest starts quickly.

    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def millstream_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three nodes, each a process, and an etcd, on free ports; killed after the test."""
    from millstream.testing.cluster import running_cluster  # noqa: PLC0415 - starts quickly.

    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
