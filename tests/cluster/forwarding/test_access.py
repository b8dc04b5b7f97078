"""Rights in a cluster.

A request is checked by the node that has the client, and again by the node that answers it, which
is told who the caller is. No node is told the secret of a token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from millstream.broker.access.acls import Acl, Permission, ResourcePattern
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import user
from millstream.broker.access.resources import Operation, PatternType, ResourceType
from millstream.config.schema import AccessConfig
from millstream.protocols.peer.messages.forward import ForwardRequest
from millstream.servers.http.forwarding import forwarded_requests
from tests.cluster.forwarding.cluster_http import create, leader_of, url
from tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.in_loop import in_loop

ROOT = Caller(user("root"), "127.0.0.1")
ACCESS = AccessConfig(enabled=True, super_users=("root",))
NAME = "orders"


async def ask(
    cluster: LocalCluster, node_id: int, token: str | None, method: str, path: str, body: Any = None
) -> httpx.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url(cluster, node_id), timeout=40) as client:
        return await client.request(method, path, json=body, headers=headers)


async def give(cluster: LocalCluster, *rights: tuple[ResourceType, Operation]) -> str:
    """Return a token of alice, who has these rights; made at the first node."""
    access = cluster.nodes[1].broker.access
    assert access is not None
    for kind, operation in rights:
        # By prefix, so that the dead letters of a queue belong to it.
        pattern = ResourcePattern(kind, NAME, PatternType.PREFIXED)
        acl = Acl(pattern, user("alice"), "*", operation, Permission.ALLOW)
        await access.create_acl(acl, by=ROOT)
    _, text = await access.create_token(user("alice"), by=ROOT)
    return text


@in_loop
async def test_a_caller_has_the_same_rights_at_every_node(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, access=ACCESS) as cluster:
        await create(cluster, NAME, factor=1)
        await create(cluster, "payroll", factor=1)
        token = await give(cluster, (ResourceType.TOPIC, Operation.WRITE))
        body = {"records": [{"value": 1}]}
        for node_id in cluster.nodes:
            who = await ask(cluster, node_id, token, "GET", "/v1/access/whoami")
            assert who.json()["principal"] == "User:alice"
            path = f"/v1/topics/{NAME}/records"
            assert (await ask(cluster, node_id, token, "POST", path, body)).status_code == 201
            assert (await ask(cluster, node_id, token, "GET", path)).status_code == 403
            assert (await ask(cluster, node_id, None, "POST", path, body)).status_code == 401
            other = "/v1/topics/payroll/records"
            assert (await ask(cluster, node_id, token, "POST", other, body)).status_code == 404
            listed = (await ask(cluster, node_id, token, "GET", "/v1/topics")).json()
            assert [topic["name"] for topic in listed["topics"]] == [NAME]
        access = cluster.nodes[1].broker.access
        assert access is not None
        await access.revoke_token(token.split("_")[1], by=ROOT)
        for node_id in cluster.nodes:
            who = await ask(cluster, node_id, token, "GET", "/v1/access/whoami")
            assert who.status_code == 401


@in_loop
async def test_a_forwarded_request_names_its_caller_and_not_its_secret(
    tmp_path: Path, monkeypatch: Any
) -> None:
    seen: list[ForwardRequest] = []
    make_scope = forwarded_requests.forwarded_scope

    def record(request: ForwardRequest, context: Any) -> Any:
        seen.append(request)
        return make_scope(request, context)

    monkeypatch.setattr(forwarded_requests, "forwarded_scope", record)
    async with local_cluster(tmp_path, access=ACCESS) as cluster:
        await create(cluster, NAME, factor=1)
        token = await give(
            cluster,
            (ResourceType.GROUP, Operation.ALTER_CONFIGS),
            (ResourceType.GROUP, Operation.DESCRIBE),
            (ResourceType.TOPIC, Operation.READ),
            (ResourceType.TOPIC, Operation.WRITE),
            (ResourceType.TOPIC, Operation.CREATE),
        )
        for node_id in cluster.nodes:
            path = f"/v1/queues/{NAME}"
            answer = await ask(cluster, node_id, token, "PUT", path, {"lease_ms": 5000})
            assert answer.status_code in (200, 201), answer.text
            assert (await ask(cluster, node_id, token, "GET", path)).status_code == 200
            claim = await ask(cluster, node_id, token, "POST", f"{path}/claim", {"max": 1})
            assert claim.status_code == 403
            listed = (await ask(cluster, node_id, token, "GET", "/v1/queues")).json()
            assert [queue["name"] for queue in listed["queues"]] == [NAME]
    assert seen, "some requests were for another node"
    for request in seen:
        assert request.principal == "User:alice"
        assert request.token_id == token.split("_")[1]
        assert token not in repr(request)
        assert b"authorization" not in {bytes(header.name).lower() for header in request.headers}


@in_loop
async def test_the_node_that_answers_checks_the_caller_too(tmp_path: Path) -> None:
    """A forwarded request of a caller without rights is refused, whatever the first node said."""
    async with local_cluster(tmp_path, access=ACCESS) as cluster:
        await create(cluster, NAME, factor=1)
        token = await give(cluster, (ResourceType.GROUP, Operation.DESCRIBE))
        root = cluster.nodes[1].broker.access
        assert root is not None
        _, admin = await root.create_token(user("root"), by=ROOT)
        made = await ask(cluster, 1, admin, "PUT", f"/v1/queues/{NAME}", {})
        assert made.status_code in (200, 201), made.text
        trusting = []
        for node in cluster.nodes.values():
            access = node.broker.access
            assert access is not None
            coordinator = node.broker.queues.coordinators().get(NAME)
            if coordinator != node.broker.node_id:
                access.check = lambda *_: True  # type: ignore[method-assign]
                trusting.append(node.broker.node_id)
        assert trusting
        for node_id in trusting:
            path = f"/v1/queues/{NAME}/claim"
            answer = await ask(cluster, node_id, token, "POST", path, {"max": 1})
            assert answer.status_code == 403, answer.text


@in_loop
async def test_the_leader_checks_the_caller_of_a_forwarded_batch_too(tmp_path: Path) -> None:
    """Records, streams and WebSockets, whatever the first node said."""
    async with local_cluster(tmp_path, access=ACCESS) as cluster:
        await create(cluster, NAME, factor=1)
        token = await give(cluster, (ResourceType.TOPIC, Operation.READ))
        writer = await token_of(cluster, "writer", Operation.WRITE)
        leader = leader_of(cluster, NAME)
        others = [node_id for node_id in cluster.nodes if node_id != leader]
        for node_id in others:
            access = cluster.nodes[node_id].broker.access
            assert access is not None
            access.check = lambda *_: True  # type: ignore[method-assign]
        body = {"records": [{"value": 1}]}
        path = f"/v1/topics/{NAME}/records"
        for node_id in others:
            refused = await ask(cluster, node_id, token, "POST", path, body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                403,
                "topic_access_denied",
            )
            assert (await ask(cluster, node_id, None, "POST", path, body)).status_code == 404
            answer = await send_by_websocket(cluster, node_id, token)
            assert answer["error"]["code"] == "topic_access_denied", answer
        assert cluster.partition(leader, NAME).high_watermark == 0
        for node_id in others:
            done = await ask(cluster, node_id, writer, "POST", path, body)
            assert done.status_code == 201, done.text
        assert cluster.partition(leader, NAME).high_watermark == len(others)


@in_loop
async def test_the_leader_checks_the_caller_of_a_forwarded_append_to_a_stream(
    tmp_path: Path,
) -> None:
    async with local_cluster(tmp_path, access=ACCESS) as cluster:
        access = cluster.nodes[1].broker.access
        assert access is not None
        _, admin = await access.create_token(user("root"), by=ROOT)
        path = f"/v1/streams/{NAME}"
        for node_id in cluster.nodes:
            made = await ask(cluster, node_id, admin, "PUT", f"{path}-{node_id}", [])
            assert made.status_code in (200, 201), made.text
        reader = await give(cluster, (ResourceType.TOPIC, Operation.READ))
        writer = await token_of(cluster, "writer", Operation.WRITE)
        names = {
            node_id: next(
                topic.name
                for topic in cluster.nodes[1].broker.topics.all()
                if topic.name.endswith(f"{NAME}-{node_id}")
            )
            for node_id in cluster.nodes
        }
        refused = 0
        for number, name in names.items():
            leader = leader_of(cluster, name)
            for node_id in cluster.nodes:
                if node_id == leader:
                    continue
                first = cluster.nodes[node_id].broker.access
                assert first is not None
                is_allowed = first.check
                first.check = lambda *_: True  # type: ignore[method-assign]
                target = f"{path}-{number}"
                answer = await ask(cluster, node_id, reader, "POST", target, 1)
                first.check = is_allowed  # type: ignore[method-assign]
                assert answer.status_code == 403, answer.text
                refused += 1
                assert cluster.partition(leader, name).high_watermark == 0 or number != node_id
            done = await ask(cluster, 1, writer, "POST", f"{path}-{number}", 1)
            assert done.status_code in (200, 204), done.text
        assert refused


async def token_of(cluster: LocalCluster, name: str, operation: Operation) -> str:
    """Return a token of a user who has one right to all topics of the test."""
    access = cluster.nodes[1].broker.access
    assert access is not None
    pattern = ResourcePattern(ResourceType.TOPIC, NAME, PatternType.PREFIXED)
    await access.create_acl(Acl(pattern, user(name), "*", operation, Permission.ALLOW), by=ROOT)
    _, text = await access.create_token(user(name), by=ROOT)
    return text


async def send_by_websocket(cluster: LocalCluster, node_id: int, token: str) -> Any:
    """Return the answer to an append by WebSocket."""
    address = url(cluster, node_id).replace("http://", "ws://")
    headers = {"Authorization": f"Bearer {token}"}
    async with connect(f"{address}/v1/ws", additional_headers=headers) as socket:
        message = {"op": "append", "id": 1, "topic": NAME, "records": [{"value": 1}]}
        await socket.send(json.dumps(message))
        while True:
            answer = json.loads(await socket.recv())
            if answer.get("id") == 1:
                return answer
