"""Handler of pipelines: publishers that write exactly once into this node."""

from __future__ import annotations

import asyncio
import heapq
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Literal, NamedTuple

from starlette.responses import Response

from millstream.broker.transactions.publications import Publications, Publisher
from millstream.errors import MalformedRequest
from millstream.protocols.http.pipelines import PipelinesAnswer, PipelineShape, PipelinesQuery
from millstream.protocols.kafka.pipeline_client_id import pipeline_of
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

KINDS: tuple[tuple[str, Literal["stream", "job"]], ...] = (
    ("spark-query/", "stream"),
    ("spark-job/", "job"),
)
"""Prefixes of the publisher names that the Spark sinks create."""

PUBLISHERS_PER_TURN = 1_000
"""Publishers that are processed in one turn of the event loop: about a millisecond."""

KnownPublisher = tuple[Publications, Publisher]

_AFTER = re.compile(r"([0-9]{1,19}):(.+)", re.DOTALL)


class PageCursor(NamedTuple):
    """The position of a publisher in the list: the most recent publication comes first."""

    not_before: int
    """The negative time of its last publication."""
    name: str


async def list_pipelines(request: HttpRequest) -> Response:
    """List publishers, the most recent publication first, one page at a time."""
    query = read_query(request, PipelinesQuery)
    publishers = request.context.broker.transactions.publishers()
    after = _read_after(query.after) if query.after else None
    page = await _newest(publishers, after, query.limit + 1)
    shown = page[: query.limit]
    last = shown[-1][0] if len(page) > len(shown) else None
    return json_response(
        PipelinesAnswer(
            pipelines=[_shape(*known) for _, known in shown],
            next=f"{-last.not_before}:{last.name}" if last is not None else None,
        )
    )


async def _newest(
    publishers: Sequence[KnownPublisher], after: PageCursor | None, count_max: int
) -> list[tuple[PageCursor, KnownPublisher]]:
    """Return the publishers after a position, and yield to other requests in between."""
    best: list[tuple[PageCursor, KnownPublisher]] = []
    for start in range(0, len(publishers), PUBLISHERS_PER_TURN):
        piece = [
            (PageCursor(-known[1].publication.update_ms, known[1].name), known)
            for known in publishers[start : start + PUBLISHERS_PER_TURN]
            if known[1].publication is not None
        ]
        behind = [entry for entry in piece if after is None or entry[0] > after]
        best = heapq.nsmallest(count_max, best + behind, key=lambda entry: entry[0])
        await asyncio.sleep(0)
    return best


def _read_after(text: str) -> PageCursor:
    match = _AFTER.fullmatch(text)
    if match is None:
        raise MalformedRequest(f"after must be `next` of a response, got {text[:100]!r}")
    return PageCursor(-int(match[1]), match[2])


def _shape(publications: Publications, publisher: Publisher) -> PipelineShape:
    kinds = (kind for start, kind in KINDS if publisher.name.startswith(start))
    return PipelineShape(
        publisher=publisher.name,
        name=pipeline_of(publisher.client_id),
        kind=next(kinds, "other"),
        sequence=publisher.last_sequence,
        age_ms=publications.age_ms(publisher),
    )


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/pipelines",
        list_pipelines,
        "List pipelines",
        {HTTPStatus.OK: PipelinesAnswer},
        query=PipelinesQuery,
        tag="pipelines",
        answer_example={
            "pipelines": [
                {
                    "publisher": "spark-query/2b7c4a2e-0f1d-4f4e-9d51-6d6c1a0b9e77",
                    "name": "clicks/by-hour",
                    "kind": "stream",
                    "sequence": 17,
                    "age_ms": 1234,
                }
            ],
            "next": None,
        },
    ),
)
