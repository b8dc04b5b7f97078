"""The ASGI application: checks, routes, measures and answers every request.

Each request passes the same steps in this order, whatever it asks for:

    1. trace      begin a span, if a tracer is set and samples the request
    2. host       421 if `Host` has a name that the server does not answer to
    3. browser    403 if a page of another site had a browser send the request
    4. route      404 or 405 if no operation has the path and method
    5. console    403 if the console sent the request to change something, and may not
    6. rights     401, 403 or 404 if the caller may not do this to the resources of the path
    7. quota      429 if the client owes time or bytes; then measure the handler
    8. handler    call it and send its response; exceptions become error responses. If it says that
                  another node is responsible, that node gets the request instead.

A request that another node has forwarded passed 2 and 3 there, and is charged there. Its caller is
the one that the other node has logged in, and needs the same rights here. If this node
is not responsible for it either, that is raised to the node.

The head of every response passes `_complete_head`, which counts it, adds `Server-Timing` and the
headers that browsers need, and describes the span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.record_appender import AppendTimings
from millstream.clock import Clock
from millstream.errors import (
    CoordinatorLoading,
    NotCoordinator,
    NotLeader,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
)
from millstream.servers.http.counters import OTHER, HttpCounters, RouteCounter
from millstream.servers.http.routing.access_log import log_response
from millstream.servers.http.routing.browser_safety import with_safe_headers
from millstream.servers.http.routing.errors import exception_response
from millstream.servers.http.routing.late_metadata import is_known_by_now
from millstream.servers.http.routing.operations import (
    LIMITED_PREFIX,
    TAKEOVER_SECONDS,
    TAKEOVER_SECONDS_MAX,
    UNTHROTTLED_PATHS,
    Handler,
    HttpOperation,
)
from millstream.servers.http.routing.request import (
    FORWARDED,
    HttpContext,
    HttpRequest,
    with_throttle,
)
from millstream.servers.http.routing.router import Router
from millstream.servers.http.routing.running_requests import RightTaken, RunningRequests
from millstream.servers.http.routing.site_rules import SiteRules
from millstream.servers.http.routing.usage import ClientUsage
from millstream.tracing import Span, Tracer, traced_as

if TYPE_CHECKING:
    from millstream.servers.http.forwarding.request_forwarder import RequestForwarder

TEXT_LENGTH_MAX = 256
"""Characters of a text chosen by the client, such as a path, that are copied to a span."""

CONSOLE_HEADER = b"millstream-console"
"""Set by the console on every request that changes something."""

_WEBSOCKET_STATUS = {
    "websocket.accept": HTTPStatus.SWITCHING_PROTOCOLS,
    "websocket.http.response.start": HTTPStatus.FORBIDDEN,
}
"""Messages that answer the handshake of a WebSocket, with the status if they name none."""

WebSocketHandler = Callable[[WebSocket, HttpContext], Awaitable[None]]


class HttpApp:
    """The application of one server. Used on its event loop only."""

    def __init__(
        self,
        operations: Iterable[HttpOperation],
        clock: Clock,
        counters: HttpCounters,
        *,
        context: HttpContext | None = None,
        websockets: Mapping[str, WebSocketHandler] | None = None,
        tracer: Tracer | None = None,
        sites: SiteRules | None = None,
        has_access_log: bool = False,
        is_starting: bool = False,
        is_console_writable: bool = False,
    ) -> None:
        """Create the application.

        `is_starting` answers 503 instead of 404 for everything that is not among the operations.
        Unless `is_console_writable`, the console may only read.
        """
        self.router = Router(operations)
        self._clock = clock
        self._counters = counters
        self._context = context
        self._websockets = websockets or {}
        self._tracer = tracer
        self._sites = sites or SiteRules()
        self._has_access_log = has_access_log
        self._is_starting = is_starting
        self._is_console_writable = is_console_writable
        self._access = None if context is None else context.access
        self._slots = (
            None if context is None or context.access is None else context.broker.caps.requests
        )
        self._running = RunningRequests(self._access)
        # Every operation is counted from 0, so that it is visible before its first request.
        for path in self.router.paths.values():
            for method in path.operations:
                counters.routes.setdefault((method, path.template), RouteCounter())
        counters.routes.setdefault((OTHER, OTHER), RouteCounter())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or serve one WebSocket."""
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        traceparent = traceparent_in(scope["headers"])
        span = None if self._tracer is None else self._tracer.begin("HTTP", traceparent)
        if span is not None:
            traceparent = span.traceparent
        if traceparent is None:
            await self._respond_to(scope, receive, send, None)
        else:
            with traced_as(traceparent):
                await self._respond_to(scope, receive, send, span)

    async def _respond_to(
        self, scope: Scope, receive: Receive, send: Send, span: Span | None
    ) -> None:
        began = self._clock.monotonic()
        request = HttpRequest(scope, receive, self._context)
        request.span = span
        operation: HttpOperation | None = None
        is_started = False
        error: str | None = None

        def send_response(message: Message) -> Awaitable[None]:
            nonlocal is_started, error
            if message["type"] == "http.response.start":
                is_started = True
                seconds = self._clock.monotonic() - began
                error = self._complete_head(request, operation, message, seconds)
            return send(message)

        try:
            is_preflight = scope["method"] == "OPTIONS"
            if FORWARDED not in scope:
                self._sites.check(scope["headers"], is_preflight=is_preflight)
            if is_preflight and (response := self._preflight_response(scope)) is not None:
                await response(scope, receive, send_response)
                return
            operation = self._route(scope)
            if not self._is_console_writable and operation.method != "GET":
                check_console(scope["headers"])
            await self._handle(request, operation, send_response)
        except RightTaken as taken:
            if is_started:  # The stream ends here, and the client finds out why when it asks again.
                await send_response({"type": "http.response.body", "body": b""})
                return
            await exception_response(taken.error, scope)(scope, receive, send_response)
        except Exception as raised:
            # With the head sent, the connection can only be closed: the caller does that.
            # That another node is responsible is for the node that has forwarded the request.
            is_refusal = isinstance(raised, NotLeader | NotCoordinator)
            if is_started or (is_refusal and FORWARDED in scope):
                raise
            await exception_response(raised, scope)(scope, receive, send_response)
        finally:
            if request.span is not None:
                request.span.end(error)

    # The steps.

    def _preflight_response(self, scope: Scope) -> Response | None:
        """Return the answer to a browser that asks whether a page may send a request."""
        match = self.router.match(scope["path"])
        methods = () if match is None else match.path.methods
        headers = self._sites.preflight_headers(scope["headers"], methods)
        return None if headers is None else Response(status_code=204, headers=headers)

    def _route(self, scope: Scope) -> HttpOperation:
        """Return the operation of a request, and set `path_params`."""
        match = self.router.match(scope["path"])
        if match is None:
            raise self._unrouted(scope)
        operation = match.path.operation(scope["method"])
        if operation is None:
            allowed = ", ".join(match.path.methods)
            message = f"method is not allowed for this path, allowed: {allowed}"
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, message, {"Allow": allowed})
        scope["path_params"] = match.parameters
        return operation

    def _unrouted(self, scope: Scope) -> Exception:
        """Return the error for an unknown path. It repeats nothing of the request."""
        if self._is_starting:
            return Unavailable("the node is starting")
        path: str = scope["path"]
        other = path.rstrip("/") if path.endswith("/") else path + "/"
        if other and self.router.match(other) is not None:
            url = str(URL(scope=scope).replace(path=quote(other)))
            message = "path is known without or with a slash at its end, see Location"
            return HTTPException(HTTPStatus.TEMPORARY_REDIRECT, message, {"Location": url})
        message = "path does not exist; GET /openapi.json lists all paths"
        return HTTPException(HTTPStatus.NOT_FOUND, message)

    async def _handle(self, request: HttpRequest, operation: HttpOperation, send: Send) -> None:
        """Check the rights and quotas, then call the handler and send its response."""
        access = self._access
        if access is not None and not operation.access.is_open:
            check_rights(request, operation)
            slots = self._slots
            with self._running.watched(request):
                if slots is None or FORWARDED in request.scope:  # There it has one already.
                    await self._handle_allowed(request, operation, send)
                else:
                    with slots.taken(request.caller):
                        await self._handle_allowed(request, operation, send)
        else:
            await self._handle_allowed(request, operation, send)

    async def _handle_allowed(
        self, request: HttpRequest, operation: HttpOperation, send: Send
    ) -> None:
        path = operation.path
        usage = request.usage if path.startswith(LIMITED_PREFIX) else None
        if usage is not None and usage.is_free:
            usage = None
        if usage is not None and path not in UNTHROTTLED_PATHS:
            usage.check(QuotaKind.REQUEST, *operation.uses)
        forwarder = None if self._context is None else self._context.forwarder
        if forwarder is None:
            await _respond(operation.handler, request, send, usage)
        else:
            await _respond_in_cluster(forwarder, request, operation, send, usage)

    def _complete_head(
        self,
        request: HttpRequest,
        operation: HttpOperation | None,
        message: Message,
        seconds: float,
    ) -> str | None:
        """Count a response and complete its headers; return the error to report in the span."""
        status: int = message["status"]
        # As many keys as operations: requests that were not routed share one.
        method, path = (OTHER, OTHER) if operation is None else operation[:2]
        self._counters.note_answer(method, path, status, seconds, is_long_poll=request.is_long_poll)
        if self._has_access_log:
            log_response(request.scope, path, status, seconds)
        is_changing = operation is not None and operation.is_audited
        # The node that the request was sent to records it, whichever node has done it.
        if is_changing and status < HTTPStatus.BAD_REQUEST and FORWARDED not in request.scope:
            request.note_changes()
        usage = request.charged
        throttle_ms = 0 if usage is None else usage.throttle_ms
        headers = with_safe_headers(message.get("headers", ()))
        if FORWARDED in request.scope:
            message["is_long_poll"] = request.is_long_poll
        else:
            headers += self._sites.cors_headers(request.scope["headers"])
        if not message.get("is_forwarded"):  # Else the node that responded has set it.
            timing = server_timing(request.timings, throttle_ms, seconds * 1000)
            headers.append((b"server-timing", timing))
        message["headers"] = headers
        if request.span is None:
            return None
        error = describe(request.span, request.scope, method, path, status)
        if message.get("is_resumable"):  # It may last for hours: the span covers its start only.
            request.span.end(error)
        return error

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = self._clock.monotonic()

        def send_response(message: Message) -> Awaitable[None]:
            kind = message["type"]
            if kind == "websocket.http.response.start":
                message["headers"] = with_safe_headers(message.get("headers", ()))
            if self._has_access_log and kind in _WEBSOCKET_STATUS:
                status = message.get("status") or _WEBSOCKET_STATUS[kind]
                log_response(scope, scope["path"], status, self._clock.monotonic() - began)
            return send(message)

        websocket = WebSocket(scope, receive, send_response)
        try:
            self._sites.check(scope["headers"])
        except HTTPException as error:
            await websocket.send_denial_response(exception_response(error, scope))
            return
        handler = self._websockets.get(scope["path"])
        if handler is None or self._context is None:
            await websocket.close()
            return
        await handler(websocket, self._context)


