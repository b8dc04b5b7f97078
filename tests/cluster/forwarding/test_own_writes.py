"""A record that was acknowledged through one node is read through every other one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millstream.cluster.reading import partition_anywhere
from millstream.cluster.reading.partition_anywhere import PartitionAnywhere
from millstream.cluster.reading.remote_partition import PartitionEnds, RemotePartition
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.errors import LeaderNotAvailable, NotLeader
from millstream.protocols.peer.messages.fetch_batches import (
    FetchBatchesRequest,
    FetchBatchesResponse,
)
from tests.cluster.forwarding.cluster_http import (
    create,
    error_code,
    leader_of,
    others,
    send,
)
from tests.cluster.local_cluster import SHORT_LEASE_MS, LocalCluster, local_cluster, submit, until
from tests.in_loop import in_loop

RECORDS = "/v1/topics/t/records"


async def values(cluster: LocalCluster, node_id: int, query: str = "") -> list[int]:
    answer = await send(cluster, node_id, "GET", RECORDS + query)
    assert answer.status == 200, answer.body
    return [row["value"] for row in json.loads(answer.body)["records"]]


def count_questions(cluster: LocalCluster, leader: int) -> list[FetchBatchesRequest]:
    """Return a list to which the questions of other nodes for the end of a partition are added."""
    node = cluster.nodes[leader]._cluster
    assert node is not None
    handler = node.listener.handlers[FetchBatchesRequest]
    asked: list[FetchBatchesRequest] = []

    def note(request, context):
        asked.append(request)
        return handler(request, context)

    node.listener.serve(FetchBatchesRequest, note)
    return asked


@pytest.mark.parametrize("factor", [1, 2, 3])
@in_loop
async def test_a_record_that_was_appended_through_one_node_is_read_through_each(
    tmp_path: Path, factor: int
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=factor)
        for number in range(15):
            body = {"records": [{"value": number}]}
            answer = await send(cluster, 1 + number % 3, "POST", RECORDS, body)
            assert answer.status == 201, answer.body
            for node_id in cluster.nodes:
                assert await values(cluster, node_id) == list(range(number + 1))
                answer = await send(cluster, node_id, "GET", "/v1/topics/t")
                assert json.loads(answer.body)["partitions"][0]["head"] == number + 1
                answer = await send(cluster, node_id, "GET", "/v1/topics/t/search?limit=100")
                assert len(json.loads(answer.body)["records"]) == number + 1


@in_loop
async def test_a_read_asks_the_leader_once_and_only_at_the_end_of_the_replica(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await submit(cluster.partition(leader, "t"), *map(str, range(10)))
        [follower, _] = others(cluster, leader)
        assert await values(cluster, follower) == list(range(10))
        asked = count_questions(cluster, leader)
        assert await values(cluster, follower, "?limit=4") == [0, 1, 2, 3]
        assert await values(cluster, follower, "?stale=true") == list(range(10))
        assert await values(cluster, leader) == list(range(10))
        assert await values(cluster, follower, "?from=10&wait_ms=1") == []
        assert asked == []
        assert await values(cluster, follower, "?from=5") == [5, 6, 7, 8, 9]
        assert len(asked) == 1


@in_loop
async def test_readers_that_ask_at_the_same_time_share_questions(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await submit(cluster.partition(leader, "t"), "1")
        [follower, _] = others(cluster, leader)
        await until(lambda: cluster.partition(follower, "t").high_watermark == 1)
        asked = count_questions(cluster, leader)
        anywhere = cluster.partition(follower, "t").anywhere
        assert isinstance(anywhere, PartitionAnywhere)
        first = asyncio.create_task(anywhere.catch_up())
        await until(lambda: len(asked) == 1)
        await asyncio.gather(first, *(anywhere.catch_up() for _ in range(50)))
        assert len(asked) <= 3, "those that came while the first was asked share the second"


@in_loop
async def test_a_follower_that_cannot_ask_the_leader_says_so(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await submit(cluster.partition(leader, "t"), "1", "2")
        [follower, _] = others(cluster, leader)
        assert await values(cluster, follower) == [1, 2]
        cluster.isolate(follower)
        answer = await send(cluster, follower, "GET", RECORDS)
        assert answer.status == 503, "there may be records that it does not know of"
        assert error_code(answer) in ("peer_unavailable", "leader_not_available")
        assert await values(cluster, follower, "?stale=true") == [1, 2]
        assert await values(cluster, follower, "?limit=1") == [1]
        answer = await send(cluster, follower, "GET", "/v1/topics/t")
        described = json.loads(answer.body)["partitions"][0]
        assert (described["head"], described["stale"]) == (2, True)
        cluster.heal(follower)


@in_loop
async def test_a_follower_that_does_not_get_what_its_leader_has_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The coordinator of a stream asks before it appends: 409 would be a conflict."""
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await submit(cluster.partition(leader, "t"), "1")
        [follower, _] = others(cluster, leader)
        await until(lambda: cluster.partition(follower, "t").high_watermark == 1)
        anywhere = cluster.partition(follower, "t").anywhere
        assert isinstance(anywhere, PartitionAnywhere)
        ends = await anywhere.remote.ask()

        async def ask() -> PartitionEnds:
            return ends._replace(high_watermark=2)

        monkeypatch.setattr(anywhere.remote, "ask", ask)
        with pytest.raises(LeaderNotAvailable):
            await anywhere.catch_up()
        answer = await send(cluster, follower, "GET", RECORDS)
        assert answer.status == 503, answer.body
        assert b"has records up to offset 1, and is behind offset 2" in answer.body


