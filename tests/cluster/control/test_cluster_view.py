"""What a node tells clients of the cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka import Producer

from millstream.broker.cluster_view import NO_NODE, CoordinatorKind
from tests.cluster.forwarding.cluster_http import create, leader_of, others
from tests.cluster.local_cluster import SHORT_LEASE_MS, LocalCluster, local_cluster, until
from tests.in_loop import in_loop


def leader_told_by(cluster: LocalCluster, node_id: int, topic: str) -> int:
    return cluster.nodes[node_id].broker.cluster.placement(topic, 0).leader


@in_loop
async def test_a_leader_that_is_cut_off_does_not_send_clients_to_itself(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        old = leader_of(cluster, "t")
        assert leader_told_by(cluster, old, "t") == old
        cluster.isolate(old)
        [other, _] = others(cluster, old)
        await until(lambda: leader_told_by(cluster, other, "t") not in (old, NO_NODE))
        assert leader_told_by(cluster, old, "t") == NO_NODE
        cluster.heal(old)
        await until(lambda: leader_told_by(cluster, old, "t") not in (old, NO_NODE))


@in_loop
async def test_a_client_that_is_connected_to_a_node_that_is_cut_off_finds_the_new_leader(
    tmp_path: Path,
):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        old = leader_of(cluster, "t")
        bootstrap = str(cluster.nodes[old].kafka)
        # It has one connection, to the node that it asked first, until it has something to send.
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        assert await asyncio.to_thread(producer.list_topics, "t", 60)
        cluster.isolate(old)
        [other, _] = others(cluster, old)
        await until(lambda: leader_told_by(cluster, other, "t") not in (old, NO_NODE))
        await until(lambda: cluster.nodes[old].broker.cluster.is_cut_off)
        errors: list[object] = []
        producer.produce("t", "x", callback=lambda error, _: errors.append(error))
        assert await asyncio.to_thread(producer.flush, 60) == 0
        assert errors == [None]


@in_loop
async def test_a_node_that_registered_again_does_not_lead_what_it_led_before(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        old = leader_of(cluster, "t")
        membership = cluster.member(old).membership
        former = membership.broker_epoch
        cluster.isolate(old)
        [other, _] = others(cluster, old)
        await until(lambda: leader_told_by(cluster, other, "t") not in (old, NO_NODE))
        # It registers before it hears of what happened meanwhile.
        cluster.connections[old].delay_watches()
        cluster.heal(old)
        await until(lambda: membership.leading_life() not in (None, former))
        assert leader_told_by(cluster, old, "t") == NO_NODE
        cluster.connections[old].stop_delaying()
        await until(lambda: leader_told_by(cluster, old, "t") not in (old, NO_NODE))


@in_loop
async def test_a_coordinator_without_its_lease_does_not_send_clients_to_itself(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        views = {node_id: node.broker.cluster for node_id, node in cluster.nodes.items()}

        def coordinator(seen_by: int) -> int:
            node = views[seen_by].coordinator_of(CoordinatorKind.GROUP, "g")
            return NO_NODE if node is None else node.node_id

        await until(lambda: {coordinator(node_id) for node_id in views} in [{1}, {2}, {3}])
        old = coordinator(1)
        [other, _] = others(cluster, old)
        cluster.member(old).membership.belief.lost()  # It believes in it again when it is renewed.
        assert (coordinator(old), coordinator(other)) == (NO_NODE, old)
