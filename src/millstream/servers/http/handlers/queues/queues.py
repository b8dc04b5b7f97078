"""Handlers of work queues: create, list, describe, delete.

`jobs.py` has the operations of workers; `job_push.py` pushes jobs to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.values import DEAD_SUFFIX, QueueChanges
from millstream.broker.quotas import QuotaKind
from millstream.errors import Unavailable, UnknownQueue, UnknownTopic
from millstream.protocols.http.queues import QueueAnswer, QueueBody, QueuesAnswer
from millstream.protocols.http.strict_json import decode
from millstream.servers.http.handlers.coordinator_lists import ask_node, gather_parts, retried
from millstream.servers.http.handlers.topics.topics import partition_count
from millstream.servers.http.routing.bodies import read_bytes
from millstream.servers.http.routing.operation_access import filtered, queue_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import FORWARDED, HttpRequest
from millstream.servers.http.routing.responses import json_response

T = TypeVar("T")

NAMES_MAX = 10
"""Names of queues in one error."""

QUEUE_SIZE_MAX = 16 * 1024
"""Bytes of a request body: a few numbers and a name."""


async def put_queue(request: HttpRequest) -> Response:
    """Create a queue, or change its settings. Its topic is created if it does not exist.

    The jobs of a queue are the records of the topic of the same name, whether they are written by
    HTTP or by Kafka clients.
    """
    sent = await read_bytes(request, size_max=QUEUE_SIZE_MAX)
    body = decode(sent, QueueBody) if sent else QueueBody()
    changes = QueueChanges(
        lease_ms=_given(body.lease_ms),
        deliveries_max=_given(body.deliveries_max),
        dead_letter=_given(body.dead_letter),
        claim_window_ms=_given(body.claim_window_ms),
    )
    broker, name = request.context.broker, request.path_params["queue"]
    before = partition_count(broker.topics, name)
    _check_put(request, name, changes.dead_letter)
    queue, is_new = await broker.queues.put(name, changes, request.caller)
    created = partition_count(broker.topics, name) - before
    request.usage.charge(QuotaKind.MUTATION, max(0, created))
    return json_response(_described(queue), HTTPStatus.CREATED if is_new else HTTPStatus.OK)


def _check_put(request: HttpRequest, name: str, dead_letter: str | None) -> None:
    """Raise unless the caller may create the topics that are missing, and fill the dead letters.

    The node writes dead letters later, on behalf of the one who named their topic.
    """
    broker = request.context.broker
    topics = broker.topics
    if topics.find(name) is None:
        request.require_creation(name)
    if dead_letter is None and not broker.queues.knows(name):
        dead_letter = name + DEAD_SUFFIX
    if dead_letter is not None:
        request.require_topic(Operation.WRITE, dead_letter)
        if topics.find(dead_letter) is None:
            request.require_creation(dead_letter)


def _given(sent: T | UnsetType) -> T | None:
    return None if sent is UNSET else sent


async def list_queues(request: HttpRequest) -> Response:
    """List all queues sorted by name."""
    if request.context.forwarder is None or FORWARDED in request.scope:
        return json_response(await _own_queues(request))
    return json_response(await retried(lambda: _all_queues(request)))


async def _own_queues(request: HttpRequest) -> QueuesAnswer:
    """Return the queues that this node coordinates."""
    queues = [
        queue
        for queue in request.context.broker.queues.all()
        if request.may_describe_group(queue.name)
    ]
    await asyncio.gather(*(queue.store.catch_up() for queue in queues))
    return QueuesAnswer(queues=[_described(queue) for queue in queues])


async def _all_queues(request: HttpRequest) -> QueuesAnswer:
    """Return the queues of all coordinators; raises if one of them is missing."""
    broker = request.context.broker
    nodes = set(broker.queues.coordinators().values()) - {broker.node_id, -1}
    asked: dict[int, Awaitable[QueuesAnswer]] = {
        node_id: ask_node(request, node_id, QueuesAnswer) for node_id in nodes
    }
    asked[broker.node_id] = _own_queues(request)
    parts = await gather_parts(asked)
    queues = {queue.name: queue for part in parts for queue in part.queues}
    missing = [
        name
        for name in broker.queues.names()
        if name not in queues and request.may_describe_group(name)
    ]
    if missing:
        raise Unavailable(
            "the list would not be complete: no coordinator answers for queue"
            f" {', '.join(missing[:NAMES_MAX])}"
        )
    return QueuesAnswer(queues=[queues[name] for name in sorted(queues)])


async def describe_queue(request: HttpRequest) -> Response:
    """Return the settings of a queue, and the number of its jobs in each state."""
    queue = queue_of(request)
    await queue.store.catch_up()
    return json_response(_described(queue))


async def delete_queue(request: HttpRequest) -> Response:
    """Delete a queue. Its topic and the records in it are kept."""
    queue = queue_of(request)
    await request.context.broker.queues.delete(queue.name)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _described(queue: WorkQueue) -> QueueAnswer:
    config, counts = queue.config, queue.counts()
    return QueueAnswer(
        name=queue.name,
        lease_ms=config.lease_ms,
        deliveries_max=config.deliveries_max,
        dead_letter=config.dead_letter,
        claim_window_ms=config.claim_window_ms,
        enqueued=counts.enqueued,
        ready=counts.ready,
        leased=counts.leased,
        delayed=counts.delayed,
        acked=counts.acked,
        dead=counts.dead,
        delivered=counts.delivered,
        removed=counts.removed,
        damaged=counts.damaged,
    )


def queue_of(request: HttpRequest) -> WorkQueue:
    """Return the queue in the path; raises `UnknownQueue`."""
    broker = request.context.broker
    name: str = request.path_params["queue"]
    try:
        return broker.queues.get(name)
    except UnknownQueue:
        if not request.may_describe_topic(name) or not _is_topic(request, name):
            raise
    raise UnknownQueue(f"{name} is a topic without a queue: create it with PUT /v1/queues/{name}")


def _is_topic(request: HttpRequest, name: str) -> bool:
    try:
        request.context.broker.topics.get(name)
    except UnknownTopic:
        return False
    return True


_EXAMPLE = {
    "name": "mail",
    "lease_ms": 30_000,
    "deliveries_max": 5,
    "dead_letter": "mail-dead",
    "claim_window_ms": 0,
    "enqueued": 20,
    "ready": 7,
    "leased": 2,
    "delayed": 1,
    "acked": 9,
    "dead": 1,
    "delivered": 14,
    "removed": 0,
    "damaged": 0,
}

OPERATIONS = (
    HttpOperation(
        "PUT",
        "/v1/queues/{queue}",
        put_queue,
        "Create or change a queue",
        {HTTPStatus.CREATED: QueueAnswer, HTTPStatus.OK: QueueAnswer},
        body=QueueBody,
        is_body_optional=True,
        errors=(HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE),
        uses=(QuotaKind.MUTATION,),
        tag="queues",
        example={"lease_ms": 30_000, "deliveries_max": 5, "dead_letter": "mail-dead"},
        answer_example=_EXAMPLE,
        is_forwarded=True,
        access=queue_access(
            Operation.ALTER_CONFIGS,
            Operation.READ,
            checks="CREATE, if the topic is created; WRITE on the dead-letter topic",
        ),
    ),
    HttpOperation(
        "GET",
        "/v1/queues",
        list_queues,
        "List queues",
        {HTTPStatus.OK: QueuesAnswer},
        tag="queues",
        answer_example={"queues": [_EXAMPLE]},
        access=filtered("queues that the caller may describe"),
    ),
    HttpOperation(
        "GET",
        "/v1/queues/{queue}",
        describe_queue,
        "Describe a queue",
        {HTTPStatus.OK: QueueAnswer},
        tag="queues",
        answer_example=_EXAMPLE,
        is_forwarded=True,
        access=queue_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "DELETE",
        "/v1/queues/{queue}",
        delete_queue,
        "Delete a queue",
        {HTTPStatus.NO_CONTENT: None},
        errors=(HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE),
        tag="queues",
        is_forwarded=True,
        access=queue_access(Operation.DELETE),
    ),
)