@in_loop
async def test_a_leader_that_has_not_taken_over_tells_nobody_where_the_partition_ends(
    tmp_path: Path,
):
    """Its high watermark may be lower than what its predecessor has shown."""
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await submit(cluster.partition(leader, "t"), "1")
        [follower, _] = others(cluster, leader)
        assert await values(cluster, follower) == [1]
        replica = cluster.partition(leader, "t").replica
        assert isinstance(replica, LocalReplica)
        assert replica.leader is not None
        started, replica.leader.epoch_start = replica.leader.epoch_start, 2
        for node_id in cluster.nodes:
            answer = await send(cluster, node_id, "GET", RECORDS)
            assert answer.status == 503, (node_id, answer.body)
        replica.leader.epoch_start = started
        for node_id in cluster.nodes:
            assert await values(cluster, node_id) == [1]


def test_what_an_earlier_leader_told_replaces_nothing_newer() -> None:
    partition = RemotePartition.__new__(RemotePartition)
    partition._ends, partition._watchers = None, {}
    partition._removal_token = object()
    for epoch, end, expected in [(1, 5, 5), (1, 7, 7), (1, 6, 7), (2, 8, 8), (1, 9, 8), (3, 4, 4)]:
        partition.take(FetchBatchesResponse(leader_epoch=epoch, high_watermark=end))
        assert partition.high_watermark == expected


@in_loop
async def test_a_node_that_is_elected_while_it_asks_the_leader_shows_what_that_one_has_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(partition_anywhere, "TAKE_OVER_POLL_SECONDS", 0)
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await submit(cluster.partition(leader, "t"), "1")
        [follower, _] = others(cluster, leader)
        await until(lambda: cluster.partition(follower, "t").high_watermark == 1)
        anywhere = cluster.partition(follower, "t").anywhere
        assert isinstance(anywhere, PartitionAnywhere)
        replica, ask, looks = anywhere._replica, anywhere.remote.ask, 0

        def check_end() -> None:
            nonlocal looks
            looks += 1
            if looks < 3:
                raise LeaderNotAvailable("it is taking it over")

        async def ask_and_be_elected() -> PartitionEnds:
            ends = await ask()
            monkeypatch.setattr(replica, "leader", object())
            return ends

        monkeypatch.setattr(replica, "check_end", check_end)
        monkeypatch.setattr(anywhere.remote, "ask", ask_and_be_elected)
        await anywhere.catch_up()
        assert looks == 3
        monkeypatch.undo()


@in_loop
async def test_a_replica_that_leaves_the_isr_while_a_reader_waits_tells_no_stale_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        [follower, _] = others(cluster, leader)
        partition = cluster.partition(follower, "t")
        anywhere = partition.anywhere
        assert isinstance(anywhere, PartitionAnywhere)
        assert (await anywhere.remote.ask()).high_watermark == 0
        await submit(cluster.partition(leader, "t"), "1", "2", "3")
        wait = partition.settle

        async def leave_while_waiting(offset: int | None = None) -> None:
            await wait(offset)
            left = anywhere._replica
            monkeypatch.setattr(LocalReplica, "is_in_sync", property(lambda self: self is not left))

        monkeypatch.setattr(partition, "settle", leave_while_waiting)
        await anywhere.settle(3)
        assert not anywhere.is_here
        assert anywhere.high_watermark == 3
        monkeypatch.undo()


@in_loop
async def test_a_leader_without_its_lease_does_not_say_that_an_offset_is_past_the_end(
    tmp_path: Path,
):
    """Another node may lead by now, and have told a client that offset."""
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        partition = cluster.partition(leader, "t")
        await submit(partition, "1")
        await partition.anywhere.settle(2)  # It leads: nobody was told offset 2.
        cluster.isolate(leader)
        replica = partition.replica
        assert isinstance(replica, LocalReplica)
        now = cluster.nodes[leader].broker.clock.monotonic
        await until(lambda: replica.leader is None or not replica.leader.may_answer(now()))
        with pytest.raises(NotLeader):
            await partition.settle(2)
        cluster.heal(leader)
