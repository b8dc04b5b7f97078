"""Requests over HTTP, followed: one span for each that is sampled, or that its client follows.

It stands outside of everything else, and only where a node traces. An answer that goes on for long,
as a live one, ends its span when it begins; any other when its last byte was handed over.
WebSockets are not followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.servers.http.routing.middleware.request_counts import operation_of
from millstream.servers.http.routing.request_state import SPAN, is_resumable
from millstream.tracing import Span, Tracer

TEXT_LENGTH_MAX = 256
"""Characters of what clients choose, as a path: the rest is cut off."""


class TracingMiddleware:
    """Follows requests."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and follow that where it is to be."""
        span = None
        if scope["type"] == "http":
            span = self._tracer.begin("HTTP", traceparent_in(scope["headers"]))
        if span is None:
            await self._app(scope, receive, send)
            return
        scope[SPAN] = span
        error: str | None = None

        async def send_followed(message: Message) -> None:
            nonlocal error
            if message["type"] == "http.response.start":
                error = describe(span, scope, message["status"])
                if is_resumable(scope):
                    span.end(error)
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                span.end(error)

        try:
            await self._app(scope, receive, send_followed)
        finally:
            span.end(error)


def traceparent_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return what a client says of the trace that its request is part of."""
    for name, value in headers:
        if name == b"traceparent":
            return value.decode("latin-1")
    return None


def describe(span: Span, scope: Scope, status: int) -> str | None:
    """Say what was asked for and how it ended; return what of ours went wrong, if anything."""
    method, route = operation_of(scope)
    span.rename(f"{method} {route}")
    span.set_attribute("http.request.method", method)
    span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    span.set_attribute("url.scheme", scope.get("scheme", "http"))
    span.set_attribute("url.path", scope["path"][:TEXT_LENGTH_MAX])
    if scope.get("client"):
        span.set_attribute("client.address", str(scope["client"][0]))
    for name, value in (scope.get("path_params") or {}).items():
        span.set_attribute(f"millstream.{name}", str(value)[:TEXT_LENGTH_MAX])
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    span.set_attribute("error.type", str(status))
    return f"answered with {status}"
