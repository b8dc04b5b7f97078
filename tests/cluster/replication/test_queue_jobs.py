"""The end of a partition by the word of its leader, from which a queue learns of lost records."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cluster.coordination.queue_jobs import ClusterJobs
from millstream.cluster.replication.local_replica import LocalReplica
from tests.cluster.forwarding.cluster_http import leader_of, others
from tests.cluster.local_cluster import local_cluster, submit
from tests.in_loop import in_loop


@in_loop
async def test_a_new_leader_that_does_not_know_its_end_yet_has_lost_nothing(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader = leader_of(cluster, "t")
        partition = cluster.partition(leader, "t")
        await submit(partition, "1", "2")
        assert ClusterJobs().leader_end(partition.anywhere, 0) == 2
        assert isinstance(partition.replica, LocalReplica)
        assert partition.replica.leader is not None
        # As after an election: its followers have not told yet what they have.
        partition.replica.leader.epoch_start = 3
        assert ClusterJobs().leader_end(partition.anywhere, 0) is None
        follower = cluster.partition(others(cluster, leader)[0], "t")
        assert ClusterJobs().leader_end(follower.anywhere, 0) is None


@in_loop
async def test_what_a_leader_told_before_the_queue_was_read_does_not_say_that_jobs_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader = leader_of(cluster, "t")
        other = others(cluster, leader)[0]
        partition = cluster.partition(other, "t").anywhere
        await partition.remote.ask()
        await submit(cluster.partition(leader, "t"), "1", "2")
        # As after its lease has expired: it has to ask, and has an old answer.
        monkeypatch.setattr(LocalReplica, "is_in_sync", False)
        assert partition.remote.high_watermark == 0
        read_at = cluster.nodes[other]._clock.monotonic()
        assert ClusterJobs().leader_end(partition, read_at) is None
        await partition.remote.ask()
        assert ClusterJobs().leader_end(partition, read_at) == 2
