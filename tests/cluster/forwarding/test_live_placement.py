"""Live delivery of topics whose partitions are on different nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from millstream import AsyncClient
from millstream.cluster.reading import remote_partition
from millstream.cluster.reading.remote_partition import RemotePartition
from millstream.errors import UnknownTopicId
from millstream.protocols.peer.messages.fetch_batches import FetchBatchesRequest
from tests.cluster.forwarding.cluster_http import create, in_time, leader_of, others, url, urls
from tests.cluster.local_cluster import SHORT_LEASE_MS, LocalCluster, local_cluster, until
from tests.in_loop import in_loop


async def watched(
    cluster: LocalCluster, node_id: int, count: int, from_: str = "earliest"
) -> list[int]:
    """Return the first values that a watcher of a node gets."""
    values: list[int] = []
    async with (
        AsyncClient(url(cluster, node_id)) as client,
        client.follow("t", from_=from_) as follower,
    ):
        async for record in follower:
            values.append(record.value)
            if len(values) == count:
                break
    return values


async def watched_by_socket(cluster: LocalCluster, node_id: int, count: int) -> list[int]:
    """Return the first values that a WebSocket of a node gets."""
    values: list[int] = []
    address = url(cluster, node_id).replace("http", "ws")
    async with connect(f"{address}/v1/ws") as socket:
        await socket.send(
            json.dumps({"op": "subscribe", "id": 1, "topics": ["t"], "from": "earliest"})
        )
        while len(values) < count:
            message = json.loads(await socket.recv())
            assert message["type"] not in ("error", "end"), message
            values += [row["value"] for row in message.get("records", ())]
    return values


@pytest.mark.parametrize("watch", [watched, watched_by_socket])
@in_loop
async def test_partitions_without_a_common_node_are_watched_through_each_node(
    tmp_path: Path, watch
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=1, partitions=3)
        assert len({leader_of(cluster, "t", index) for index in range(3)}) == 3
        async with AsyncClient(urls(cluster)) as client:
            for number in range(10):
                await client.append("t", number, partition=number % 3)
            watching = [
                asyncio.create_task(watch(cluster, node_id, 30)) for node_id in cluster.nodes
            ]
            for number in range(10, 30):
                await client.append("t", number, partition=number % 3)
        for values in await in_time(asyncio.gather(*watching)):
            assert sorted(values) == list(range(30))
            for index in range(3):
                own = [value for value in values if value % 3 == index]
                assert own == sorted(own), "records of a partition keep their order"


@pytest.mark.parametrize("factor", [1, 2, 3])
@in_loop
async def test_a_watcher_from_the_end_gets_what_is_appended_later_and_nothing_else(
    tmp_path: Path, factor: int
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=factor, partitions=3)
        async with AsyncClient(urls(cluster)) as client:
            for number, node_id in enumerate([*cluster.nodes] * 2):
                for index in range(3):
                    await client.append("t", -1, partition=index)
                watcher = AsyncClient(url(cluster, node_id))
                async with watcher, watcher.follow("t") as follower:
                    first = asyncio.create_task(anext(aiter(follower)))
                    live = cluster.nodes[node_id]._info
                    assert live is not None
                    await until(lambda live=live: bool(live._live.subscribers))
                    subscriber = live._live.subscribers[0]
                    await until(lambda subscriber=subscriber: len(subscriber.subscriptions) == 3)
                    await client.append("t", number, partition=number % 3)
                    assert (await in_time(first)).value == number
                await until(lambda live=live: not live._live.subscribers)


@in_loop
async def test_watchers_of_a_node_without_a_replica_go_on_with_the_next_leader(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=2, min_insync_replicas="1")
        old = leader_of(cluster, "t")
        replicas = cluster.nodes[1].broker.cluster.placement("t", 0).replicas
        [without] = others(cluster, *replicas)
        [new] = [node_id for node_id in replicas if node_id != old]
        watching = asyncio.create_task(watched(cluster, without, 20))
        async with AsyncClient(urls(cluster, first=new)) as client:
            for number in range(10):
                await client.append("t", number)
            cluster.isolate(old)
            await until(lambda: cluster.leader_of("t") == new)
            for number in range(10, 20):
                await client.append("t", number)
        assert await in_time(watching) == list(range(20))
        cluster.heal(old)


@pytest.mark.parametrize("error", [UnknownTopicId("not heard of yet"), KeyError("a bug")])
@in_loop
async def test_a_watcher_of_a_remote_partition_gets_records_after_its_leader_could_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    monkeypatch.setattr(remote_partition, "FAILED_SECONDS", 0.05)
    call, failures = RemotePartition.call, 0

    async def fail_once(partition: RemotePartition, request: Any, **options: Any) -> Any:
        nonlocal failures
        if isinstance(request, FetchBatchesRequest) and request.wait_ms_max and not failures:
            failures += 1
            raise error
        return await call(partition, request, **options)

    monkeypatch.setattr(RemotePartition, "call", fail_once)
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=1)
        [other, _] = others(cluster, leader_of(cluster, "t"))
        watching = asyncio.create_task(watched(cluster, other, 1))
        await until(lambda: failures == 1)
        async with AsyncClient(urls(cluster)) as client:
            await client.append("t", 7)
        assert await in_time(watching) == [7]
