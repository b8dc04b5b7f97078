"""Disks that fail while nodes run: a failed sync, and a full disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from millstream.broker.partition.partition import Partition
from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.repair import RepairStep, next_repair
from millstream.cluster.replication import replica_repair
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication_state import NO_NODE
from millstream.errors import DiskFull
from millstream.storage.inspect.damaged_segments import NO_DAMAGE
from millstream.storage.log import Log
from millstream.storage.replica.log_replication import LogReplication
from millstream.storage.store import Store
from tests.cluster.local_cluster import local_cluster, until
from tests.cluster.replication.damage import (
    expected,
    fill,
    follower_of,
    is_in_sync,
    seen,
    until_equal,
)
from tests.in_loop import in_loop


def fail_disk(log: Log) -> None:
    """Do what a failed sync does: nobody knows what is on the disk."""
    log._go_offline(OSError(errno.EIO, "a sync failed"))


@in_loop
async def test_a_leader_whose_disk_fails_hands_over_and_becomes_a_follower_again(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        leader = cluster.leader_of("t")
        assert leader is not None
        fail_disk(cluster.partition(leader, "t").log)
        await until(lambda: cluster.leader_of("t") not in (None, leader))
        await fill(cluster, "t", 5, first=5)
        await until_equal(cluster, "t", expected(10))


@in_loop
async def test_a_follower_whose_disk_fails_is_in_sync_again_when_its_log_can_be_opened(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        leader, follower = cluster.leader_of("t"), follower_of(cluster, "t")
        fail_disk(cluster.partition(follower, "t").log)
        await until(
            lambda: cluster.member(follower).replicas.context.counters.repairs["disown"] > 0
        )
        await fill(cluster, "t", 5, first=5)
        await until_equal(cluster, "t", expected(10))
        assert cluster.leader_of("t") == leader


@in_loop
async def test_a_follower_that_lost_its_end_does_not_fetch_from_before_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A fetch in between would tell its leader of records that are about to be removed."""
    asked: list[int] = []
    disown = replica_repair.disown

    async def noted(context: ReplicaContext, key: PartitionId) -> None:
        asked.append(cluster.member(context.node_id).replicas.replicas[key].leader_id)
        await disown(context, key)

    monkeypatch.setattr(replica_repair, "disown", noted)
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        fail_disk(cluster.partition(follower_of(cluster, "t"), "t").log)
        await until(lambda: bool(asked))
        await fill(cluster, "t", 5, first=5)
        await until_equal(cluster, "t", expected(10))
        assert set(asked) == {NO_NODE}


@in_loop
async def test_a_replica_that_is_not_in_the_isr_says_that_it_lost_its_end_before_it_is_cut(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        follower = follower_of(cluster, "t")
        manager = cluster.member(follower).replicas
        replica = cluster.partition(follower, "t").replica
        assert isinstance(replica, LocalReplica)
        states = manager.context.state.partitions
        states[replica.key] = states[replica.key].disowned(follower)
        replica.is_end_lost = True
        condition = manager.repair._condition(replica, NO_DAMAGE)
        assert next_repair(condition) is RepairStep.DISOWN
        replica.is_disowned = True
        condition = manager.repair._condition(replica, NO_DAMAGE)
        assert next_repair(condition) is RepairStep.RECOVER_END


@in_loop
async def test_a_node_that_is_elected_though_its_disk_has_failed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        leader, follower = cluster.leader_of("t"), follower_of(cluster, "t")
        assert leader is not None
        repair = cluster.member(follower).replicas.repair
        with monkeypatch.context() as patch:
            patch.setattr(repair, "_suspects", lambda: iter(()))  # It has not looked yet.
            fail_disk(cluster.partition(follower, "t").log)
            leading = cluster.partition(leader, "t").replica.leader
            leading.hand_over(follower, cluster.nodes[leader]._clock.monotonic())
            states = cluster.member(leader).state.partitions
            key = cluster.partition(leader, "t").replica.key
            await until(lambda: states[key].leader == follower)
        await until(lambda: cluster.leader_of("t") not in (None, follower))
        await fill(cluster, "t", 5, first=5)
        await until_equal(cluster, "t", expected(10))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@in_loop
async def test_a_follower_that_could_not_open_its_log_tries_again_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        follower = follower_of(cluster, "t")
        broken = cluster.nodes[follower].broker.store
        make_log, recover_end = Store._make_log, LocalReplica.recover_end
        attempts = 0

        def fail(self: Store, *args, **kwargs):
            if self is broken:
                raise OSError(code, "the disk still fails")
            return make_log(self, *args, **kwargs)

        async def count(self: LocalReplica, *args, **kwargs):
            nonlocal attempts
            attempts += 1
            await recover_end(self, *args, **kwargs)

        monkeypatch.setattr(Store, "_make_log", fail)
        monkeypatch.setattr(LocalReplica, "recover_end", count)
        removed: list[Partition] = []
        remove_log = Partition.remove_log

        async def note_removal(self: Partition) -> None:
            removed.append(self)
            await remove_log(self)

        monkeypatch.setattr(Partition, "remove_log", note_removal)
        fail_disk(cluster.partition(follower, "t").log)
        await until(lambda: attempts >= 4)
        monkeypatch.setattr(Store, "_make_log", make_log)
        await fill(cluster, "t", 5, first=5)
        await until_equal(cluster, "t", expected(10))
        assert bool(removed) == (code == errno.EIO), "a full disk damages nothing"


@in_loop
async def test_a_follower_with_a_full_disk_leaves_and_comes_back_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path, replica_lag_ms_max=500) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        follower = follower_of(cluster, "t")
        full = cluster.partition(follower, "t").log.replication
        submit = LogReplication.submit

        def fail(self: LogReplication, *args, **kwargs):
            if self is full:
                raise DiskFull("no space left on the disk")
            return submit(self, *args, **kwargs)

        monkeypatch.setattr(LogReplication, "submit", fail)
        await fill(cluster, "t", 5, first=5)
        assert not is_in_sync(cluster, "t")
        assert cluster.member(follower).replicas.context.counters.mismatches == 0
        monkeypatch.setattr(LogReplication, "submit", submit)
        await until_equal(cluster, "t", expected(10))
        assert seen(cluster, follower, "t") == expected(10)
