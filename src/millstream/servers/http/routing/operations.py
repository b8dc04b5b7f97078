"""What the door can be asked for, declared.

An operation says by which method and path it is reached, which types its query, body and answers
have, and who handles it. The router, the parsing of requests and `/openapi.json` are all made from
that, so the document cannot differ from what the door does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.broker.quotas import QuotaKind
from millstream.servers.http.routing.usage import usage_of

LIMITED_PREFIX = "/v1/"
"""What quotas are charged for. Health, metrics and files of the console are never limited."""

UNTHROTTLED_PATHS = frozenset({"/v1/quotas"})
"""What is charged for and never refused: whoever was locked out by a quota has to get at it."""

Handler = Callable[[Request], Awaitable[Response]]


class Media(NamedTuple):
    """An answer, or a body, that is not JSON of one type."""

    media_type: str
    description: str
    example: str | None = None


Answer = Media | type | None


class Parameter(NamedTuple):
    """A header that an operation reads."""

    name: str
    description: str
    schema: Mapping[str, Any]


class HttpOperation(NamedTuple):
    """One thing that the door can be asked for."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[HTTPStatus, Answer]
    """What is answered where all goes well, by status; `None` is an empty body."""
    query: type[msgspec.Struct] | None = None
    body: Media | type[msgspec.Struct] | None = None
    errors: Sequence[HTTPStatus] = ()
    """What can go wrong here beside what can go wrong everywhere."""
    headers: Sequence[Parameter] = ()
    tag: str = "topics"
    is_body_optional: bool = False
    answer_headers: Sequence[Parameter] = ()
    uses: Sequence[QuotaKind] = ()
    """The quotas that it takes from beside time: who owes one of them is refused."""
    example: Any = None
    """A body, as JSON would have it."""
    answer_example: Any = None
    """What is answered to that, with the first status of `answers`."""


def routes_of(operations: Sequence[HttpOperation]) -> list[Route]:
    """Return the routes, one for each path; what is asked with another method gets 405."""
    by_path = sorted(operations, key=lambda one: one.path)
    found = []
    for path, group in groupby(by_path, key=lambda one: one.path):
        by_method = {one.method: one for one in group}
        found.append(OperationRoute(path, _ByMethod(path, by_method), methods=list(by_method)))
    # A path that takes slashes would swallow those that go on behind it.
    return sorted(found, key=_precedence)


def _precedence(route: Route) -> tuple[bool, int, int]:
    return ":path}" in route.path, route.path.count("{"), -len(route.path)


class OperationRoute(Route):
    """A route that sees at a glance whether a path can be its own.

    Each request is held against one route after the other. To match a pattern takes several times
    as long as to look how the path begins.
    """

    def __init__(self, path: str, endpoint: ASGIApp, *, methods: list[str]) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.declared = tuple(methods)
        """Without the HEAD that goes with every GET."""
        self._start = path.partition("{")[0]
        self._is_whole = self._start == path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Say whether a request is for this route."""
        path = scope["path"]
        if path != self._start if self._is_whole else not path.startswith(self._start):
            return Match.NONE, {}
        return super().matches(scope)


class _ByMethod:
    """What a path does, by method. Errors are left to the application, which has the table."""

    def __init__(self, path: str, operations: Mapping[str, HttpOperation]) -> None:
        self._operations = operations
        self._is_limited = path.startswith(LIMITED_PREFIX)
        self._is_refused = self._is_limited and path not in UNTHROTTLED_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        method = request.method
        if method == "HEAD" and method not in self._operations:
            method = "GET"
        operation = self._operations[method]
        usage = usage_of(request) if self._is_limited else None
        if usage is None or usage.is_free:
            response = await operation.handler(request)
            await response(scope, receive, send)
            return
        if self._is_refused:
            usage.check(QuotaKind.REQUEST, *operation.uses)
        response = await usage.measured(_answered(operation.handler, request))
        usage.settle()
        await usage.measured(response(scope, receive, send))
        usage.settle()


async def _answered(handler: Handler, request: Request) -> Response:
    return await handler(request)
