"""Producers over HTTP: who may append so that repeating a request does no harm."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from millstream.protocols.http.topics import ProducerAnswer
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request_state import broker_of, json_response


async def make_producer(request: Request) -> Response:
    """Give out the id of a producer, which nobody has had before.

    It goes with the records of an append, beside the number of those before them.
    """
    taken = await broker_of(request).producer_ids.take()
    return json_response(ProducerAnswer(id=taken, epoch=0), HTTPStatus.CREATED)


OPERATIONS = (
    HttpOperation(
        "POST",
        "/v1/producers",
        make_producer,
        "Get the id of a producer",
        {HTTPStatus.CREATED: ProducerAnswer},
        errors=(HTTPStatus.INSUFFICIENT_STORAGE,),
        answer_example={"id": 1000, "epoch": 0},
    ),
)
