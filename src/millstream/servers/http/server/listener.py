"""Where HTTP clients connect: the listening socket and all connections that came of it.

The protocols and what they know of ASGI are uvicorn's; taking connections and letting go of them is
done here, since both have to happen at once and within limits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from email.utils import formatdate
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from millstream.broker.loop_timers import LoopTimers
from millstream.clock import SystemClock, Timer
from millstream.config.schema import HttpConfig
from millstream.servers.http.routing.middleware.browser_safety import BrowserSafetyMiddleware
from millstream.servers.http.routing.middleware.request_counts import (
    RequestCountsMiddleware,
    declare_routes,
)
from millstream.servers.http.routing.middleware.tracing import TracingMiddleware
from millstream.servers.http.server.acceptor import BACKLOG, Acceptor
from millstream.servers.http.server.http_protocol import HttpProtocol
from millstream.servers.http.server.server_state import HttpServerState
from millstream.servers.http.server.websocket_protocol import WebSocketProtocol
from millstream.tracing import Tracer

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""How long requests that are under way may hold up the end, where nobody says otherwise."""

ABORT_SECONDS = 1.0
"""How long requests that were cut off have to notice it."""


class HttpListener:
    """The HTTP door of a node."""

    def __init__(
        self,
        app: Starlette,
        doorway: HttpServerState | None = None,
        *,
        tracer: Tracer | None = None,
    ) -> None:
        doorway = doorway or HttpServerState(HttpConfig(), SystemClock(), LoopTimers())
        self.doorway = doorway
        self._app = app
        declare_routes(app.routes, doorway.counters)
        entry: ASGIApp = RequestCountsMiddleware(
            BrowserSafetyMiddleware(self._answer), doorway.counters, doorway.clock
        )
        if tracer is not None:
            entry = TracingMiddleware(entry, tracer)
        self._config = uvicorn.Config(
            entry,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            # Who a client is, is what the system says; anyone can write a header.
            proxy_headers=False,
            ws=partial(WebSocketProtocol, limits=doorway.config),  # type: ignore[arg-type]
            ws_max_size=doorway.config.append_size_max,
            ws_ping_interval=doorway.config.heartbeat_ms / 1000,
            ws_ping_timeout=doorway.config.output_ms_max / 1000,
            ws_per_message_deflate=False,
        )
        self._state = ServerState()
        self._state.connections = doorway.connections
        self._acceptor = Acceptor(doorway, self._make_protocol)
        self._date: Timer | None = None

    async def listen(self, host: str, port: int) -> int:
        """Take connections at `host`; return the port, which the system picks for 0."""
        # Now, and not when the first client comes: there may be no descriptor left for it then.
        self._config.load()
        listening = socket.create_server((host, port), family=_family(host), backlog=BACKLOG)
        port_taken: int = listening.getsockname()[1]
        self._tell_date()
        self._acceptor.listen(listening)
        return port_taken

    def serve(self, app: Starlette) -> None:
        """Have another application answer what is asked from now on."""
        declare_routes(app.routes, self.doorway.counters)
        self._app = app

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @property
    def is_exhausted(self) -> bool:
        """Whether there was no descriptor for the last connection that came."""
        return self._acceptor.is_exhausted

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        """Take no more, answer what is under way within so many seconds, and end.

        Connections that wait for nothing close at once; who keeps a client waiting is told.
        """
        self.doorway.closing.begin()
        self._acceptor.stop()
        if self._date is not None:
            self._date.cancel()
        for connection in list(self.doorway.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(seconds):
                await self.doorway.connections.wait_until_none()
                while self._state.tasks:
                    await asyncio.wait(self._state.tasks)
        except TimeoutError:
            await self._abort()

    async def _abort(self) -> None:
        """End all connections at once."""
        connections, tasks = list(self.doorway.connections), list(self._state.tasks)
        logger.warning("cut off %d connections, %d requests", len(connections), len(tasks))
        for connection in connections:
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=ABORT_SECONDS)

    def _make_protocol(self) -> HttpProtocol:
        return HttpProtocol(self._config, self._state, self.doorway)

    def _tell_date(self) -> None:
        """Have answers tell the time, which is written once a second."""
        now = formatdate(self.doorway.clock.wall_ms() / 1000, usegmt=True)
        self._state.default_headers = [(b"date", now.encode())]
        self._date = self.doorway.timers.call_later(1.0, self._tell_date)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
