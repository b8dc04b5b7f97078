"""HTTP requests to the nodes of a local cluster."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from millstream import AsyncClient
from millstream.broker.topics.topics import Replication
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import Idempotency, Request
from millstream.clients.http.core.responses import ClientResponse
from millstream.cluster.forwarding.counters import ForwardCounters
from millstream.protocols.peer.messages.peer_fetch import PeerFetchRequest
from tests.cluster.local_cluster import LocalCluster, until


def url(cluster: LocalCluster, node_id: int) -> str:
    return f"http://{cluster.nodes[node_id].http}"


def urls(cluster: LocalCluster, first: int | None = None) -> list[str]:
    """Return the addresses of all nodes, beginning with one of them."""
    ids = sorted(cluster.nodes, key=lambda node_id: node_id != first)
    return [url(cluster, node_id) for node_id in ids]


def leader_of(cluster: LocalCluster, topic: str, index: int = 0) -> int:
    leader = cluster.leader_of(topic, index)
    assert leader is not None
    return leader


def others(cluster: LocalCluster, *node_ids: int) -> list[int]:
    return [node_id for node_id in cluster.nodes if node_id not in node_ids]


def forwards(cluster: LocalCluster, node_id: int) -> ForwardCounters:
    node = cluster.nodes[node_id]._cluster
    assert node is not None
    return node.forwards


def hold_fetches(cluster: LocalCluster, leader: int) -> None:
    """Let a node answer no more fetches of its followers: nothing more is committed there."""

    async def never(_request: object, _context: object) -> None:
        await asyncio.Event().wait()

    node = cluster.nodes[leader]._cluster
    assert node is not None
    node.listener.serve(PeerFetchRequest, never)


async def create(
    cluster: LocalCluster, topic: str, *, factor: int, partitions: int = 1, **configs: str
) -> None:
    """Create a topic whose partitions are spread over the nodes."""
    ids = sorted(cluster.nodes)
    assignments = tuple(
        tuple(ids[(index + replica) % len(ids)] for replica in range(factor))
        for index in range(partitions)
    )
    node = next(iter(cluster.nodes.values()))
    await node.broker.topics.create(
        topic,
        partitions=partitions,
        replication=Replication(
            assignments=assignments if partitions > 1 else None,
            factor=None if partitions > 1 else factor,
        ),
        configs={name.replace("_", "."): value for name, value in configs.items()},
    )
    await until(
        lambda: (
            all(cluster.leader_of(topic, index) is not None for index in range(partitions))
            and all(node.broker.topics.find(topic) is not None for node in cluster.nodes.values())
        )
    )


async def send(
    cluster: LocalCluster, node_id: int, method: str, path: str, body: Any = None
) -> ClientResponse:
    """Send one request to a node, without retries."""
    data = b"" if body is None else json.dumps(body).encode()
    config = ClientConfig(answer_s_max=40)
    async with AsyncClient(url(cluster, node_id), config=config) as client:
        request = Request(method, path, Idempotency.EACH, data)
        return await client.connections(client.address).send(request, 40)


def error_code(answer: ClientResponse) -> str:
    code: str = json.loads(answer.body)["error"]["code"]
    return code


async def in_time(awaitable: Any) -> Any:
    """Await something that has to happen."""
    return await asyncio.wait_for(awaitable, 30)
