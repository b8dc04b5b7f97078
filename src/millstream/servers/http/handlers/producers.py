"""Handler of producer ids for idempotent appends."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import CLUSTER, Operation, ResourceType
from millstream.protocols.http.topics import ProducerAnswer
from millstream.servers.http.routing.callers import refusal
from millstream.servers.http.routing.operation_access import checked
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response


async def make_producer(request: HttpRequest) -> Response:
    """Return a producer id that was never used before.

    Appends carry it together with the number of records before them.
    """
    access = request.context.access
    if (
        access is not None
        and not access.check(request.caller, Operation.IDEMPOTENT_WRITE, CLUSTER)
        and not access.check_some(request.caller, Operation.WRITE, ResourceType.TOPIC)
    ):
        raise refusal(access, request.caller, Operation.IDEMPOTENT_WRITE, CLUSTER)
    producer_id = await request.context.broker.producer_ids.take()
    return json_response(ProducerAnswer(id=producer_id, epoch=0), HTTPStatus.CREATED)


OPERATIONS = (
    HttpOperation(
        "POST",
        "/v1/producers",
        make_producer,
        "Create a producer id",
        {HTTPStatus.CREATED: ProducerAnswer},
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        answer_example={"id": 1000, "epoch": 0},
        access=checked("IDEMPOTENT_WRITE on the cluster, or WRITE on some topic"),
    ),
)
