"""Readers of a replica that falls out of sync: what they have seen is not denied."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cluster.reading.partition_anywhere import PartitionAnywhere
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.errors import LeaderNotAvailable
from millstream.records.cursor import CursorPosition, encode_cursor
from millstream.servers.http.live.start_position import PartitionStart, StartPosition
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


@pytest.mark.parametrize("start", ["earliest", "latest", "cursor"])
@in_loop
async def test_a_watcher_that_connects_meanwhile_starts_where_it_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
):
    async with local_cluster(tmp_path) as cluster:
        anywhere = await follower_with_an_old_answer(cluster)
        topic = next(
            node.broker.topics.get("t")
            for node in cluster.nodes.values()
            if node.broker.topics.get("t").partitions[0].anywhere is anywhere
        )
        open_source = PartitionAnywhere.open
        is_first = True

        async def open_and_fall_behind(self: PartitionAnywhere) -> None:
            nonlocal is_first
            await open_source(self)
            if is_first:
                is_first = False
                monkeypatch.setattr(LocalReplica, "is_in_sync", False)

        monkeypatch.setattr(PartitionAnywhere, "open", open_and_fall_behind)
        cursor = encode_cursor({("t", 0): CursorPosition(1, topic.id)})
        position = StartPosition(cursor if start == "cursor" else start)
        starts = await position.starts([topic])
        expected = {"earliest": 0, "latest": 2, "cursor": 1}[start]
        assert starts == {topic: {anywhere: PartitionStart(expected)}}
