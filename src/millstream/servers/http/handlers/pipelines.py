"""Handler of pipelines: publishers that write exactly once into this node, or into its cluster.

The coordinators of a cluster date publications by clocks of their own, so their dates cannot be
compared: the lists of all coordinators are merged by age, and `next` has the position in each.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Literal, NamedTuple

from msgspec import UNSET
from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.transactions.publications import Publications, Publisher
from millstream.errors import MalformedRequest
from millstream.protocols.http.pipelines import PipelinesAnswer, PipelineShape, PipelinesQuery
from millstream.protocols.kafka.pipeline_client_id import pipeline_of
from millstream.servers.http.handlers.coordinator_lists import ask_coordinators
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operation_access import cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import FORWARDED, HttpRequest
from millstream.servers.http.routing.responses import json_response

KINDS: tuple[tuple[str, Literal["stream", "job"]], ...] = (
    ("spark-query/", "stream"),
    ("spark-job/", "job"),
)
"""Prefixes of the publisher names that the Spark sinks create."""

PUBLISHERS_PER_TURN = 1_000
"""Publishers that are processed in one turn of the event loop: about a millisecond."""

KnownPublisher = tuple[Publications, Publisher]

POSITIONS_PREFIX = "0:"
"""What `next` begins with in a cluster, before the positions in the lists of its coordinators."""

_POSITION = re.compile(r"([0-9]{1,5})-([0-9]{1,19})-([0-9a-f]{16})")

_AFTER = re.compile(r"([0-9]{1,19}):(.+)", re.DOTALL)


class PageCursor(NamedTuple):
    """The position of a publisher in the list: the most recent publication comes first."""

    not_before: int
    """The negative time of its last publication."""
    name: str


class CoordinatorPosition(NamedTuple):
    """The position of a publisher in the list of one coordinator."""

    coordinator: int
    """The number of the internal partition."""
    not_before: int
    digest: str
    """A hash of its name: names may be long."""

    def __str__(self) -> str:
        return f"{self.coordinator}-{-self.not_before}-{self.digest}"


async def list_pipelines(request: HttpRequest) -> Response:
    """List publishers, the most recent publication first, one page at a time."""
    query = read_query(request, PipelinesQuery)
    if request.context.forwarder is not None:
        return json_response(await _list_of_cluster(request, query))
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


async def _list_of_cluster(request: HttpRequest, query: PipelinesQuery) -> PipelinesAnswer:
    coordinators = request.context.broker.transactions.coordinators
    after = _read_positions(query.after)
    parts = await ask_coordinators(
        request, coordinators, PipelinesAnswer, lambda: _own_pipelines(request, query, after)
    )
    if FORWARDED in request.scope:
        return parts[0]
    lists: dict[int, list[tuple[CoordinatorPosition, PipelineShape]]] = {}
    for shape in (shape for part in parts for shape in part.pipelines):
        position = _read_position(str(shape.position))
        lists.setdefault(position.coordinator, []).append((position, shape))
    merged = list(heapq.merge(*lists.values(), key=lambda entry: entry[1].age_ms))
    shown = merged[: query.limit]
    is_more = len(merged) > len(shown) or any(part.next is not None for part in parts)
    for position, shape in shown:
        after[position.coordinator] = position
        shape.position = UNSET
    return PipelinesAnswer(
        pipelines=[shape for _, shape in shown],
        next=POSITIONS_PREFIX + ".".join(map(str, after.values())) if is_more else None,
    )


async def _own_pipelines(
    request: HttpRequest, query: PipelinesQuery, after: Mapping[int, CoordinatorPosition]
) -> PipelinesAnswer:
    """Return the next publishers of each coordinator of this node."""
    coordinators = request.context.broker.transactions.coordinators
    shapes: list[PipelineShape] = []
    is_more = False
    for index, coordinator in coordinators.indexed():
        publications = coordinator.publications
        entries = [
            (CoordinatorPosition(index, -known.publication.update_ms, _digest(known.name)), known)
            for known in publications.all()
            if known.publication is not None
        ]
        last = after.get(index)
        behind = [entry for entry in entries if last is None or entry[0] > last]
        page = heapq.nsmallest(query.limit + 1, behind, key=lambda entry: entry[0])
        is_more |= len(page) > query.limit
        for position, publisher in page[: query.limit]:
            shape = _shape(publications, publisher)
            shape.position = str(position)
            shapes.append(shape)
        await asyncio.sleep(0)
    return PipelinesAnswer(pipelines=shapes, next=POSITIONS_PREFIX if is_more else None)


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _read_positions(text: str) -> dict[int, CoordinatorPosition]:
    if not text:
        return {}
    positions = [_read_position(part) for part in text.removeprefix(POSITIONS_PREFIX).split(".")]
    return {position.coordinator: position for position in positions}


def _read_position(text: str) -> CoordinatorPosition:
    match = _POSITION.fullmatch(text)
    if match is None:
        raise MalformedRequest(f"after must be `next` of a response, got {text[:100]!r}")
    return CoordinatorPosition(int(match[1]), -int(match[2]), match[3])


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
        access=cluster_access(Operation.DESCRIBE),
    ),
)
