"""HTTP requests between two applications: one forwards, the other is responsible."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from starlette.responses import Response, StreamingResponse

from millstream.clock import SystemClock
from millstream.cluster.forwarding.counters import ForwardCounters
from millstream.errors import (
    MillstreamError,
    NotCoordinator,
    NotLeader,
    OutcomeUnknown,
    OutOfHops,
    PeerUnavailable,
)
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.identity import PeerIdentity
from millstream.protocols.peer.messages.forward import ForwardRequest
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.forwarding.forwarded_requests import ForwardedRequests
from millstream.servers.http.forwarding.request_forwarder import RequestForwarder
from millstream.servers.http.routing.bodies import read_bytes
from millstream.servers.http.routing.http_app import HttpApp
from millstream.servers.http.routing.operation_access import OPEN
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpContext, HttpRequest
from millstream.servers.http.routing.site_rules import SiteRules
from millstream.servers.peer.peer_context import ConnectingPeer, PeerContext
from tests.in_loop import in_loop

PEER = ConnectingPeer(PeerIdentity("c", 1, uuid.UUID(int=1), "1"), Purpose.FORWARDING, "::1")
CONTEXT = PeerContext(PEER, 0, 1e9, 0, None)
NODE = 1


class Meter:
    """Charges nobody."""

    def usage(self, headers: Any, *, is_charged: bool = True) -> Any:
        return Usage()


class Usage:
    is_free = True
    principal = "me"
    throttle_ms = 0
    body_bytes = 0

    def charge(self, kind: object, amount: float) -> int:
        return 0


class Peers:
    """Other nodes, in process; or errors in place of their streams."""

    def __init__(self, nodes: dict[int, ForwardedRequests | MillstreamError]) -> None:
        self._nodes = nodes
        self.asked: list[int] = []

    async def stream(self, node_id: int, _purpose: object, request: Any, **_: float) -> Any:
        self.asked.append(node_id)
        node = self._nodes[node_id]
        if isinstance(node, MillstreamError):
            return _Stream(_failing(node))
        return _Stream(node(request, CONTEXT))


async def _failing(error: MillstreamError) -> AsyncIterator[Any]:
    raise error
    yield


class _Stream:
    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items

    def __aiter__(self) -> Any:
        return self._items

    async def __anext__(self) -> Any:
        return await anext(self._items)

    def close(self) -> None:
        pass


def app_of(handler: Any, forwarder: Any = None, *, method: str = "POST") -> HttpApp:
    context = HttpContext(
        broker=cast("Any", None),
        config=cast("Any", None),
        shutdown=cast("Any", None),
        live=cast("Any", None),
        meter=cast("Any", Meter()),
        forwarder=forwarder,
    )
    operation = HttpOperation(
        method,
        "/v1/do",
        handler,
        "Do",
        {},
        OPEN,
        is_forwarded=True,
        end_event=(lambda _: b"event: end\n\n") if method == "GET" else None,
    )
    sites = SiteRules(is_local=True)
    return HttpApp([operation], SystemClock(), HttpCounters(), context=context, sites=sites)


async def refuse(request: HttpRequest) -> Response:
    """Refuse, as a node that is not responsible."""
    await read_bytes(request, size_max=100)
    raise NotCoordinator("node 2 coordinates it", coordinator=2)


async def accept(request: HttpRequest) -> Response:
    body = await read_bytes(request, size_max=100)
    return Response(b"did " + body, headers={"x": "y", "client": request.headers["client-id"]})


async def ask(app: HttpApp, *, method: str = "POST", host: bytes = b"localhost") -> Any:
    """Send a request; return status, headers and body."""
    messages: list[Any] = []
    body: list[bytes] = [b"it"]

    async def receive() -> Any:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.Event().wait()
        return None

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": "/v1/do",
        "raw_path": b"/v1/do",
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", host), (b"client-id", b"me")],
        "client": ("10.0.0.1", 5),
        "root_path": "",
    }
    await app(scope, receive, send)
    head, *pieces = messages
    return head["status"], dict(head["headers"]), b"".join(item.get("body", b"") for item in pieces)


def cluster_of(
    nodes: dict[int, Any], handler: Any = refuse, *, method: str = "POST"
) -> tuple[HttpApp, Peers, ForwardCounters]:
    """Return the application of node 1, and what it asks: nodes with these handlers."""
    peers = Peers(
        {
            node_id: node
            if isinstance(node, MillstreamError)
            else ForwardedRequests(app_of(node, method=method))
            for node_id, node in nodes.items()
        }
    )
    counters = ForwardCounters()
    forwarder = RequestForwarder(NODE, peers, counters, body_size_max=100, heartbeat_seconds=15)
    return app_of(handler, forwarder, method=method), peers, counters


@in_loop
async def test_the_response_of_the_responsible_node_is_passed_on():
    app, peers, counters = cluster_of({2: accept})
    status, headers, body = await ask(app)
    assert (status, body) == (200, b"did it")
    assert headers[b"x"] == b"y"
    assert headers[b"client"] == b"me"
    assert peers.asked == [2]
    assert counters.outcomes == {("request", "answered"): 1}


@in_loop
async def test_a_refusal_is_followed_once():
    async def elsewhere(_: HttpRequest) -> Response:
        raise NotLeader("node 3 leads it", leader=3)

    app, peers, counters = cluster_of({2: elsewhere, 3: accept})
    assert (await ask(app))[0] == 200
    assert peers.asked == [2, 3]
    assert counters.retries == {"request": 1}

    async def back(_: HttpRequest) -> Response:
        raise NotLeader("node 2 leads it", leader=2)

    app, peers, counters = cluster_of({2: elsewhere, 3: back})
    status, headers, _ = await ask(app)
    assert (status, headers[b"retry-after"]) == (503, b"1")
    assert peers.asked == [2, 3]


@in_loop
async def test_a_node_that_became_responsible_processes_the_request_itself():
    async def it_is_you(_: HttpRequest) -> Response:
        raise NotLeader("node 1 leads it", leader=NODE)

    refusals = [NotLeader("node 2 leads it", leader=2)]

    async def late(request: HttpRequest) -> Response:
        body = await read_bytes(request, size_max=100)
        if refusals:
            raise refusals.pop()
        return Response(body)

    app, peers, _ = cluster_of({2: it_is_you}, late)
    assert (await ask(app))[0::2] == (200, b"it")
    assert peers.asked == [2]


@in_loop
async def test_an_unknown_outcome_of_a_change_is_an_error_and_not_repeated():
    app, peers, counters = cluster_of({2: OutcomeUnknown("connection lost")})
    status, _, body = await ask(app)
    assert status == 504
    assert b'"outcome_unknown"' in body
    assert peers.asked == [2]
    assert counters.outcomes == {("request", "unknown"): 1}


@in_loop
async def test_an_unknown_outcome_of_a_read_may_be_tried_again_by_the_client():
    app, _, _ = cluster_of({2: OutcomeUnknown("connection lost")}, method="GET")
    assert (await ask(app, method="GET"))[0] == 503


@in_loop
async def test_a_node_that_cannot_be_reached_has_done_nothing():
    app, _, counters = cluster_of({2: PeerUnavailable("cannot connect")})
    assert (await ask(app))[0] == 503
    assert counters.outcomes == {("request", "unavailable"): 1}


@in_loop
async def test_a_stream_that_breaks_ends_with_an_event_that_clients_know():
    async def broken(_: HttpRequest) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"event: a\n\n"
            raise OutcomeUnknown("connection lost")

        return StreamingResponse(events())

    app, _, _ = cluster_of({2: broken}, method="GET")
    status, _, body = await ask(app, method="GET")
    assert (status, body) == (200, b"event: a\n\nevent: end\n\n")


@in_loop
async def test_a_request_is_not_forwarded_twice():
    requests = ForwardedRequests(app_of(accept))
    with pytest.raises(OutOfHops, match="at most 1 times, got 2"):
        requests(ForwardRequest(hops=2, method="POST", target=b"/v1/do"), CONTEXT)

    # A node that gets a forwarded request never asks another one.
    inner, peers, _ = cluster_of({2: accept})
    responses = ForwardedRequests(inner)(
        ForwardRequest(hops=1, method="POST", target=b"/v1/do"), CONTEXT
    )
    [response] = [item async for item in responses]
    assert (response.status, response.responsible) == (0, 2)
    assert peers.asked == []


@in_loop
async def test_hosts_are_checked_by_the_node_that_has_the_client():
    app, peers, _ = cluster_of({2: accept})
    assert (await ask(app, host=b"evil.example"))[0] == 421
    assert peers.asked == []
