"""Counts what is asked for, and how long the answers take."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.clock import Clock
from millstream.servers.http.counters import OTHER, HttpCounters, RouteCounter
from millstream.servers.http.routing.operations import OperationRoute
from millstream.servers.http.routing.request_state import is_long_poll


class RequestCountsMiddleware:
    """Counts requests by operation. Stands outside of all that can answer."""

    def __init__(self, app: ASGIApp, counters: HttpCounters, clock: Clock) -> None:
        self._app = app
        self._counters = counters
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count the answer when it begins: a live one may never end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        clock = self._clock
        begun = clock.monotonic()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                took = clock.monotonic() - begun
                method, path = operation_of(scope)
                self._counters.note_answer(
                    method, path, message["status"], took, is_patient=is_long_poll(scope)
                )
            await send(message)

        await self._app(scope, receive, send_counted)


def declare_routes(routes: Iterable[BaseRoute], counters: HttpCounters) -> None:
    """Have every operation counted as not asked for yet, so that it can be seen."""
    for route in routes:
        if isinstance(route, OperationRoute):
            for method in route.declared:
                counters.routes.setdefault((method, route.path), RouteCounter())
    counters.routes.setdefault((OTHER, OTHER), RouteCounter())


def operation_of(scope: Scope) -> tuple[str, str]:
    """Return method and path template of what a request was routed to.

    However clients write them, there are no more of these than operations: what was routed
    nowhere, or by another method, is all one.
    """
    route = scope.get("route")
    method = scope["method"]
    if not isinstance(route, OperationRoute):
        return OTHER, OTHER
    if method == "HEAD" and method not in route.declared:
        method = "GET"
    return (method, route.path) if method in route.declared else (OTHER, OTHER)
