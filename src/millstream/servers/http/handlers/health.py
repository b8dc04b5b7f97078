"""Handlers for operators and their tools: health and metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple

from msgspec import Struct
from starlette.responses import Response

from millstream.broker.access.resources import CLUSTER, Operation
from millstream.broker.problems import Problem
from millstream.errors import NotAuthenticated
from millstream.servers.http.routing.operation_access import OPEN, cluster_access
from millstream.servers.http.routing.operations import Answer, HttpOperation, Media
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

OPEN_METRICS = "application/openmetrics-text"
OPEN_METRICS_TEXT = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
_COUNTER_DECLARATION = re.compile(r"# HELP (\w+)_total (.*\n)# TYPE \1_total counter")

_HIDDEN = "shown to those who may describe the cluster"

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The format that every version of Prometheus reads."""


class Health(NamedTuple):
    """Whether a node has started, and its problems."""

    is_started: bool
    problems: tuple[Problem, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Return whether clients should be sent here: no problem blocks all of them."""
        return not any(problem.code.is_blocking for problem in self.problems)


class HealthProblem(Struct):
    """A problem, whether or not the node is ready in spite of it."""

    code: str
    message: str


class HealthAnswer(Struct):
    """The health of the node."""

    status: str
    problems: list[HealthProblem] = []


def health_operations(
    health: Callable[[], Health], scrape: Callable[[], Iterable[str]]
) -> list[HttpOperation]:
    """Return the operations; `health` and `scrape` are called for each request.

    `scrape` yields its text in pieces. The event loop runs other tasks between two of them, so that
    a scrape of many partitions delays no client.
    """

    async def live(_: HttpRequest) -> Response:
        """Answer as long as the event loop runs."""
        return json_response(HealthAnswer("live"))

    async def startup(request: HttpRequest) -> Response:
        """Return whether the node has started, and what it waits for if not."""
        current = health()
        problems = () if current.is_started else current.problems
        return _status(current.is_started, "started", "starting", _shown(problems, request))

    async def ready(request: HttpRequest) -> Response:
        """Return whether clients are served, and the problems if not."""
        current = health()
        problems = _shown(current.problems, request)
        return _status(current.is_ready, "ready", "not ready", problems)

    async def metrics(request: HttpRequest) -> Response:
        """Return all metrics in the Prometheus text format, or in OpenMetrics if it is accepted."""
        is_open = OPEN_METRICS in request.headers.get("accept", "")
        pieces = []
        for piece in scrape():
            pieces.append(_open_metrics(piece) if is_open else piece)
            await asyncio.sleep(0)
        if is_open:
            pieces.append("# EOF\n")
        return Response(
            "".join(pieces), media_type=OPEN_METRICS_TEXT if is_open else PROMETHEUS_TEXT
        )

    ok: dict[HTTPStatus, Answer] = {HTTPStatus.OK: HealthAnswer}
    ok_or_unavailable = {**ok, HTTPStatus.SERVICE_UNAVAILABLE: HealthAnswer}
    text: dict[HTTPStatus, Answer] = {
        HTTPStatus.OK: Media(
            "text/plain",
            "Metrics in the Prometheus text format",
            "# TYPE millstream_topics gauge\nmillstream_topics 3\n",
        )
    }
    checks = (
        ("/health/live", live, "Is the event loop alive?", ok, "live"),
        ("/health/startup", startup, "Has the node started?", ok_or_unavailable, "started"),
        ("/health/ready", ready, "Is the node ready?", ok_or_unavailable, "ready"),
    )
    return [
        *(
            HttpOperation(
                "GET",
                path,
                handler,
                summary,
                answers,
                tag="node",
                answer_example={"status": good, "problems": []},
                access=OPEN,
            )
            for path, handler, summary, answers, good in checks
        ),
        HttpOperation(
            "GET",
            "/metrics",
            metrics,
            "Get metrics",
            text,
            tag="node",
            access=cluster_access(Operation.DESCRIBE),
        ),
    ]


def _shown(problems: Sequence[Problem], request: HttpRequest) -> Sequence[Problem]:
    """Return problems for the caller: without words, which may name topics, for strangers."""
    context = request.context
    if context is None or context.access is None:
        return problems
    try:
        is_known = request.may(Operation.DESCRIBE, CLUSTER)
    except NotAuthenticated:  # A probe with an old token still learns the state.
        is_known = False
    if is_known:
        return problems
    return [problem._replace(message=_HIDDEN) for problem in problems]


def _open_metrics(piece: str) -> str:
    """Return metrics as OpenMetrics writes them: a counter is declared without `_total`."""
    return _COUNTER_DECLARATION.sub(r"# HELP \1 \2# TYPE \1 counter", piece)


def _status(is_good: bool, good: str, bad: str, problems: Sequence[Problem]) -> Response:  # noqa: FBT001
    listed = [HealthProblem(problem.code.value, problem.message) for problem in problems]
    body = HealthAnswer(good if is_good else bad, listed)
    return json_response(body, 200 if is_good else 503)
