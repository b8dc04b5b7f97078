"""Queues whose coordinator has no replica of some partitions of their topic."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from millstream import AsyncClient
from millstream.broker.queues.queues import log_name
from millstream.broker.state.internal_partitions import InternalPartition
from millstream.cluster.reading.partition_anywhere import PartitionAnywhere
from millstream.errors import MillstreamError
from tests.cluster.forwarding.cluster_http import (
    create,
    error_code,
    in_time,
    leader_of,
    others,
    send,
    url,
    urls,
)
from tests.cluster.local_cluster import SHORT_LEASE_MS, LocalCluster, local_cluster, until
from tests.in_loop import in_loop

QUEUE = "/v1/queues/jobs"


async def described(cluster: LocalCluster, node_id: int) -> dict[str, Any]:
    """Return the counts of the queue, once a node can tell them."""
    for _ in range(300):
        answer = await send(cluster, node_id, "GET", QUEUE)
        if answer.status == 200:
            counts: dict[str, Any] = json.loads(answer.body)
            return counts
        assert answer.status == 503, answer.body
        await asyncio.sleep(0.1)
    raise AssertionError(answer.body)


def coordinator_of(cluster: LocalCluster, node_id: int) -> int:
    """Return the coordinator of the queue as a node knows it; -1 if there is none."""
    topic = cluster.nodes[node_id].broker.topics.get("jobs")
    partitions = cluster.member(node_id).partitions
    return partitions.leader_of(InternalPartition(log_name(topic.id)))


class Work:
    """Workers at all nodes, and what they were told."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.acked: Counter[int] = Counter()
        """How often the ack of a job succeeded at first."""
        self.unknown: set[int] = set()
        """Jobs of which an ack failed."""
        self.is_over = False

    async def work(self, first: int) -> None:
        async with AsyncClient(urls(self.cluster, first=first)) as client:
            queue = client.queue("jobs")
            while not self.is_over:
                try:
                    jobs = await queue.claim(3, wait_ms=300, lease_ms=4_000)
                except MillstreamError:
                    await asyncio.sleep(0.05)
                    continue
                for job in jobs:
                    try:
                        await queue.ack([job])
                    except MillstreamError:
                        self.unknown.add(job.value)
                    else:
                        self.acked[job.value] += 1


@contextlib.asynccontextmanager
async def workers(cluster: LocalCluster) -> AsyncIterator[Work]:
    work = Work(cluster)
    tasks = [asyncio.create_task(work.work(node_id)) for node_id in cluster.nodes]
    try:
        yield work
    finally:
        work.is_over = True
        await in_time(asyncio.gather(*tasks))


async def append(client: AsyncClient, first: int, end: int) -> None:
    for number in range(first, end):
        await client.append("jobs", number, partition=number % 3)


async def until_finished(cluster: LocalCluster, node_id: int, count: int) -> dict[str, Any]:
    for _ in range(600):
        counts = await described(cluster, node_id)
        waiting = counts["ready"] + counts["leased"] + counts["delayed"]
        assert counts["acked"] + counts["dead"] + waiting == count, counts
        if not waiting:
            return counts
        await asyncio.sleep(0.05)
    raise AssertionError(counts)


@in_loop
async def test_a_queue_works_with_one_replica_of_each_partition(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "jobs", factor=1, partitions=3)
        assert len({leader_of(cluster, "jobs", index) for index in range(3)}) == 3
        async with AsyncClient(urls(cluster)) as client:
            await client.create_queue("jobs")
            await append(client, 0, 30)
            for node_id in cluster.nodes:
                assert (await described(cluster, node_id))["ready"] == 30
            async with workers(cluster) as work:
                await append(client, 30, 60)
                counts = await until_finished(cluster, 1, 60)
        assert work.acked == dict.fromkeys(range(60), 1)
        assert (counts["acked"], counts["delivered"]) == (60, 60)


@in_loop
async def test_a_claim_that_does_not_wait_gets_the_job_of_another_partitions_leader(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "jobs", factor=1, partitions=3)
        async with AsyncClient(urls(cluster)) as client:
            await client.create_queue("jobs")
            await described(cluster, 1)
            broker = cluster.nodes[coordinator_of(cluster, 1)].broker
            for partition in broker.topics.get("jobs").partitions:
                assert isinstance(partition.anywhere, PartitionAnywhere)
                if (following := partition.anywhere.remote._following) is not None:
                    following.cancel()  # News of other nodes do not arrive by themselves.
            for number in range(12):
                await client.append("jobs", number, partition=number % 3)
                node_id = 1 + number % 2
                async with AsyncClient(url(cluster, node_id)) as worker:
                    [job] = await worker.queue("jobs").claim(1)
                    assert job.value == number
                    await worker.queue("jobs").ack([job])


@in_loop
async def test_jobs_survive_the_loss_of_their_coordinator_and_of_leaders(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "jobs", factor=2, partitions=3, min_insync_replicas="1")
        async with AsyncClient(urls(cluster)) as client:
            await client.create_queue("jobs")
            await append(client, 0, 15)
            async with workers(cluster) as work:
                await until(lambda: len(work.acked) >= 5)
                lost = coordinator_of(cluster, 1)
                [other, _] = others(cluster, lost)
                cluster.isolate(lost)
                await until(lambda: coordinator_of(cluster, other) not in (lost, -1))
                await append(client, 15, 30)
                cluster.heal(lost)
                await until(lambda: len(work.acked.keys() | work.unknown) == 30)
                counts = await until_finished(cluster, other, 30)
        # An ack that was answered counts once; a job whose ack failed may have been finished.
        assert counts["acked"] == 30
        assert all(times == 1 for job, times in work.acked.items() if job not in work.unknown)


@in_loop
async def test_dead_letters_are_moved_and_redriven_wherever_their_topic_is(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "jobs", factor=1, partitions=3)
        await create(cluster, "jobs-dead", factor=1, partitions=3)
        body = {"deliveries_max": 1, "dead_letter": "jobs-dead"}
        assert (await send(cluster, 1, "PUT", QUEUE, body)).status in (200, 201)
        async with AsyncClient(urls(cluster)) as client:
            await append(client, 0, 9)
            queue = client.queue("jobs")
            taken = 0
            while taken < 9:
                for job in await in_time(queue.claim(9, wait_ms=1_000)):
                    taken += 1
                    await queue.nack([job])
            for node_id in cluster.nodes:
                while (counts := await described(cluster, node_id))["dead"] < 9:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert counts["ready"] == counts["leased"] == 0
                answer = await send(cluster, node_id, "GET", f"{QUEUE}/dead_letters")
                letters = json.loads(answer.body)["letters"]
                assert sorted(letter["value"] for letter in letters) == list(range(9))
            answer = await send(cluster, 2, "POST", f"{QUEUE}/redrive", {})
            assert answer.status == 200, (answer.body, error_code(answer))
            assert json.loads(answer.body) == {"moved": 9, "remaining": 0}
            jobs: list[int] = []
            while len(jobs) < 9:
                for job in await in_time(queue.claim(9, wait_ms=1_000)):
                    jobs.append(job.value)
                    await queue.ack([job])
            assert sorted(jobs) == list(range(9))
