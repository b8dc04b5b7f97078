"""Queues, streams and groups through nodes that do not coordinate them."""

from __future__ import annotations

import json
from pathlib import Path

from millstream import AsyncClient
from millstream.clients.http.core.requests import Idempotency, Request
from millstream.clients.http.core.steps import send_with_retries
from tests.cluster.forwarding.cluster_http import (
    create,
    forwards,
    in_time,
    others,
    send,
    url,
    urls,
)
from tests.cluster.local_cluster import local_cluster
from tests.in_loop import in_loop


@in_loop
async def test_jobs_are_claimed_and_acknowledged_through_each_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "jobs", factor=3)
        async with AsyncClient(urls(cluster)) as client:
            await client.create_queue("jobs")
            for number in range(6):
                await client.append("jobs", number)
        done = []
        for _ in range(2):
            for node_id in cluster.nodes:
                async with AsyncClient(url(cluster, node_id)) as client:
                    [job] = await in_time(client.queue("jobs").claim(1, wait_ms=20_000))
                    done.append(job.value)
                other = others(cluster, node_id)[0]
                body = {"receipts": [job.receipt]}
                answer = await send(cluster, other, "POST", "/v1/queues/jobs/ack", body)
                assert answer.status == 200, answer.body
        assert sorted(done) == list(range(6))
        for node_id in cluster.nodes:
            answer = await send(cluster, node_id, "GET", "/v1/queues/jobs")
            counts = json.loads(answer.body)
            assert (answer.status, counts["ready"], counts["leased"]) == (200, 0, 0)
        counters = [forwards(cluster, node_id) for node_id in cluster.nodes]
        assert sum(item.outcomes["request", "answered"] > 0 for item in counters) == 2


@in_loop
async def test_work_is_pushed_through_each_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "jobs", factor=3)
        async with AsyncClient(urls(cluster)) as client:
            await client.create_queue("jobs")
            for node_id in cluster.nodes:
                await client.append("jobs", node_id)
                async with AsyncClient(url(cluster, node_id)) as worker:
                    pool = worker.connections(worker.address)
                    request = Request("GET", "/v1/queues/jobs/work?max=1&lease_ms=60000")
                    stream = await pool.stream(request)
                    data = b""
                    while b"event: jobs" not in data or not data.endswith(b"\n\n"):
                        data += await in_time(stream.receive(30))
                    stream.close()
                [line] = [row for row in data.split(b"\n") if row.startswith(b'data: {"jobs"')]
                [job] = json.loads(line.removeprefix(b"data: "))["jobs"]
                assert job["value"] == node_id


@in_loop
async def test_streams_are_created_and_described_through_each_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        statuses = []
        for node_id in cluster.nodes:
            async with AsyncClient(url(cluster, node_id)) as client:
                headers = (("content-type", "text/plain"),)
                request = Request("PUT", "/v1/streams/a/b", Idempotency.SAME, b"", headers)
                answer = await client.run(send_with_retries(client.context, request))
                statuses.append(answer.status)
                request = Request("GET", "/v1/streams/a/b")
                answer = await client.run(send_with_retries(client.context, request))
                assert (answer.status, answer.body) == (200, b"")
                assert answer.headers["content-type"] == "text/plain"
        assert statuses == [201, 200, 200]
