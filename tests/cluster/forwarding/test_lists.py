"""Lists of groups, queues, readers and pipelines show the whole cluster at each node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millstream import AsyncClient
from millstream.broker.state.internal_partitions import GROUPS, InternalPartition
from millstream.broker.transactions.publication import PublicationProposal
from millstream.errors import CoordinatorLoading, Unavailable
from tests.cluster.forwarding.cluster_http import (
    create,
    in_time,
    leader_of,
    others,
    send,
    url,
    urls,
)
from tests.cluster.local_cluster import SHORT_LEASE_MS, LocalCluster, local_cluster, submit, until
from tests.in_loop import in_loop

NAMES = [f"g{number:02d}" for number in range(24)]


async def listed(cluster: LocalCluster, node_id: int, path: str) -> dict[str, Any]:
    answer = await send(cluster, node_id, "GET", path)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def commit(cluster: LocalCluster, group: str, topic: str, offset: int) -> None:
    """Commit an offset, as soon as the coordinator of the group has loaded its state."""
    body = {"topic": topic, "to": offset}
    async with asyncio.timeout(30):
        while True:
            answer = await send(cluster, 1, "PUT", f"/v1/groups/{group}/offsets", body)
            if answer.status == 200:
                return
            assert answer.status == 503, answer.body
            await asyncio.sleep(0.1)


@in_loop
async def test_groups_and_readers_of_all_coordinators_are_listed_by_each_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=1)
        await submit(cluster.partition(leader_of(cluster, "t"), "t"), "1", "2", "3")
        for name in NAMES:
            await commit(cluster, name, "t", 1)
        for node_id in cluster.nodes:
            page = await listed(cluster, node_id, "/v1/groups")
            assert [group["group"] for group in page["groups"]] == NAMES
            assert {group["lag"] for group in page["groups"]} == {2}
            names: list[str] = []
            after = ""
            while True:
                page = await listed(cluster, node_id, f"/v1/groups?limit=5{after}")
                names += [group["group"] for group in page["groups"]]
                if page["next"] is None:
                    break
                after = f"&after={page['next']}"
            assert names == NAMES
            readers = await listed(cluster, node_id, "/v1/topics/t/readers?limit=100")
            assert [group["group"] for group in readers["groups"]] == NAMES


@in_loop
async def test_a_list_of_groups_is_refused_if_a_coordinator_does_not_answer(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        for name in NAMES[:8]:
            await commit(cluster, name, "t", 0)
        cluster.isolate(3)
        [left, _] = others(cluster, 3)
        answer = await send(cluster, left, "GET", "/v1/groups")
        if answer.status == 503:
            assert b"the list would not be complete" in answer.body
        else:  # Another node coordinates its groups by now.
            names = [group["group"] for group in json.loads(answer.body)["groups"]]
            assert names == NAMES[:8]
        cluster.heal(3)


@in_loop
async def test_a_list_is_refused_while_a_coordinator_has_not_loaded_its_state(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        for name in NAMES[:4]:
            await commit(cluster, name, "t", 0)
        partitions = cluster.member(1).partitions
        leaders = {partitions.leader_of(InternalPartition(GROUPS, n)) for n in range(16)}
        [loading, *_] = leaders
        coordinators = cluster.nodes[loading].broker.groups.coordinators
        check_loaded = coordinators.check_loaded

        def refuse(indexes: Iterable[int]) -> None:
            raise CoordinatorLoading(f"groups {list(indexes)} are being loaded")

        coordinators.check_loaded = refuse  # type: ignore[method-assign]
        for node_id in cluster.nodes:
            answer = await send(cluster, node_id, "GET", "/v1/groups")
            assert answer.status == 503
            assert f"node {loading} cannot answer".encode() in answer.body
        coordinators.check_loaded = check_loaded  # type: ignore[method-assign]
        for node_id in cluster.nodes:
            assert len((await listed(cluster, node_id, "/v1/groups"))["groups"]) == 4


@in_loop
async def test_queues_of_all_coordinators_are_listed_by_each_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        names = [f"q{number}" for number in range(6)]
        async with AsyncClient(urls(cluster)) as client:
            for name in names:
                await create(cluster, name, factor=1)
                await client.create_queue(name)
                await client.append(name, 1)
        for node_id in cluster.nodes:
            page = await listed(cluster, node_id, "/v1/queues")
            assert [(queue["name"], queue["ready"]) for queue in page["queues"]] == [
                (name, 1) for name in names
            ]
            async with AsyncClient(url(cluster, node_id)) as client:
                assert [queue.name for queue in await in_time(client.queues())] == names


async def publish(cluster: LocalCluster, name: str) -> None:
    """Publish at the coordinator of a publisher."""

    def coordinates(node_id: int) -> bool:
        try:
            cluster.nodes[node_id].broker.transactions.of(name)
        except Unavailable:
            return False
        return True

    await until(lambda: any(map(coordinates, cluster.nodes)))
    [node_id] = filter(coordinates, cluster.nodes)
    proposal = PublicationProposal(publisher=name, sequence=0, client_id="")
    await cluster.nodes[node_id].broker.transactions.publish(proposal)


@in_loop
async def test_pipelines_of_all_coordinators_are_listed_by_each_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        names = [f"spark-query/p{number}" for number in range(12)]
        for name in names:
            await publish(cluster, name)
        for node_id in cluster.nodes:
            for limit in (1, 5, 100):
                found: list[str] = []
                after = ""
                while True:
                    path = f"/v1/pipelines?limit={limit}&after={after}"
                    page = await listed(cluster, node_id, path)
                    found += [row["publisher"] for row in page["pipelines"]]
                    if page["next"] is None:
                        break
                    after = page["next"]
                assert sorted(found) == sorted(names)
            answer = await send(cluster, node_id, "GET", "/v1/pipelines?after=1:x")
            assert answer.status == 400
