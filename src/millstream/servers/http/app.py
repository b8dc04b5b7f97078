"""The HTTP application of a node: all operations in one table.

A handler parses the request, calls the broker and returns a response. Errors are raised and become
responses in `routing/errors.py`. Operations are declared beside their handlers; the routes and
`/openapi.json` are generated from them. The console at `/` is routed in the same way but not
described, because it is for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from millstream.broker.broker import Broker
from millstream.clock import Clock, SystemClock
from millstream.config.schema import ConsoleAccess, HttpConfig
from millstream.servers.http.console.console_files import console_pages
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.forwarding.request_forwarder import RequestForwarder
from millstream.servers.http.handlers import (
    access,
    node,
    pipelines,
    producers,
    quotas,
    records,
    transactions,
)
from millstream.servers.http.handlers.cluster import breakers, changes, replica_segments, status
from millstream.servers.http.handlers.groups import groups, offset_resets
from millstream.servers.http.handlers.health import Health, health_operations
from millstream.servers.http.handlers.node import NodeReport
from millstream.servers.http.handlers.queues import (
    dead_letters,
    job_browser,
    job_push,
    jobs,
    queues,
)
from millstream.servers.http.handlers.topics import (
    effective_configs,
    readers,
    search,
    segments,
    topics,
)
from millstream.servers.http.live import sse, websocket
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.routing.http_app import HttpApp
from millstream.servers.http.routing.openapi import document
from millstream.servers.http.routing.operation_access import OPEN
from millstream.servers.http.routing.operations import HttpOperation, Media
from millstream.servers.http.routing.request import HttpContext, HttpRequest
from millstream.servers.http.routing.responses import json_response
from millstream.servers.http.routing.site_rules import SiteRules
from millstream.servers.http.routing.usage import QuotaMeter
from millstream.servers.http.shutdown_signal import ShutdownSignal
from millstream.servers.http.streams import operations as stream_operations
from millstream.tracing import Tracer

OPERATIONS: tuple[HttpOperation, ...] = (
    *topics.OPERATIONS,
    *segments.OPERATIONS,
    *effective_configs.OPERATIONS,
    *readers.OPERATIONS,
    *search.OPERATIONS,
    *records.OPERATIONS,
    *producers.OPERATIONS,
    *groups.OPERATIONS,
    *offset_resets.OPERATIONS,
    *queues.OPERATIONS,
    *job_browser.OPERATIONS,
    *jobs.OPERATIONS,
    *job_push.OPERATIONS,
    *dead_letters.OPERATIONS,
    *sse.OPERATIONS,
    *websocket.OPERATIONS,
    *stream_operations.OPERATIONS,
    *pipelines.OPERATIONS,
    *node.OPERATIONS,
    *status.OPERATIONS,
    *replica_segments.OPERATIONS,
    *changes.OPERATIONS,
    *breakers.OPERATIONS,
    *quotas.OPERATIONS,
    *transactions.OPERATIONS,
    *access.OPERATIONS,
)
"""The operations that need a broker."""


def make_app(
    health: Callable[[], Health],
    scrape: Callable[[], Iterable[str]],
    broker: Broker | None = None,
    *,
    config: HttpConfig | None = None,
    shutdown: ShutdownSignal | None = None,
    live: LiveDelivery | None = None,
    node: NodeReport | None = None,
    counters: HttpCounters | None = None,
    tracer: Tracer | None = None,
    forwarder: RequestForwarder | None = None,
    is_local: bool = False,
) -> HttpApp:
    """Return the application; without a broker, it serves health and metrics only.

    `is_local` says that only this machine can reach the server.
    """
    config = config or HttpConfig()
    sites = site_rules(config, is_local=is_local)
    counters = counters or HttpCounters()
    operations = health_operations(health, scrape)
    if broker is None:
        operations.append(_description(operations))
        return HttpApp(
            operations,
            SystemClock(),
            counters,
            tracer=tracer,
            sites=sites,
            has_access_log=config.access_log,
        )
    operations += OPERATIONS
    operations.append(_description(operations))
    if config.console is not ConsoleAccess.OFF:
        operations += console_pages()
    context = HttpContext(
        broker=broker,
        config=config,
        shutdown=shutdown or ShutdownSignal(),
        live=live or LiveDelivery(broker, config),
        meter=QuotaMeter(broker.quotas, broker.clock, counters),
        node=node,
        forwarder=forwarder,
        access=broker.access,
    )
    context.shutdown.watch(broker.streams.end_waits)
    return HttpApp(
        operations,
        broker.clock,
        counters,
        context=context,
        websockets={websocket.PATH: websocket.serve_socket},
        tracer=tracer,
        sites=sites,
        has_access_log=config.access_log,
        is_console_writable=config.console is ConsoleAccess.WRITE,
    )


def site_rules(config: HttpConfig, *, is_local: bool) -> SiteRules:
    """Return the rules that the settings describe."""
    return SiteRules(is_local=is_local, hosts=config.allowed_hosts, origins=config.allowed_origins)


def make_starting_app(
    health: Callable[[], Health],
    config: HttpConfig,
    *,
    clock: Clock,
    counters: HttpCounters,
    tracer: Tracer | None = None,
    is_local: bool = False,
) -> HttpApp:
    """Return the application of a node that is starting.

    It serves health; every other request gets 503, so that clients try again.
    """
    operations = [
        operation
        for operation in health_operations(health, tuple)
        if operation.path.startswith("/health/")
    ]
    sites = site_rules(config, is_local=is_local)
    return HttpApp(
        operations,
        clock,
        counters,
        tracer=tracer,
        sites=sites,
        has_access_log=config.access_log,
        is_starting=True,
    )


def _description(operations: list[HttpOperation]) -> HttpOperation:
    """Return the operation that describes all others and itself.

    The document takes a tenth of a second to make, so the first request makes it, in a thread.
    """

    async def describe_api(_: HttpRequest) -> Response:
        """Return the OpenAPI document of this server."""
        return json_response(await asyncio.to_thread(encoded))

    @cache
    def encoded() -> bytes:
        return msgspec.json.encode(document(described))

    media = Media("application/json", "OpenAPI 3.1", '{"openapi": "3.1.0"}')
    operation = HttpOperation(
        "GET",
        "/openapi.json",
        describe_api,
        "Get this document",
        {HTTPStatus.OK: media},
        tag="node",
        access=OPEN,
    )
    described = (*operations, operation)
    return operation