def check_rights(request: HttpRequest, operation: HttpOperation) -> None:
    """Raise unless the caller may use an operation on the resources that the path names."""
    _ = request.caller  # A token that is not valid is refused, whatever it is used for.
    for need in operation.access.needs:
        request.require(need.operation, need.resource(request))


async def _respond(
    handler: Handler, request: HttpRequest, send: Send, usage: ClientUsage | None
) -> None:
    """Call a handler and send its response; the time is charged to `usage`, if given."""
    scope, receive = request.scope, request.receive
    if usage is None:
        response = await handler(request)
        await response(scope, receive, send)
        return
    response = await usage.measured(_call(handler, request))
    usage.settle()
    await usage.measured(response(scope, receive, send))
    usage.settle()


async def _call(handler: Handler, request: HttpRequest) -> Response:
    return await handler(request)


async def _respond_in_cluster(
    forwarder: RequestForwarder,
    request: HttpRequest,
    operation: HttpOperation,
    send: Send,
    usage: ClientUsage | None,
) -> None:
    """Call the handler, or send the request to the node that is responsible for it.

    The handler is called again if nothing was done and that may be different now: a node was
    elected meanwhile, or a topic that another node has created is known here by now.
    """
    body = request.record_body()
    may_forward = operation.is_forwarded and FORWARDED not in request.scope
    deadline = asyncio.get_running_loop().time() + TAKEOVER_SECONDS_MAX
    is_started = False

    def send_response(message: Message) -> Awaitable[None]:
        nonlocal is_started
        is_started = True
        return send(message)

    while True:
        try:
            await _respond(operation.handler, request, send_response, usage)
        except (NotLeader, NotCoordinator) as refusal:  # Nothing was done.
            if is_started or not may_forward:
                raise
            if forwarder.may_forward(refusal):
                response = await forwarder.forward(request, operation, body, refusal)
                if response is not None:
                    await response(request.scope, request.receive, send)
                    return
            # Nobody is responsible now, or this node was elected a moment ago.
            if asyncio.get_running_loop().time() >= deadline:
                raise
            await asyncio.sleep(TAKEOVER_SECONDS)
        except (
            CoordinatorLoading
        ):  # Nothing was done; a node that was just elected reads its state.
            if is_started or asyncio.get_running_loop().time() >= deadline:
                raise
            await asyncio.sleep(TAKEOVER_SECONDS)
        except (UnknownTopic, UnknownQueue) as unknown:
            if is_started or not await is_known_by_now(request, unknown):
                raise
        else:
            return
        body.replay()


