"""Handlers of dead letters: list, move back to the queue, delete."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.queues.queue import WorkQueue
from millstream.protocols.http.queues import (
    DeadLettersAnswer,
    DeadLettersQuery,
    PurgeAnswer,
    RedriveAnswer,
    RedriveBody,
    dead_letters_json,
)
from millstream.protocols.http.search import found_json
from millstream.servers.http.handlers.queues.queues import QUEUE_SIZE_MAX, queue_of
from millstream.servers.http.handlers.record_position import parse_record_position
from millstream.servers.http.handlers.records import INLINE_RECORDS_MAX
from millstream.servers.http.routing.bodies import in_thread_if, read_message, read_query
from millstream.servers.http.routing.operation_access import queue_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response


async def list_dead_letters(request: HttpRequest) -> Response:
    """List the records of the dead-letter topic of a queue, one page at a time."""
    query = read_query(request, DeadLettersQuery)
    after = parse_record_position(query.after) if query.after else None
    queue = queue_of(request)
    _check_dead_letters(request, queue, Operation.READ)
    box = request.context.broker.dead_letters
    page = await box.page(queue, after=after, limit=query.limit)
    letters = await in_thread_if(
        len(page.letters) > INLINE_RECORDS_MAX,
        lambda: [found_json(letter.partition, letter.record) for letter in page.letters],
    )
    after_text = None if page.next is None else str(page.next)
    return json_response(dead_letters_json(letters, after_text, page.size))


def _check_dead_letters(request: HttpRequest, queue: WorkQueue, *operations: Operation) -> None:
    """Raise unless the caller may do this to the dead-letter topic of the queue, if it has one."""
    name = queue.config.dead_letter
    if name:
        for operation in operations:
            request.require_topic(operation, name)


async def redrive_dead_letters(request: HttpRequest) -> Response:
    """Move dead letters back to the queue as new jobs, the oldest first.

    Each becomes a job at least once: it is deleted from the dead-letter topic after the job is as
    durable as any other, so a crash in between makes it a job twice. Repeat the request until
    `remaining` is 0. 400 also means that the first record is not a dead letter of this queue.
    """
    body = await read_message(request, RedriveBody, size_max=QUEUE_SIZE_MAX, is_optional=True)
    queue = queue_of(request)
    _check_dead_letters(request, queue, Operation.READ, Operation.DELETE)
    result = await request.context.broker.dead_letters.redrive(queue, body.max, request.caller)
    return json_response(RedriveAnswer(moved=result.moved, remaining=result.remaining))


async def purge_dead_letters(request: HttpRequest) -> Response:
    """Delete all dead letters of a queue for good.

    400 means that the first record of the topic is not a dead letter of this queue.
    """
    queue = queue_of(request)
    _check_dead_letters(request, queue, Operation.DELETE)
    result = await request.context.broker.dead_letters.purge(queue)
    return json_response(PurgeAnswer(purged=result.moved, remaining=result.remaining))


_ERRORS = (HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE)  # The queue's topic may be full.

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/queues/{queue}/dead_letters",
        list_dead_letters,
        "List dead letters",
        {HTTPStatus.OK: DeadLettersAnswer},
        query=DeadLettersQuery,
        tag="queues",
        answer_example={
            "letters": [
                {
                    "partition": 0,
                    "offset": 3,
                    "timestamp": 1763240000000,
                    "key": None,
                    "value": {"to": "a@example.com"},
                    "headers": {
                        "millstream-queue": "mail",
                        "millstream-partition": "0",
                        "millstream-offset": "7",
                        "millstream-deliveries": "5",
                        "millstream-reason": "nacked",
                    },
                }
            ],
            "next": None,
            "count": 1,
        },
        is_forwarded=True,
        access=queue_access(Operation.DESCRIBE, checks="READ on the dead-letter topic"),
    ),
    HttpOperation(
        "POST",
        "/v1/queues/{queue}/redrive",
        redrive_dead_letters,
        "Redrive dead letters",
        {HTTPStatus.OK: RedriveAnswer},
        body=RedriveBody,
        is_body_optional=True,
        errors=_ERRORS,
        tag="queues",
        example={"max": 1000},
        answer_example={"moved": 12, "remaining": 0},
        is_forwarded=True,
        access=queue_access(
            Operation.READ, Operation.WRITE, checks="READ and DELETE on the dead-letter topic"
        ),
    ),
    HttpOperation(
        "DELETE",
        "/v1/queues/{queue}/dead_letters",
        purge_dead_letters,
        "Purge dead letters",
        {HTTPStatus.OK: PurgeAnswer},
        errors=_ERRORS,
        tag="queues",
        answer_example={"purged": 12, "remaining": 0},
        is_forwarded=True,
        access=queue_access(Operation.READ, checks="DELETE on the dead-letter topic"),
    ),
)
