"""Files of a replica that is on other nodes now are removed, and never before others have it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.cluster.repair import may_remove_files
from millstream.cluster.replication import replica_manager
from millstream.cluster.replication_state import IsrMember, ReplicationState
from tests.cluster.local_cluster import WAIT_SECONDS, local_cluster, until
from tests.cluster.replication.damage import (
    directory_of,
    expected,
    fill,
    follower_of,
    seen,
)
from tests.in_loop import in_loop

STATE = ReplicationState(
    leader=1,
    leader_broker_epoch=5,
    leader_epoch=3,
    isr=(IsrMember(1, 5), IsrMember(2, 6)),
    replicas=(1, 2),
)


def test_files_stay_while_the_node_is_a_replica_or_too_few_others_have_the_records():
    assert may_remove_files(STATE, 3, min_insync=2)
    assert not may_remove_files(STATE, 2, min_insync=2)
    assert not may_remove_files(replace(STATE, isr=(IsrMember(1, 5),)), 3, min_insync=2)
    assert not may_remove_files(STATE.disowned(2), 3, min_insync=2)
    assert not may_remove_files(STATE.disowned(1).disowned(2), 3, min_insync=1)


@in_loop
async def test_a_replica_that_was_moved_away_removes_its_files_and_can_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica_manager, "HIGH_WATERMARKS_SECONDS", 0.1)
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        follower = follower_of(cluster, "t")
        directory = directory_of(cluster, follower, "t")
        assert directory.exists()
        leader = cluster.leader_of("t")
        assert leader is not None
        admin = cluster.nodes[leader].broker.admin
        staying = [node for node in cluster.nodes if node != follower]
        await admin.reassign("t", 0, staying)
        await until(lambda: not directory.exists())
        await until(lambda: all(seen(cluster, node, "t") == expected(5) for node in staying))
        await fill(cluster, "t", 5, first=5)
        await admin.reassign("t", 0, [*staying, follower])
        await until(lambda: seen(cluster, follower, "t") == expected(10))


@in_loop
async def test_files_of_a_replica_that_moved_while_its_node_was_down_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica_manager, "HIGH_WATERMARKS_SECONDS", 0.1)
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        follower = follower_of(cluster, "t")
        directory = directory_of(cluster, follower, "t")
        await cluster.stop_node(follower)
        leader = cluster.leader_of("t")
        assert leader is not None
        await cluster.nodes[leader].broker.admin.reassign("t", 0, list(cluster.nodes))
        await until(
            lambda: follower not in cluster.nodes[leader].broker.admin.partition("t", 0).replicas
        )
        assert directory.exists()
        await cluster.start_node(follower)
        await until(lambda: not directory.exists())
        assert seen(cluster, leader, "t") == expected(5)


@in_loop
async def test_a_topic_deleted_after_its_replica_moved_away_from_a_node_that_is_down_leaves_nothing(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        follower = follower_of(cluster, "t")
        directory = directory_of(cluster, follower, "t")
        await cluster.stop_node(follower)
        leader = cluster.leader_of("t")
        assert leader is not None
        broker = cluster.nodes[leader].broker
        await until(lambda: follower not in cluster.member(leader).state.nodes)
        await broker.admin.reassign("t", 0, list(cluster.nodes))
        await until(lambda: follower not in broker.admin.partition("t", 0).replicas)
        await broker.topics.delete("t")
        assert directory.exists()
        node = await cluster.start_node(follower)
        assert not directory.exists()
        assert node.broker.topics.unknown == {}
        await cluster.create("t")
        assert all(seen(cluster, node_id, "t") in ([], None) for node_id in cluster.nodes)
        async with asyncio.timeout(WAIT_SECONDS):  # Until nobody has to delete it any more.
            while list(  # noqa: ASYNC110 - nobody tells.
                await cluster.connections[leader].list("deleted/")
            ):
                await asyncio.sleep(0.01)


@in_loop
async def test_files_of_a_topic_whose_deletion_is_not_recorded_are_kept_and_reported(
    tmp_path: Path,
):
    """They may be the last copy, if a backup of etcd was restored."""
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        follower = follower_of(cluster, "t")
        directory = directory_of(cluster, follower, "t")
        await cluster.stop_node(follower)
        leader = cluster.leader_of("t")
        assert leader is not None
        await cluster.nodes[leader].broker.topics.delete("t")
        connection = cluster.connections[leader]
        for entry in await connection.list("deleted/"):
            await connection.transact(compares=[], deletes=[entry.key])
        node = await cluster.start_node(follower)
        assert directory.exists()
        assert "has not recorded that it was deleted" in node.broker.topics.unknown["t"]
        assert any(problem.code.value == "topic_unknown" for problem in node.broker.problems())
