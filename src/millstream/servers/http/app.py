"""The HTTP door: every operation, in one table.

A handler parses, makes its call to the broker, and answers. What goes wrong is raised, and becomes
an answer in `errors.py`. What there is to ask for is declared beside the handlers; the routes and
`/openapi.json` are made from that. The console at `/` is routed in the same way, and not described:
it is for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from millstream.broker.broker import Broker
from millstream.clock import SystemClock
from millstream.config.schema import HttpConfig
from millstream.errors import Unavailable
from millstream.servers.http.console.console_files import console_pages
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.handlers import node, pipelines, producers, quotas, records
from millstream.servers.http.handlers.groups import groups
from millstream.servers.http.handlers.groups import offset_resets as group_resets
from millstream.servers.http.handlers.health import Health, health_operations
from millstream.servers.http.handlers.queues import job_browser as queue_jobs
from millstream.servers.http.handlers.queues import job_push as work
from millstream.servers.http.handlers.queues import jobs, queues
from millstream.servers.http.handlers.topics import segments as topic_sizes
from millstream.servers.http.handlers.topics import topics
from millstream.servers.http.live import sse
from millstream.servers.http.live import websocket as socket
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.routing.errors import EXCEPTION_HANDLERS
from millstream.servers.http.routing.middleware.local_hosts import LocalHostsMiddleware
from millstream.servers.http.routing.middleware.server_timing import ServerTimingMiddleware
from millstream.servers.http.routing.openapi import document
from millstream.servers.http.routing.operations import HttpOperation, Media, routes_of
from millstream.servers.http.routing.request_state import json_response
from millstream.servers.http.routing.usage import QuotaMeter
from millstream.servers.http.shutdown_signal import ShutdownSignal
from millstream.servers.http.streams import operations as streams

OPERATIONS: tuple[HttpOperation, ...] = (
    *topics.OPERATIONS,
    *topic_sizes.OPERATIONS,
    *records.OPERATIONS,
    *producers.OPERATIONS,
    *groups.OPERATIONS,
    *group_resets.OPERATIONS,
    *queues.OPERATIONS,
    *queue_jobs.OPERATIONS,
    *jobs.OPERATIONS,
    *work.OPERATIONS,
    *sse.OPERATIONS,
    *socket.OPERATIONS,
    *streams.OPERATIONS,
    *pipelines.OPERATIONS,
    *node.OPERATIONS,
    *quotas.OPERATIONS,
)
"""What needs a broker."""


def make_app(
    health: Callable[[], Health],
    scrape: Callable[[], Iterable[str]],
    broker: Broker | None = None,
    *,
    config: HttpConfig | None = None,
    closing: ShutdownSignal | None = None,
    live: LiveDelivery | None = None,
    known: node.NodeReport | None = None,
    counters: HttpCounters | None = None,
    is_local: bool = False,
) -> Starlette:
    """Return the application; without a broker, it tells health and metrics only.

    `known` is what the node knows of itself. `is_local` has the door answer to names of this
    machine only.
    """
    config = config or HttpConfig()
    operations = health_operations(health, scrape)
    sockets: tuple[WebSocketRoute, ...] = ()
    if broker is not None:
        operations += OPERATIONS
        sockets = socket.ROUTES
    operations.append(_description(operations))
    pages = console_pages() if broker is not None and config.console else []
    clock = broker.clock if broker is not None else SystemClock()
    middleware = [Middleware(ServerTimingMiddleware, clock=clock)]
    if is_local:
        middleware.append(Middleware(LocalHostsMiddleware))
    app = Starlette(
        routes=[*sockets, *routes_of([*operations, *pages])],
        middleware=middleware,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.broker = broker
    app.state.config = config
    app.state.closing = closing or ShutdownSignal()
    app.state.node = known
    if broker is not None:
        app.state.live = live or LiveDelivery(broker, config)
        app.state.meter = QuotaMeter(broker.quotas, broker.clock, counters or HttpCounters())
        app.state.closing.watch(broker.streams.end_waits)
    return app


def make_starting_app(health: Callable[[], Health], *, is_local: bool = False) -> Starlette:
    """Return the application of a node that starts: it tells its health, and refuses the rest."""
    told = [one for one in health_operations(health, tuple) if one.path.startswith("/health/")]
    return Starlette(
        routes=[*routes_of(told), Route("/{path:path}", _StartingApp())],
        middleware=[Middleware(LocalHostsMiddleware)] if is_local else [],
        exception_handlers=EXCEPTION_HANDLERS,
    )


class _StartingApp:
    """Refuses what is asked for before the data is open; clients try again."""

    async def __call__(self, _: Scope, __: Receive, ___: Send) -> None:
        raise Unavailable("the node is starting")


def _description(operations: list[HttpOperation]) -> HttpOperation:
    """Return the operation that tells of all others, and of itself."""
    found: list[bytes] = []

    async def describe_door(_: Request) -> Response:
        """Tell what the door can be asked for."""
        return json_response(found[0])

    described = Media("application/json", "OpenAPI 3.1", '{"openapi": "3.1.0"}')
    one = HttpOperation(
        "GET",
        "/openapi.json",
        describe_door,
        "This document",
        {HTTPStatus.OK: described},
        tag="node",
    )
    found.append(msgspec.json.encode(document([*operations, one])))
    return one
