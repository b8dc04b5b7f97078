"""A rolling upgrade: nodes of two builds form one cluster, and clients lose nothing meanwhile."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream.clients.kafka.client import KafkaClient
from millstream.testing.cluster import RunningCluster, RunningNode, running_cluster
from millstream.testing.cluster.loads.confluent import (
    PARTITIONS,
    GroupLoad,
    IdempotentLoad,
    TransactionLoad,
)
from millstream.testing.cluster.loads.http import AppendLoad, QueueLoad
from millstream.testing.cluster.loads.load import Load, wait_for_more

from .builds import NEXT_VERSION, copy_commit, copy_next_build
from .conftest import LAG_MS_MAX

EARLIER = os.environ.get("MILLSTREAM_UPGRADE_FROM")
"""A commit from which to upgrade to this build. A clone need not have its history."""

TOPICS = ("idempotent", "transactions", "appends", "jobs")


@pytest.fixture
def loads() -> Iterator[list[Load]]:
    loads: list[Load] = []
    yield loads
    for load in loads:
        load.is_stopping = True


def start_loads(cluster: RunningCluster, loads: list[Load]) -> None:
    with KafkaClient(cluster.bootstrap) as client:
        for topic in TOPICS:
            client.create_topic(topic, partitions=PARTITIONS)
    bootstrap, urls, logs = cluster.bootstrap, cluster.urls, cluster.nodes[1].log.parent
    idempotent, transactions, appends, jobs = TOPICS
    loads += [
        IdempotentLoad(bootstrap, idempotent),
        TransactionLoad(bootstrap, transactions, logs),
        GroupLoad(bootstrap, idempotent, "classic", logs),
        AppendLoad(urls, bootstrap, appends),
        QueueLoad(urls, jobs),
    ]
    for load in loads:
        load.start()
    wait_for_more(loads)


def check_loads(cluster: RunningCluster, loads: list[Load]) -> None:
    for load in loads:
        load.is_stopping = True
    for load in loads:
        load.stop()
    for load in loads:
        load.check()
    cluster.wait_until_in_sync()
    cluster.check_replicas(*TOPICS)


def change_build(
    cluster: RunningCluster, node: RunningNode, source: Path | None, loads: list[Load]
) -> None:
    """Restart a node with another build; clients go on before and after it has come back."""
    node.stop()
    wait_for_more(loads)
    node.source = source
    node.start()
    wait_for_more(loads)
    cluster.wait_until_in_sync()


def version_of(node: RunningNode) -> str:
    with urllib.request.urlopen(f"{node.url}/v1/node", timeout=60) as response:
        version = json.load(response)["version"]
    assert isinstance(version, str)
    return version


@pytest.mark.timeout(900)
def test_nodes_are_upgraded_one_by_one_and_one_goes_back_while_clients_lose_nothing(
    tmp_path: Path, loads: list[Load]
):
    later = copy_next_build(tmp_path / "next")
    settings = {"cluster.replica_lag_ms_max": LAG_MS_MAX}
    with running_cluster(tmp_path, settings=settings) as cluster:
        start_loads(cluster, loads)
        for node in cluster.nodes.values():
            change_build(cluster, node, later, loads)
        assert {version_of(node) for node in cluster.nodes.values()} == {NEXT_VERSION}
        change_build(cluster, cluster.nodes[2], None, loads)
        assert version_of(cluster.nodes[2]) == millstream.__version__
        check_loads(cluster, loads)


@pytest.mark.skipif(EARLIER is None, reason="needs MILLSTREAM_UPGRADE_FROM=<commit>")
@pytest.mark.timeout(900)
def test_nodes_of_an_earlier_commit_are_upgraded_to_this_one(tmp_path: Path, loads: list[Load]):
    assert EARLIER is not None
    earlier = copy_commit(EARLIER, tmp_path / "earlier")
    settings = {"cluster.replica_lag_ms_max": LAG_MS_MAX}
    with running_cluster(tmp_path, settings=settings, source=earlier) as cluster:
        start_loads(cluster, loads)
        for node in cluster.nodes.values():
            change_build(cluster, node, None, loads)
        check_loads(cluster, loads)
