"""Metrics of replicas, as the nodes of a real cluster tell them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.forwarding.cluster_http import create, leader_of, others, send
from tests.cluster.local_cluster import (
    LONG_LEASE_MS,
    LocalCluster,
    local_cluster,
    submit,
    until,
)
from tests.in_loop import in_loop

from .test_metric import parsed


async def told(cluster: LocalCluster, node_id: int) -> dict[tuple[str, ...], float]:
    answer = await send(cluster, node_id, "GET", "/metrics")
    assert answer.status == 200
    return parsed(answer.body.decode())


def isr_size(cluster: LocalCluster, topic: str) -> int:
    node = next(iter(cluster.nodes.values()))
    return len(node.broker.admin.partition(topic, 0).isr)


@in_loop
async def test_the_leader_tells_the_size_of_the_isr_and_how_far_its_followers_are(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await until(lambda: isr_size(cluster, "t") == 3)
        await submit(cluster.partition(leader, "t"), "a", "b")
        found = await told(cluster, leader)
        assert found["millstream_replica_isr_replicas", "t", "0"] == 3
        assert found["millstream_replica_assigned_replicas", "t", "0"] == 3
        for other in others(cluster, leader):
            assert found["millstream_replica_lag_records", "t", "0", str(other)] == 0
            assert found["millstream_replica_in_sync_flag", "t", "0", str(other)] == 1
            # Only the leader knows: another node that told it too would tell it wrong.
            assert ("millstream_replica_isr_replicas", "t", "0") not in await told(cluster, other)


@in_loop
async def test_a_node_that_is_gone_makes_the_isr_smaller_and_its_lag_grow(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await until(lambda: isr_size(cluster, "t") == 3)
        gone = others(cluster, leader)[0]
        await cluster.stop_node(gone)
        await until(lambda: isr_size(cluster, "t") == 2)
        await submit(cluster.partition(leader, "t"), "a", "b", "c")
        found = await told(cluster, leader)
        assert found["millstream_replica_isr_replicas", "t", "0"] == 2
        assert found["millstream_replica_assigned_replicas", "t", "0"] == 3
        assert found["millstream_replica_lag_records", "t", "0", str(gone)] == 3
        assert found["millstream_replica_lag_bytes", "t", "0", str(gone)] > 0
        assert found["millstream_replica_in_sync_flag", "t", "0", str(gone)] == 0
        assert found["millstream_replica_under_replicated_partitions",] >= 1
        assert found["millstream_replica_isr_shrinks_total",] >= 1
        assert found["millstream_replica_leader_changes_total",] >= 1
        assert found["millstream_replica_position_mismatches_total",] == 0
        assert found["millstream_replica_without_quorum_seconds",] == 0