def server_timing(timings: AppendTimings | None, throttle_ms: int, total_ms: float) -> bytes:
    """Return the value of `Server-Timing`, in milliseconds.

        commit;dur=0.41, fsync;dur=0.3, throttle;dur=0, total;dur=0.62

    The first three are there if something was written; `throttle` also if the client has to wait
    because of a quota.
    """
    total = f"total;dur={total_ms:.3g}"
    if timings is None:
        return (f"throttle;dur={throttle_ms}, {total}" if throttle_ms else total).encode()
    timings = with_throttle(timings, throttle_ms)
    return (
        f"commit;dur={timings.commit_ms:g}, fsync;dur={timings.fsync_ms:g},"
        f" throttle;dur={timings.throttle_ms:g}, {total}"
    ).encode()


def check_console(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise if the console sent a request that changes something."""
    for name, _ in headers:
        if name == CONSOLE_HEADER:
            message = (
                "the console of this node can only read; to let it change something, start the node"
                " with http.console = write"
            )
            raise HTTPException(HTTPStatus.FORBIDDEN, message)


def traceparent_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the `traceparent` header: the trace that the client's request is part of."""
    for name, value in headers:
        if name == b"traceparent":
            return value.decode("latin-1")
    return None


def describe(span: Span, scope: Scope, method: str, route: str, status: int) -> str | None:
    """Set the name and attributes of a span; return an error text if the node failed."""
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
