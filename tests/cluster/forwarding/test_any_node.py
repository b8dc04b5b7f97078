"""Every operation of the HTTP API, at every node: those without a replica, and all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from websockets.asyncio.client import connect

from millstream import AsyncClient
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import Idempotency, Request
from millstream.clients.http.core.responses import ClientResponse
from millstream.servers.http.app import OPERATIONS
from tests.cluster.forwarding.cluster_http import create, in_time, leader_of, send, url, urls
from tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.in_loop import in_loop

OF_THE_NODE = "of the node"
"""What such an operation tells is about the node itself."""


class Call(NamedTuple):
    """How an operation is called; `{n}` is replaced by the number of the node."""

    path: str
    body: Any = None
    statuses: tuple[int, ...] = (200,)
    is_same: bool = False
    """Whether the answers of all nodes are equal."""


CALLS: dict[tuple[str, str], Call | str] = {
    ("GET", "/v1/topics"): Call("/v1/topics", is_same=True),
    ("PUT", "/v1/topics/{topic}"): Call("/v1/topics/new{n}", {"partitions": 2}, (201,)),
    ("GET", "/v1/topics/{topic}"): Call("/v1/topics/t", is_same=True),
    ("GET", "/v1/topics/{topic}/partitions/{partition}"): Call(
        "/v1/topics/t/partitions/1", is_same=True
    ),
    ("GET", "/v1/topics/{topic}/segments"): Call("/v1/topics/t/segments", is_same=True),
    ("GET", "/v1/topics/{topic}/configs"): Call("/v1/topics/t/configs", is_same=True),
    ("GET", "/v1/topics/{topic}/readers"): Call("/v1/topics/t/readers", is_same=True),
    ("GET", "/v1/topics/{topic}/search"): Call("/v1/topics/t/search?key=k1", is_same=True),
    ("POST", "/v1/topics/{topic}/records"): Call(
        "/v1/topics/written/records", {"records": [{"value": 1, "partition": 1}]}, (201,)
    ),
    ("GET", "/v1/topics/{topic}/records"): Call("/v1/topics/t/records?partition=2", is_same=True),
    ("DELETE", "/v1/topics/{topic}/records"): Call(
        "/v1/topics/written/records", {"before": 1, "partition": 0}
    ),
    ("POST", "/v1/producers"): Call("/v1/producers", None, (201,)),
    ("GET", "/v1/groups"): Call("/v1/groups", is_same=True),
    ("GET", "/v1/groups/{group:path}"): Call("/v1/groups/g", is_same=True),
    ("PUT", "/v1/groups/{group:path}/offsets"): Call(
        "/v1/groups/g{n}/offsets", {"topic": "t", "to": "latest"}
    ),
    ("DELETE", "/v1/groups/{group:path}"): Call("/v1/groups/g{n}", None, (204,)),
    ("GET", "/v1/transactions"): Call("/v1/transactions", is_same=True),
    ("GET", "/v1/transactions/{transaction:path}"): Call("/v1/transactions/none", None, (404,)),
    ("POST", "/v1/transactions/{transaction:path}/abort"): Call(
        "/v1/transactions/none/abort", None, (404,)
    ),
    ("PUT", "/v1/queues/{queue}"): Call("/v1/queues/q{n}", {"lease_ms": 60_000}, (200, 201)),
    ("GET", "/v1/queues"): Call("/v1/queues", is_same=True),
    ("GET", "/v1/queues/{queue}"): Call("/v1/queues/q", is_same=True),
    ("GET", "/v1/queues/{queue}/jobs"): Call("/v1/queues/q/jobs", is_same=True),
    ("POST", "/v1/queues/{queue}/claim"): Call("/v1/queues/q{n}/claim", {"max": 1}),
    ("POST", "/v1/queues/{queue}/ack"): Call("/v1/queues/q/ack", {"receipts": ["x"]}, (409,)),
    ("POST", "/v1/queues/{queue}/nack"): Call("/v1/queues/q/nack", {"receipts": ["x"]}, (409,)),
    ("POST", "/v1/queues/{queue}/release"): Call(
        "/v1/queues/q/release", {"receipts": ["x"]}, (409,)
    ),
    ("POST", "/v1/queues/{queue}/extend"): Call("/v1/queues/q/extend", {"receipts": ["x"]}, (409,)),
    ("GET", "/v1/queues/{queue}/dead_letters"): Call("/v1/queues/q/dead_letters", is_same=True),
    ("POST", "/v1/queues/{queue}/redrive"): Call("/v1/queues/q/redrive", {}, is_same=True),
    ("DELETE", "/v1/queues/{queue}/dead_letters"): Call("/v1/queues/q/dead_letters", is_same=True),
    ("DELETE", "/v1/queues/{queue}"): Call("/v1/queues/q{n}", None, (204,)),
    ("PUT", "/v1/streams/{path:path}"): Call("/v1/streams/s{n}", None, (201,)),
    ("POST", "/v1/streams/{path:path}"): Call("/v1/streams/s{n}", "text", (204,)),
    ("GET", "/v1/streams/{path:path}"): Call("/v1/streams/s", is_same=True),
    ("HEAD", "/v1/streams/{path:path}"): Call("/v1/streams/s", is_same=True),
    ("OPTIONS", "/v1/streams/{path:path}"): Call("/v1/streams/s", None, (204,), is_same=True),
    ("DELETE", "/v1/streams/{path:path}"): Call("/v1/streams/s{n}", None, (204,)),
    ("GET", "/v1/pipelines"): Call("/v1/pipelines", is_same=True),
    ("DELETE", "/v1/topics/{topic}"): Call("/v1/topics/new{n}", None, (204,)),
    ("GET", "/v1/cluster"): Call("/v1/cluster"),
    ("GET", "/v1/cluster/partitions"): Call("/v1/cluster/partitions?topic=t"),
    ("POST", "/v1/cluster/rebalance"): Call("/v1/cluster/rebalance", {"dry_run": True}),
    ("GET", "/v1/quotas"): Call("/v1/quotas", is_same=True),
    ("PUT", "/v1/quotas"): Call(
        "/v1/quotas", {"client_id": "c{n}", "rates": {"request_percentage": 50.0}}
    ),
    ("GET", "/v1/node"): OF_THE_NODE,
    ("GET", "/v1/node/connections"): OF_THE_NODE,
    ("GET", "/v1/node/history"): OF_THE_NODE,
    ("GET", "/v1/cluster/replicas"): OF_THE_NODE,
    ("GET", "/v1/events"): "tests/cluster/forwarding/test_live_placement.py",
    ("GET", "/v1/ws"): "tests/cluster/forwarding/test_live_placement.py",
    ("GET", "/v1/queues/{queue}/work"): "tests/cluster/forwarding/test_coordinators.py",
    ("POST", "/v1/cluster/reassign"): "tests/cli/cluster/test_administration.py",
    ("POST", "/v1/cluster/elect"): "tests/cli/cluster/test_administration.py",
    ("DELETE", "/v1/cluster/nodes/{node}"): "tests/cli/cluster/test_administration.py",
    ("POST", "/v1/cluster/nodes/{node}/breaker"): "tests/cli/cluster/test_breaker.py",
    ("GET", "/v1/cluster/segments"): "tests/cli/cluster/test_verify_cluster.py",
    ("DELETE", "/v1/quotas"): "with PUT",
    ("GET", "/v1/access/whoami"): "tests/cluster/forwarding/test_access.py",
    ("GET", "/v1/access/acls"): "tests/servers/http/test_access_matrix.py",
    ("POST", "/v1/access/acls"): "tests/servers/http/test_access_matrix.py",
    ("DELETE", "/v1/access/acls"): "tests/servers/http/test_access_matrix.py",
    ("GET", "/v1/access/tokens"): "tests/servers/http/test_access_matrix.py",
    ("POST", "/v1/access/tokens"): "tests/cluster/forwarding/test_access.py",
    ("DELETE", "/v1/access/tokens/{token}"): "tests/cluster/forwarding/test_access.py",
    ("GET", "/v1/access/users"): "tests/servers/http/test_access_matrix.py",
    ("PUT", "/v1/access/users"): "tests/servers/http/test_access_matrix.py",
    ("DELETE", "/v1/access/users"): "tests/servers/http/test_access_matrix.py",
}
"""In an order in which they can be sent. Operations that are tested elsewhere name the place."""


def test_every_operation_is_called_or_says_why_not() -> None:
    assert set(CALLS) == {(operation.method, operation.path) for operation in OPERATIONS}


async def call(cluster: LocalCluster, node_id: int, method: str, each: Call) -> ClientResponse:
    """Send a request; a stream gets text, everything else JSON."""
    path = each.path.replace("{n}", str(node_id))
    headers: tuple[tuple[str, str], ...] = ()
    if each.body is None:
        data = b""
    else:
        text = each.body if isinstance(each.body, str) else json.dumps(each.body)
        data = text.replace("{n}", str(node_id)).encode()
    if path.startswith("/v1/streams/"):
        headers = (("content-type", "text/plain"),)
    config = ClientConfig(answer_s_max=60)
    async with AsyncClient(url(cluster, node_id), config=config) as client:
        request = Request(method, path, Idempotency.EACH, data, headers)
        return await client.connections(client.address).send(request, 60)


async def prepare(cluster: LocalCluster) -> None:
    await create(cluster, "t", factor=1, partitions=3)
    await create(cluster, "written", factor=1, partitions=3)
    await create(cluster, "q", factor=1, partitions=3)
    async with AsyncClient(urls(cluster)) as client:
        for number in range(9):
            await client.append("t", number, key=f"k{number}", partition=number % 3)
            await client.append("q", number, partition=number % 3)
            await client.append("written", number, partition=number % 3)
        await client.create_queue("q")
    answer = await send(cluster, 1, "PUT", "/v1/groups/g/offsets", {"topic": "t", "to": "earliest"})
    assert answer.status == 200, answer.body
    answer = await call(cluster, 1, "PUT", Call("/v1/streams/s"))
    assert answer.status == 201, answer.body
    answer = await call(cluster, 2, "POST", Call("/v1/streams/s", "a"))
    assert answer.status == 204, answer.body


def comparable(answer: ClientResponse) -> tuple[int, bytes, str]:
    return answer.status, answer.body, answer.headers.get("stream-next-offset", "")


@in_loop
async def test_each_operation_is_answered_by_each_node(tmp_path: Path):
    async with local_cluster(tmp_path, 4) as cluster:
        await prepare(cluster)
        assert len({leader_of(cluster, "t", index) for index in range(3)}) == 3
        for (method, _), each in CALLS.items():
            if isinstance(each, str):
                continue
            answers = {
                node_id: await call(cluster, node_id, method, each) for node_id in cluster.nodes
            }
            for node_id, answer in answers.items():
                assert answer.status in each.statuses, (method, each.path, node_id, answer.body)
            if each.is_same:
                assert len(set(map(comparable, answers.values()))) == 1, (method, each, answers)


@in_loop
async def test_what_was_written_through_one_node_is_there_at_every_other(tmp_path: Path):
    """A topic, a queue and records, used through another node without any pause."""
    async with local_cluster(tmp_path, 4) as cluster:
        ids = [*cluster.nodes]
        for number in range(8):
            first, second, third = (ids[(number + step) % 4] for step in range(3))
            topic = f"made{number}"
            answer = await send(cluster, first, "PUT", f"/v1/topics/{topic}", {"partitions": 2})
            assert answer.status == 201, answer.body
            body = {"records": [{"value": number, "partition": 1}]}
            answer = await send(cluster, second, "POST", f"/v1/topics/{topic}/records", body)
            assert answer.status == 201, answer.body
            for node_id in ids:
                path = f"/v1/topics/{topic}/records?partition=1"
                answer = await send(cluster, node_id, "GET", path)
                assert answer.status == 200, answer.body
                assert [row["value"] for row in json.loads(answer.body)["records"]] == [number]
                answer = await send(cluster, node_id, "GET", f"/v1/topics/{topic}")
                assert json.loads(answer.body)["partitions"][1]["head"] == 1
            answer = await send(cluster, second, "PUT", f"/v1/queues/{topic}")
            assert answer.status in (200, 201), answer.body
            answer = await send(cluster, third, "POST", f"/v1/queues/{topic}/claim", {"max": 5})
            assert answer.status == 200, answer.body
            assert [job["value"] for job in json.loads(answer.body)["jobs"]] == [number]


@in_loop
async def test_jobs_are_acknowledged_over_websockets_of_each_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "jobs", factor=1, partitions=3)
        async with AsyncClient(urls(cluster)) as client:
            await client.create_queue("jobs")
            for node_id in cluster.nodes:
                await client.append("jobs", node_id)
                [job] = await in_time(client.queue("jobs").claim(1, wait_ms=10_000))
                address = url(cluster, node_id).replace("http", "ws")
                async with connect(f"{address}/v1/ws") as socket:
                    message = {"op": "ack", "id": 1, "queue": "jobs", "receipts": [job.receipt]}
                    await socket.send(json.dumps(message))
                    answer = json.loads(await socket.recv())
                assert answer["type"] == "answer", answer
                assert answer["result"]["acked"] == 1
