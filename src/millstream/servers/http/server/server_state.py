"""State that all connections of an HTTP server share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.clock import Clock, Timers
from millstream.config.principal_rules import DEFAULT_RULES
from millstream.config.schema import HttpConfig
from millstream.servers.connection_set import ConnectionSet
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.shutdown_signal import ShutdownSignal


class Connection(Protocol):
    """The protocol of one connection, whether HTTP or WebSocket."""

    transport: asyncio.Transport
    is_websocket: bool

    def shutdown(self) -> None:
        """Close now, or after the request in flight."""
        ...


async def _no_app(_: Scope, __: Receive, ___: Send) -> None:
    raise RuntimeError("the server has no application")


@dataclass(slots=True)
class HttpServerState:
    """Limits, clock, counters, connections and the application. Used on the event loop only."""

    config: HttpConfig
    clock: Clock
    timers: Timers
    shutdown: ShutdownSignal = field(default_factory=ShutdownSignal)
    counters: HttpCounters = field(default_factory=HttpCounters)
    connections: ConnectionSet[Connection] = field(default_factory=ConnectionSet)
    app: ASGIApp = _no_app
    """Answers requests. May be replaced while the server runs."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Requests that the application is working on."""
    principal_rules: str = DEFAULT_RULES
    """Rules that name the users of clients that show a certificate."""
    date: str = ""
    """The value of the `Date` header, updated once a second."""
    date_line: bytes = b""
    """The same as a line of a response head."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the application for a request."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
