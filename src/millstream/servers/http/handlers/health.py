"""What operators and their machines ask a node: whether it is well, and its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from millstream.broker.problems import Problem
from millstream.servers.http.routing.operations import Answer, HttpOperation, Media
from millstream.servers.http.routing.request_state import json_response

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The format that every version of Prometheus reads."""


class Health(NamedTuple):
    """Whether a node serves its clients, and what is wrong with it."""

    is_started: bool
    problems: tuple[Problem, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether clients should be sent here: nothing keeps the node from working for all."""
        return not any(problem.code.is_blocking for problem in self.problems)


class HealthProblem(Struct):
    """One thing that is wrong, whether or not the node is ready in spite of it."""

    code: str
    message: str


class HealthAnswer(Struct):
    """How the node is."""

    status: str
    problems: list[HealthProblem] = []


def health_operations(
    health: Callable[[], Health], scrape: Callable[[], Iterable[str]]
) -> list[HttpOperation]:
    """Return the operations; `health` and `scrape` are asked for each answer.

    `scrape` gives its text in pieces. The loop has a turn between two of them, so that no client
    waits for a scrape of many partitions.
    """

    async def live(_: Request) -> Response:
        """Answer as long as the event loop does."""
        return json_response(HealthAnswer("live"))

    async def startup(_: Request) -> Response:
        """Tell whether the node has opened its data."""
        return _status(health().is_started, "started", "starting", ())

    async def ready(_: Request) -> Response:
        """Tell whether clients are served, and what is wrong where not."""
        found = health()
        return _status(found.is_ready, "ready", "not ready", found.problems)

    async def metrics(_: Request) -> Response:
        """Tell the numbers, as Prometheus reads them."""
        pieces = []
        for piece in scrape():
            pieces.append(piece)
            await asyncio.sleep(0)
        return Response("".join(pieces), media_type=PROMETHEUS_TEXT)

    well: dict[HTTPStatus, Answer] = {HTTPStatus.OK: HealthAnswer}
    well_or_not = {**well, HTTPStatus.SERVICE_UNAVAILABLE: HealthAnswer}
    text: dict[HTTPStatus, Answer] = {
        HTTPStatus.OK: Media(
            "text/plain",
            "Metrics in Prometheus' text format",
            "# TYPE millstream_topics gauge\nmillstream_topics 3\n",
        )
    }
    asked = (
        ("/health/live", live, "Is it alive?", well, "live"),
        ("/health/startup", startup, "Has it started?", well_or_not, "started"),
        ("/health/ready", ready, "Does it serve?", well_or_not, "ready"),
    )
    return [
        *(
            HttpOperation(
                "GET",
                path,
                handler,
                words,
                answers,
                tag="node",
                answer_example={"status": good, "problems": []},
            )
            for path, handler, words, answers, good in asked
        ),
        HttpOperation("GET", "/metrics", metrics, "Metrics", text, tag="node"),
    ]


def _status(is_good: bool, good: str, bad: str, problems: Sequence[Problem]) -> Response:  # noqa: FBT001
    told = [HealthProblem(one.code.value, one.message) for one in problems]
    body = HealthAnswer(good if is_good else bad, told)
    return json_response(body, 200 if is_good else 503)
