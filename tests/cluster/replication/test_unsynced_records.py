"""Followers fetch what their leader has written, while it syncs: the syncs run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from millstream.cluster.isr import FollowerProgress
from millstream.cluster.replication import slice_cache
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.storage.disk.filesystem import File
from millstream.storage.replica.log_replication import LogReplication
from tests.cluster.local_cluster import LocalCluster, local_cluster, submit, until, values_of
from tests.in_loop import in_loop


class HeldSyncs:
    """Syncs the files of one node when the test says so."""

    def __init__(self) -> None:
        self._held: list[tuple[Sequence[File], Callable[[OSError | None], None]]] = []

    def has_capacity(self, _: int) -> bool:
        return True

    def sync(self, files: Sequence[File], done: Callable[[OSError | None], None]) -> None:
        self._held.append((files, done))

    def release(self) -> None:
        held, self._held = self._held, []
        for files, done in held:
            for file in files:
                file.sync()
            done(None)

    def close(self) -> None:
        pass


def durable_ends(cluster: LocalCluster) -> dict[int, int]:
    return {
        node_id: cluster.partition(node_id, "t").log.replication.durable_offset
        for node_id in cluster.nodes
    }


def told_high_watermark(cluster: LocalCluster, leader: int) -> int:
    """Return the high watermark that a leader tells its followers."""
    replica = cluster.partition(leader, "t").replica
    assert isinstance(replica, LocalReplica)
    assert replica.leader is not None
    return replica.leader.high_watermark


def progress_of(cluster: LocalCluster, leader: int, follower: int) -> FollowerProgress:
    replica = cluster.partition(leader, "t").replica
    assert isinstance(replica, LocalReplica)
    assert replica.leader is not None
    progress = replica.leader.follower(follower)
    assert progress is not None
    return progress


@in_loop
async def test_followers_have_a_batch_before_their_leader_has_synced_it_and_it_waits_for_all(
    tmp_path: Path, monkeypatch
):
    async with local_cluster(tmp_path, replica_lag_ms_max=60_000) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        partition = cluster.partition(leader, "t")
        await submit(partition, "a")  # The first one syncs the directory too, in a thread.
        syncs = HeldSyncs()
        monkeypatch.setattr(partition.log._commit._committer, "_syncer", syncs)
        try:
            acked = submit(partition, "b")
            others = dict.fromkeys(set(cluster.nodes) - {leader}, 2)
            await until(lambda: durable_ends(cluster) == {leader: 1, **others})
            # They report it with their next fetch, and nothing is committed by that.
            progress = [progress_of(cluster, leader, node_id) for node_id in others]
            await until(lambda: all(follower.end == 2 for follower in progress))
            assert not acked.done()
            assert values_of(partition) == ["a"]
            assert told_high_watermark(cluster, leader) == 1, "also to readers at followers"
        finally:
            syncs.release()
            monkeypatch.undo()
        await acked
        assert durable_ends(cluster)[leader] == 2
        assert values_of(partition) == ["a", "b"]


@in_loop
async def test_what_was_read_for_one_follower_is_not_read_again_for_the_other(
    tmp_path: Path, monkeypatch
):
    reads: list[int] = []
    read = LogReplication.read

    def counted(replication, offset, **options):
        if not options.get("is_durable", True):
            reads.append(offset)
        return read(replication, offset, **options)

    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")
        monkeypatch.setattr(LogReplication, "read", counted)
        monkeypatch.setattr(slice_cache, "SECONDS_MAX", 3600.0)  # However busy the machine is.
        await submit(cluster.partition(leader, "t"), "b")
        assert reads.count(1) == 1


@in_loop
async def test_a_follower_that_registers_again_while_it_syncs_goes_on_behind_what_it_synced(
    tmp_path: Path, monkeypatch
):
    """It began before that batch, was told of it then, and never fetched again."""
    async with local_cluster(tmp_path, replica_lag_ms_max=60_000) as cluster:
        await cluster.create("t")
        leader = cluster.leader_of("t")
        assert leader is not None
        partition = cluster.partition(leader, "t")
        await submit(partition, "a")
        node_id = next(node_id for node_id in cluster.nodes if node_id != leader)
        await until(lambda: durable_ends(cluster)[node_id] == 1)
        log = cluster.partition(node_id, "t").log
        syncs = HeldSyncs()
        monkeypatch.setattr(log._commit._committer, "_syncer", syncs)
        replicas = cluster.member(node_id).replicas
        replica = cluster.partition(node_id, "t").replica
        assert isinstance(replica, LocalReplica)
        try:
            acked = submit(partition, "b")
            await until(lambda: log.replication.written_offset == 2)
            former = replica.follower
            replicas._on_life(0)
            await until(lambda: replica.follower is not former)
            for _ in range(20):
                await asyncio.sleep(0)
        finally:
            syncs.release()
            monkeypatch.undo()
        await submit(partition, "c")
        await acked
        await until(lambda: durable_ends(cluster)[node_id] == 3)
        await until(lambda: values_of(cluster.partition(node_id, "t")) == ["a", "b", "c"])
