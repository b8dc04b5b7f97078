"""Readers of a replica that falls out of sync: what they have seen is not denied."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cluster.reading.partition_anywhere import PartitionAnywhere
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.errors import LeaderNotAvailable
from tests.cluster.forwarding.cluster_http import leader_of, others
from tests.cluster.local_cluster import LocalCluster, local_cluster, submit, until
from tests.in_loop import in_loop


async def follower_with_an_old_answer(cluster: LocalCluster) -> PartitionAnywhere:
    """Return the partition at a follower that asked its leader when it was empty."""
    await cluster.create("t")
    leader = leader_of(cluster, "t")
    follower = others(cluster, leader)[0]
    anywhere = cluster.partition(follower, "t").anywhere
    assert isinstance(anywhere, PartitionAnywhere)
    await anywhere.remote.ask()
    await submit(cluster.partition(leader, "t"), "1", "2")
    await until(lambda: cluster.partition(follower, "t").high_watermark == 2)
    assert anywhere.high_watermark == 2
    return anywhere


@in_loop
async def test_the_end_that_a_leader_told_long_ago_is_not_shown_after_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path) as cluster:
        anywhere = await follower_with_an_old_answer(cluster)
        monkeypatch.setattr(LocalReplica, "is_in_sync", False)
        with pytest.raises(LeaderNotAvailable):
            _ = anywhere.high_watermark
        await anywhere.open()
        assert anywhere.high_watermark == 2
