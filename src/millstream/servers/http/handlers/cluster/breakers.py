"""Handler that trips and resets circuit breakers between nodes."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.errors import MillstreamError, NotLeader
from millstream.protocols.http.cluster import BreakerBody, BreakersAnswer, BreakerShape
from millstream.protocols.peer.handshake import Purpose
from millstream.servers.http.handlers.cluster.node_parameter import node_of
from millstream.servers.http.handlers.cluster.replica_reports import REPORT_SECONDS_MAX
from millstream.servers.http.routing.bodies import read_message
from millstream.servers.http.routing.operation_access import cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

BODY_SIZE_MAX = 1024


async def change_breaker(request: HttpRequest) -> Response:
    """Stop sending requests to a node, or send them again.

    Each node has a circuit breaker for each other one. It is changed at the node that is asked or,
    with `everywhere`, at all live nodes; one that could not be asked is in the response with the
    reason. Requests in flight are finished. The change lasts until the node that has the breaker
    is stopped.
    """
    body = await read_message(request, BreakerBody, size_max=BODY_SIZE_MAX)
    broker, node_id = request.context.broker, node_of(request)
    admin = broker.admin
    change = admin.trip_breaker if body.action == "trip" else admin.reset_breaker
    others = [
        node.node_id
        for node in admin.nodes()
        if body.everywhere and node.is_alive and node.node_id not in (broker.node_id, node_id)
    ]
    breakers = []
    # The node itself may be asked to have it done by the others: it sends itself no requests.
    if node_id != broker.node_id or not others:
        breakers.append(BreakerShape(node_id=broker.node_id, breaker=change(node_id)))
    breakers += await asyncio.gather(
        *(_change_at(request, other, node_id, body) for other in others)
    )
    breakers.sort(key=lambda breaker: breaker.node_id)
    return json_response(BreakersAnswer(node_id=node_id, breakers=breakers))


async def _change_at(
    request: HttpRequest, node_id: int, target: int, body: BreakerBody
) -> BreakerShape:
    """Change the breaker of another node."""
    forwarder = request.context.forwarder
    assert forwarder is not None, "a node with others has one"
    try:
        async with asyncio.timeout(REPORT_SECONDS_MAX):
            answer = await forwarder.ask(
                request,
                NotLeader(f"node {node_id} has the breaker", leader=node_id),
                BreakersAnswer,
                method="POST",
                path=f"/v1/cluster/nodes/{target}/breaker",
                body=msgspec.json.encode(BreakerBody(action=body.action)),
                purpose=Purpose.ADMIN,
            )
    except MillstreamError as error:
        return BreakerShape(node_id=node_id, breaker=None, error=str(error))
    except TimeoutError:
        text = f"no answer within {REPORT_SECONDS_MAX:g} s"
        return BreakerShape(node_id=node_id, breaker=None, error=text)
    return answer.breakers[0]


OPERATIONS = (
    HttpOperation(
        "POST",
        "/v1/cluster/nodes/{node}/breaker",
        change_breaker,
        "Stop or allow requests to a node",
        {HTTPStatus.OK: BreakersAnswer},
        body=BreakerBody,
        tag="cluster",
        example={"action": "trip", "everywhere": True},
        answer_example={
            "node_id": 3,
            "breakers": [
                {"node_id": 1, "breaker": "tripped", "error": None},
                {"node_id": 2, "breaker": "tripped", "error": None},
            ],
        },
        access=cluster_access(Operation.ALTER),
    ),
)
