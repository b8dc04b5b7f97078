"""A cluster of real processes: all kinds of clients at once survive `kill -9` of nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.testing.cluster import RunningCluster
from millstream.testing.cluster.loads.confluent import (
    PARTITIONS,
    GroupLoad,
    IdempotentLoad,
    TransactionLoad,
)
from millstream.testing.cluster.loads.http import AppendLoad, QueueLoad, WatchLoad
from millstream.testing.cluster.loads.load import Load, wait_for_more

from .kafkajs import KafkaJsLoad

ROUNDS = 30 if os.environ.get("MILLSTREAM_LONG") else 1
"""Each with three kills: of the leader, of another node, of all nodes."""


@pytest.fixture
def topics(cluster: RunningCluster, name: str) -> list[str]:
    kinds = ("idempotent", "transactions", "appends", "jobs", "kafkajs")
    names = [f"{name}-{kind}" for kind in kinds]
    with KafkaClient(cluster.bootstrap) as client:
        for topic in names:
            client.create_topic(topic, partitions=PARTITIONS)
    return names


@pytest.fixture
def loads(cluster: RunningCluster, topics: list[str]) -> Iterator[list[Load]]:
    bootstrap, urls, logs = cluster.bootstrap, cluster.urls, cluster.nodes[1].log.parent
    idempotent, transactions, appends, jobs, kafkajs = topics
    loads: list[Load] = [
        IdempotentLoad(bootstrap, idempotent),
        TransactionLoad(bootstrap, transactions, logs),
        GroupLoad(bootstrap, idempotent, "classic", logs),
        GroupLoad(bootstrap, idempotent, "consumer", logs),
        AppendLoad(urls, bootstrap, appends),
        QueueLoad(urls, jobs),
        WatchLoad(urls, bootstrap, appends),
        KafkaJsLoad(bootstrap, kafkajs, logs),
    ]
    for load in loads:
        load.start()
    yield loads
    for load in loads:
        load.is_stopping = True


@pytest.mark.timeout(600 + 120 * ROUNDS)
def test_no_client_loses_or_repeats_anything_when_nodes_are_killed(
    cluster: RunningCluster, topics: list[str], loads: list[Load]
):
    wait_for_more(loads)
    for _ in range(ROUNDS):
        kill_nodes(cluster, topics[0], loads)
    for load in loads:
        load.is_stopping = True
    for load in loads:
        load.stop()
    for load in loads:
        load.check()
    cluster.wait_until_in_sync()
    cluster.check_replicas(*topics)


def kill_nodes(cluster: RunningCluster, topic: str, loads: list[Load]) -> None:
    """Kill the leader of a topic, then another node, then all; everything goes on in between."""
    leader = cluster.leader(topic, 0)
    cluster.nodes[leader].kill()
    wait_for_more(loads)  # Others lead, while that one is dead.
    cluster.nodes[leader].start()
    wait_for_more(loads)
    cluster.wait_until_in_sync()
    other = cluster.nodes[leader % len(cluster.nodes) + 1]
    other.kill()
    wait_for_more(loads)
    other.start()
    cluster.wait_until_in_sync()
    cluster.kill()
    cluster.start()
    wait_for_more(loads)
