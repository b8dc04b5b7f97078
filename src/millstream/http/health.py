"""What operators and their machines ask a node: whether it is well, and its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The format that every version of Prometheus reads."""


class Health(NamedTuple):
    """Whether a node serves its clients, and what is in the way."""

    is_started: bool
    is_ready: bool
    problems: tuple[str, ...] = ()


def health_routes(health: Callable[[], Health], scrape: Callable[[], Iterable[str]]) -> list[Route]:
    """Return the routes; `health` and `scrape` are asked for each answer.

    `scrape` gives its text in pieces. The loop has a turn between two of them, so that no client
    waits for a scrape of many partitions.
    """

    def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    def startup(_: Request) -> Response:
        return _status(health().is_started, "started", "starting", ())

    def ready(_: Request) -> Response:
        found = health()
        return _status(found.is_ready, "ready", "not ready", found.problems)

    async def metrics(_: Request) -> Response:
        pieces = []
        for piece in scrape():
            pieces.append(piece)
            await asyncio.sleep(0)
        return Response("".join(pieces), media_type=PROMETHEUS_TEXT)

    return [
        Route("/health/live", _on_loop(live)),
        Route("/health/startup", _on_loop(startup)),
        Route("/health/ready", _on_loop(ready)),
        Route("/metrics", metrics),
    ]


def _on_loop(endpoint: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Have an endpoint run on the event loop, to which all that it reads belongs."""

    async def run(request: Request) -> Response:
        return endpoint(request)

    return run


def _status(is_good: bool, good: str, bad: str, problems: tuple[str, ...]) -> Response:  # noqa: FBT001
    body = {"status": good if is_good else bad, "problems": list(problems)}
    return JSONResponse(body, status_code=200 if is_good else 503)
