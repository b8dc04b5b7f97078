"""Reads over HTTP through nodes with and without a replica."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from millstream import AsyncClient
from tests.cluster.forwarding.cluster_http import (
    create,
    error_code,
    forwards,
    hold_fetches,
    in_time,
    leader_of,
    others,
    send,
    url,
    urls,
)
from tests.cluster.local_cluster import SHORT_LEASE_MS, LocalCluster, local_cluster, submit, until
from tests.in_loop import in_loop

RECORDS = "/v1/topics/t/records"


@pytest.mark.parametrize("factor", [1, 2, 3])
@in_loop
async def test_records_can_be_read_through_each_node(tmp_path: Path, factor: int):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=factor)
        await submit(cluster.partition(leader_of(cluster, "t"), "t"), "1", "2")
        replicas = cluster.nodes[1].broker.cluster.placement("t", 0).replicas
        for node_id in cluster.nodes:
            answer = await send(cluster, node_id, "GET", f"{RECORDS}?from=2&wait_ms=1")
            assert answer.status == 200, answer.body
            answer = await send(cluster, node_id, "GET", RECORDS)
            assert [row["value"] for row in json.loads(answer.body)["records"]] == [1, 2]
            is_forwarded = forwards(cluster, node_id).outcomes["request", "answered"] > 0
            assert is_forwarded == (node_id not in replicas)


@in_loop
async def test_a_replica_that_is_behind_says_where_it_is(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        await submit(cluster.partition(leader, "t"), "1")
        [follower, _] = others(cluster, leader)
        await until(lambda: cluster.partition(follower, "t").high_watermark == 1)
        answer = await send(cluster, follower, "GET", f"{RECORDS}?from=5")
        assert (answer.status, error_code(answer)) == (409, "behind")
        assert json.loads(answer.body)["error"]["detail"] == {"end": 1}
        answer = await send(cluster, leader, "GET", f"{RECORDS}?from=5")
        assert (answer.status, error_code(answer)) == (416, "offset_out_of_range")


@in_loop
async def test_a_long_poll_at_a_follower_returns_when_records_are_committed(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        polls = [
            asyncio.create_task(send(cluster, node_id, "GET", f"{RECORDS}?from=0&wait_ms=30000"))
            for node_id in cluster.nodes
        ]
        await asyncio.sleep(0)
        await submit(cluster.partition(leader, "t"), "1")
        for answer in await in_time(asyncio.gather(*polls)):
            assert [row["value"] for row in json.loads(answer.body)["records"]] == [1]


@in_loop
async def test_an_uncommitted_record_is_shown_by_no_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        hold_fetches(cluster, leader)
        waiting = submit(cluster.partition(leader, "t"), "1")
        await until(lambda: cluster.partition(leader, "t").log.replication.durable_offset == 1)
        for node_id in cluster.nodes:
            answer = await send(cluster, node_id, "GET", RECORDS)
            assert json.loads(answer.body)["records"] == []
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.parametrize("factor", [1, 2, 3])
@in_loop
async def test_watchers_of_each_node_get_every_record_once(tmp_path: Path, factor: int):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=factor)
        partition = cluster.partition(leader_of(cluster, "t"), "t")

        async def watch(node_id: int) -> list[int]:
            async with AsyncClient(url(cluster, node_id)) as client:
                values: list[int] = []
                async with client.follow("t", from_="earliest") as follower:
                    async for record in follower:
                        values.append(record.value)
                        if len(values) == 20:
                            return values
            return values

        watching = [asyncio.create_task(watch(node_id)) for node_id in cluster.nodes]
        for number in range(20):
            await submit(partition, str(number))
        assert await in_time(asyncio.gather(*watching)) == [list(range(20))] * 3


@in_loop
async def test_watchers_go_on_when_the_leader_is_isolated_and_replaced(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=2, min_insync_replicas="1")
        old = leader_of(cluster, "t")
        replicas = cluster.nodes[1].broker.cluster.placement("t", 0).replicas
        [without] = [node_id for node_id in cluster.nodes if node_id not in replicas]

        async def watch(first: int) -> list[int]:
            # Not those of the isolated node: it shows what it has, for as long as it is alone.
            reachable = [url(cluster, node_id) for node_id in others(cluster, old)]
            reachable.sort(key=url(cluster, first).__ne__)
            async with AsyncClient(reachable) as client:
                values: list[int] = []
                async with client.follow("t", from_="earliest") as follower:
                    async for record in follower:
                        values.append(record.value)
                        if len(values) == 20:
                            return values
            return values

        watching = [asyncio.create_task(watch(first)) for first in others(cluster, old)]
        async with AsyncClient(urls(cluster, first=without)) as client:
            for number in range(10):
                await client.append("t", number)
            cluster.isolate(old)
            for number in range(10, 20):
                await client.append("t", number)
        assert await in_time(asyncio.gather(*watching)) == [list(range(20))] * 2
        cluster.heal(old)


def are_at(cluster: LocalCluster, head: int) -> bool:
    """Return whether all replicas of `t` have this high watermark and have applied deletions.

    A replica applies a deletion after its high watermark has passed it: until then a reader there
    sees the records.
    """
    partitions = [
        cluster.partition(node_id, "t", index) for node_id in cluster.nodes for index in range(3)
    ]
    return all(
        item.high_watermark == head and item.log.replication.decisions.pending_count == 0
        for item in partitions
        if item.is_open
    )


@pytest.mark.parametrize("factor", [1, 3])
@in_loop
async def test_topics_are_described_and_records_deleted_through_each_node(
    tmp_path: Path, factor: int
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=factor, partitions=3)
        async with AsyncClient(urls(cluster)) as client:
            for round_number, node_id in enumerate(cluster.nodes):
                for index in range(3):
                    await client.append("t", 1, key="k", partition=index)
                head = 2 * round_number + 1  # A deletion takes an offset too.
                await until(partial(are_at, cluster, head))
                answer = await send(cluster, node_id, "GET", "/v1/topics/t")
                heads = [row["head"] for row in json.loads(answer.body)["partitions"]]
                assert heads == [head] * 3
                answer = await send(cluster, node_id, "DELETE", RECORDS, {"key": "k"})
                assert json.loads(answer.body) == {"deleted": 3}, answer.body
                await until(partial(are_at, cluster, head + 1))
                assert [record.value async for record in client.read("t")] == []
