"""Records on several nodes: acknowledged, read, and kept through the loss of a leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.broker.topics.topics import Replication
from millstream.cluster.circuit_breaker import BreakerLimits, BreakerState
from millstream.cluster.control.cluster_state import ClusterState, PartitionId
from millstream.cluster.control.proposer import ProposalOutcome
from millstream.cluster.coordination.cluster_partitions import ClusterPartitions
from millstream.cluster.coordination.internal_topics import GROUPS, PARTITIONS, topic_of
from millstream.cluster.replication import replica_manager
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_fetcher import ReplicaFetcher
from millstream.cluster.replication_state import Proposal, ReplicationState
from millstream.errors import LogClosed, NotLeader, NotLeaderAnymore, OutcomeUnknown, Unavailable
from tests.cluster.local_cluster import (
    LONG_LEASE_MS,
    SHORT_LEASE_MS,
    LocalCluster,
    local_cluster,
    submit,
    until,
    values_of,
)
from tests.in_loop import in_loop


def ends(cluster: LocalCluster, topic: str) -> list[tuple[int, int]]:
    """Return the durable end and the high watermark of each replica."""
    found = []
    for node_id in cluster.nodes:
        partition = cluster.partition(node_id, topic)
        found.append((partition.log.replication.durable_offset, partition.high_watermark))
    return found


@in_loop
async def test_an_acknowledged_record_is_on_every_replica_in_sync(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a", "b")
        assert [end for end, _ in ends(cluster, "t")] == [2, 2, 2]
        await until(lambda: ends(cluster, "t") == [(2, 2)] * 3)
        for node_id in cluster.nodes:
            assert values_of(cluster.partition(node_id, "t")) == ["a", "b"]


@in_loop
async def test_records_that_a_smaller_isr_commits_are_shown_with_it(tmp_path: Path):
    """A queue that saw a leader with less than its own end took the last jobs for lost."""
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        partition = cluster.partition(leader, "t")
        for node_id in cluster.nodes:
            if node_id != leader:
                cluster.isolate(node_id)
        append = submit(partition, "a")
        replica = partition.replica
        assert isinstance(replica, LocalReplica)
        await until(lambda: partition.log.replication.durable_offset == 1)
        assert partition.high_watermark == 0
        state = cluster.member(leader).state.partitions[replica.key]
        alone = tuple(member for member in state.isr if member.node == leader)
        await replica.apply(replace(state, isr=alone, revision=state.revision + 1))
        assert replica.leader is not None
        assert replica.leader.high_watermark == partition.high_watermark == 1
        await append


@in_loop
async def test_a_follower_names_the_leader_and_takes_no_batch(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        follower = next(node_id for node_id in cluster.nodes if node_id != leader)
        await until(lambda: cluster.partition(follower, "t").is_open)
        with pytest.raises(NotLeader) as refusal:
            await submit(cluster.partition(follower, "t"), "a")
        assert refusal.value.leader == leader


@in_loop
async def test_a_stopped_leader_hands_over_and_nothing_is_lost(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")
        await cluster.stop_node(leader)
        await until(lambda: cluster.leader_of("t") not in (None, leader))
        successor = cluster.leader_of("t")
        assert successor is not None
        await submit(cluster.partition(successor, "t"), "b")
        assert values_of(cluster.partition(successor, "t")) == ["a", "b"]
        await cluster.start_node(leader)
        await until(lambda: values_of_if_open(cluster, leader) == ["a", "b"])


@in_loop
async def test_a_leader_that_stops_waits_for_a_replica_that_is_about_to_be_in_sync(tmp_path: Path):
    """As the first node of a new cluster: else nobody else could lead its groups."""
    async with local_cluster(tmp_path, 1) as cluster:
        groups = topic_of(GROUPS)
        await until(lambda: topic_exists(cluster, 1, groups) and cluster.leader_of(groups) == 1)
        partition = cluster.partition(1, groups)
        assert isinstance(partition.replica, LocalReplica)
        key, states = partition.replica.key, cluster.member(1).state.partitions
        await cluster.start_node(2)
        await until(lambda: 2 in states[key].replicas)
        assert states[key].isr_nodes == (1,)
        await cluster.stop_node(1)
        await until(lambda: cluster.leader_of(groups) == 2)


def topic_exists(cluster: LocalCluster, node_id: int, topic: str) -> bool:
    return cluster.nodes[node_id].broker.topics.find(topic) is not None


@in_loop
async def test_internal_partitions_get_replicas_on_nodes_that_join_while_others_still_copy(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(ReplicaFetcher, "_request", lambda _: None)
    async with local_cluster(tmp_path, 1) as cluster:
        state = cluster.member(1).state
        await until(lambda: len(state.partitions) == sum(PARTITIONS.values()))
        for node_id in (2, 3):
            await cluster.start_node(node_id)
            await until(
                lambda: all(len(known.target) == len(cluster.nodes) for known in partitions(state))
            )
        assert {known.isr_nodes for known in partitions(state)} == {(1,)}


def partitions(state: ClusterState) -> list[ReplicationState]:
    return list(state.partitions.values())


def values_of_if_open(cluster: LocalCluster, node_id: int) -> list[str]:
    partition = cluster.partition(node_id, "t")
    return values_of(partition) if partition.is_open else []


@in_loop
async def test_an_isolated_leader_loses_only_what_it_did_not_acknowledge(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await cluster.create("t")
        old = cluster.leader_of("t")
        assert old is not None
        await submit(cluster.partition(old, "t"), "kept")
        cluster.isolate(old)
        unsure = submit(cluster.partition(old, "t"), "unsure")
        await until(lambda: cluster.leader_of("t") not in (None, old))
        new = cluster.leader_of("t")
        assert new is not None
        await submit(cluster.partition(new, "t"), "new")
        with pytest.raises(NotLeader):
            await submit(cluster.partition(old, "t"), "refused")
        assert not unsure.done() or isinstance(unsure.exception(), OutcomeUnknown)
        cluster.heal(old)
        await until(lambda: values_of(cluster.partition(old, "t")) == ["kept", "new"])
        with pytest.raises(NotLeaderAnymore):
            await unsure
        await until(lambda: len(set(ends(cluster, "t"))) == 1)


@in_loop
async def test_acks_1_is_not_answered_after_the_lease(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await cluster.create("t")
        old = cluster.leader_of("t")
        assert old is not None
        partition = cluster.partition(old, "t")
        cluster.isolate(old)
        await until(lambda: cluster.leader_of("t") not in (None, old))
        with pytest.raises(NotLeader):
            await submit(partition, "late", is_early=True)
        cluster.heal(old)
        await asyncio.sleep(0)


@in_loop
async def test_a_failure_in_one_partition_does_not_end_the_isr_changes_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path) as cluster:
        leader, follower = 1, 2
        for topic in ("t", "other"):
            await cluster.nodes[leader].broker.topics.create(
                topic, partitions=1, replication=Replication(assignments=((1, 2, 3),))
            )
            await until(lambda name=topic: cluster.leader_of(name) == leader)
        replicas = cluster.member(leader).replicas.replicas.values()
        failures = 0

        def fail() -> None:
            nonlocal failures
            failures += 1
            raise LogClosed("it is not open")

        [other] = [replica for replica in replicas if replica.topic.name == "other"]
        monkeypatch.setattr(other, "tick", fail)
        await until(lambda: failures > 0)
        partition = cluster.nodes[leader].broker.admin.partition
        await cluster.stop_node(follower)
        await until(lambda: follower not in partition("t", 0).isr)
        await cluster.start_node(follower)
        await until(lambda: follower in partition("t", 0).isr)
        monkeypatch.undo()


@in_loop
async def test_a_follower_that_registered_again_joins_though_its_leader_hears_of_it_late(
    tmp_path: Path,
):
    """The follower fetches in its new life before the leader hears that the old one has ended."""
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        follower = next(node_id for node_id in cluster.nodes if node_id != leader)
        membership = cluster.member(follower).membership
        former = membership.broker_epoch
        partition = cluster.nodes[leader].broker.admin.partition
        await until(lambda: follower in partition("t", 0).isr)
        machine = cluster.partition(leader, "t").replica
        assert isinstance(machine, LocalReplica)

        def known_life() -> int:
            assert machine.leader is not None
            progress = machine.leader.follower(follower)
            assert progress is not None
            return progress.broker_epoch

        cluster.connections[leader].delay_watches()
        assert membership.lease is not None
        await membership.lease.revoke()
        await until(lambda: known_life() > former)
        cluster.connections[leader].stop_delaying()
        await until(lambda: machine.leader is not None and is_member(machine, follower))
        assert known_life() == membership.broker_epoch


def is_member(replica: LocalReplica, node_id: int) -> bool:
    """Return whether the ISR of a leader has a follower in the life in which it fetches."""
    assert replica.leader is not None
    member, progress = replica.leader.state.member(node_id), replica.leader.follower(node_id)
    return (
        member is not None and progress is not None and member.broker_epoch == progress.broker_epoch
    )


@in_loop
async def test_a_node_that_registers_again_fetches_at_once_from_those_who_refused_it(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        follower = next(node for node in cluster.nodes if node != leader)
        assert leader is not None
        peers = cluster.nodes[follower]._cluster.peers
        peers._limits = BreakerLimits(open_seconds=3600)
        peers.forget(leader)  # The next connection has these limits.
        cluster.connections[follower].disconnect()
        await until(lambda: peers.breaker_states().get(leader) is BreakerState.OPEN)
        cluster.connections[follower].reconnect()
        await submit(cluster.partition(leader, "t"), "a")
        await until(lambda: values_of(cluster.partition(follower, "t")) == ["a"])


@in_loop
async def test_a_leader_whose_proposal_failed_in_an_unexpected_way_proposes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        follower = next(node_id for node_id in cluster.nodes if node_id != leader)
        partition = cluster.nodes[leader].broker.admin.partition
        await until(lambda: follower in partition("t", 0).isr)
        proposer = cluster.member(leader).proposer
        propose, failed = proposer.propose, set[PartitionId]()

        async def fail_once(key: PartitionId, proposal: Proposal) -> ProposalOutcome:
            if key not in failed:
                failed.add(key)
                raise KeyError("a bug")
            return await propose(key, proposal)

        monkeypatch.setattr(proposer, "propose", fail_once)
        await cluster.stop_node(follower)
        await until(lambda: follower not in partition("t", 0).isr)
        # Some of them are proposals of the controller, if it is the same node.
        assert 0 < cluster.member(leader).replicas.context.counters.internal_errors <= len(failed)


@pytest.mark.parametrize("error", [Unavailable("the disk is full"), KeyError("a bug")])
@in_loop
async def test_a_replica_that_could_not_take_its_role_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    monkeypatch.setattr(replica_manager, "ROLE_RETRY_SECONDS", 0.05)
    lead, follow = LocalReplica._lead, LocalReplica._follow
    failed = set[tuple[int, str]]()

    def fail_once(replica: LocalReplica, role: str) -> None:
        key = replica._context.node_id, role
        if replica.topic.name == "t" and key not in failed:
            failed.add(key)
            raise error

    async def lead_late(replica: LocalReplica, state: ReplicationState) -> None:
        fail_once(replica, "lead")
        await lead(replica, state)

    async def follow_late(replica: LocalReplica, state: ReplicationState) -> None:
        fail_once(replica, "follow")
        await follow(replica, state)

    monkeypatch.setattr(LocalReplica, "_lead", lead_late)
    monkeypatch.setattr(LocalReplica, "_follow", follow_late)
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")
        await until(lambda: ends(cluster, "t") == [(1, 1)] * 3)
        assert {role for _, role in failed} == {"lead", "follow"}
        for node_id in cluster.nodes:
            assert not cluster.member(node_id).replicas.problems()


@in_loop
async def test_a_failure_in_one_partition_keeps_no_other_of_its_fetch_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        node = next(iter(cluster.nodes.values()))
        await node.broker.topics.create(
            "t", partitions=2, replication=Replication(assignments=((1, 2, 3), (1, 2, 3)))
        )
        await until(lambda: cluster.leader_of("t", 0) == cluster.leader_of("t", 1) == 1)
        await cluster.stop_node(3)
        for index in range(2):
            await submit(cluster.partition(1, "t", index), "a")
        advance, failures = LocalReplica.advance, 0

        def fail_once(replica: LocalReplica) -> None:
            nonlocal failures
            if replica._context.node_id == 3 and replica.topic.name == "t" and not failures:
                failures += 1
                raise KeyError("a bug")
            advance(replica)

        monkeypatch.setattr(LocalReplica, "advance", fail_once)
        await cluster.start_node(3)
        isr = cluster.nodes[1].broker.admin.partition
        await until(lambda: all(3 in isr("t", index).isr for index in range(2)))
        for index in range(2):
            await submit(cluster.partition(1, "t", index), "b")
            await until(lambda i=index: values_of(cluster.partition(3, "t", i)) == ["a", "b"])
        assert failures == 1


@in_loop
async def test_internal_topics_that_could_not_be_created_are_created_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    create, failures = ClusterPartitions.create, 0

    async def fail_once(partitions: ClusterPartitions, name: str) -> None:
        nonlocal failures
        if not failures:
            failures += 1
            raise Unavailable("the metadata store cannot be reached")
        await create(partitions, name)

    monkeypatch.setattr(ClusterPartitions, "create", fail_once)
    async with local_cluster(tmp_path, 1, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        topics = cluster.nodes[1].broker.topics
        await until(lambda: all(topics.find(topic_of(name)) is not None for name in PARTITIONS))
        assert failures == 1


@in_loop
async def test_a_node_that_was_cut_off_follows_as_soon_as_it_has_registered_again(tmp_path: Path):
    """It does not wait until the breakers close that opened while it reached nobody."""
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        follower = next(node_id for node_id in cluster.nodes if node_id != leader)
        joined = cluster.nodes[follower]._cluster
        assert joined is not None
        joined.peers._limits = BreakerLimits(open_seconds=3600.0)
        joined.peers.forget(leader)
        cluster.isolate(follower)
        await until(lambda: joined.peers.breaker_states().get(leader) is BreakerState.OPEN)
        await until(lambda: follower not in cluster.member(leader).state.nodes)
        cluster.heal(follower)
        await submit(cluster.partition(leader, "t"), "a")
        await until(lambda: values_of(cluster.partition(follower, "t")) == ["a"])


@in_loop
async def test_the_time_between_changes_of_the_isr_is_a_setting(tmp_path: Path):
    async with local_cluster(tmp_path, 1, isr_change_interval_ms=250) as cluster:
        policy = cluster.member(1).replicas.context.policy
        assert policy.change_interval_seconds == 0.25
