"""The HTTP server: its listening socket and all connections."""

from __future__ import annotations

import asyncio
import logging
import ssl
from email.utils import formatdate

from starlette.types import ASGIApp

from millstream.broker.loop_timers import LoopTimers
from millstream.clock import SystemClock, Timer
from millstream.config.schema import HttpConfig
from millstream.servers.acceptor import Acceptor
from millstream.servers.http.server.http_protocol import HttpProtocol
from millstream.servers.http.server.raw_responses import BUSY_RESPONSE
from millstream.servers.http.server.server_state import HttpServerState

logger = logging.getLogger(__name__)

DESCRIPTOR_SHARE = 0.4
"""The part of the process's descriptors that HTTP clients may take. The others are for the log,
which would fail without, and for Kafka clients."""

DRAIN_SECONDS = 5.0
"""How long requests in flight may delay a stop, by default."""

ABORT_SECONDS = 1.0
"""How long cancelled requests have to end."""


class HttpListener:
    """The HTTP server of a node."""

    def __init__(
        self,
        app: ASGIApp,
        state: HttpServerState | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.state = state or HttpServerState(HttpConfig(), SystemClock(), LoopTimers())
        self.state.app = app
        self._acceptor = Acceptor(
            self.state.config,
            self.state.connections,
            lambda: HttpProtocol(self.state),
            on_refused=self._note_refused,
            refusal=BUSY_RESPONSE,
            descriptor_share=DESCRIPTOR_SHARE,
            ssl_context=ssl_context,
            ssl_seconds_max=self.state.config.head_ms_max / 1000,
        )
        self._date: Timer | None = None

    async def listen(self, host: str, port: int) -> int:
        """Accept connections at `host`; return the port, which the system picks for 0."""
        bound_port = await self._acceptor.listen(host, port)
        self._update_date()
        return bound_port

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use another context for new connections: certificates have changed."""
        self._acceptor.use_tls(context)

    def serve(self, app: ASGIApp) -> None:
        """Replace the application for all requests from now on."""
        self.state.app = app

    @property
    def is_exhausted(self) -> bool:
        """Return whether no descriptor was left for the last connection."""
        return self._acceptor.is_exhausted

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        """Accept no more connections, answer requests in flight for so many seconds, and close.

        Idle connections close at once; long polls and streams are notified.
        """
        state = self.state
        state.shutdown.begin()
        self._acceptor.stop()
        if self._date is not None:
            self._date.cancel()
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(seconds):
                await state.connections.wait_until_none()
                while state.tasks:
                    await asyncio.wait(state.tasks)
        except TimeoutError:
            await self._abort()

    async def _abort(self) -> None:
        """Close all connections at once and cancel their requests."""
        connections, tasks = list(self.state.connections), list(self.state.tasks)
        logger.warning("cut off %d connections, %d requests", len(connections), len(tasks))
        for connection in connections:
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=ABORT_SECONDS)

    def _note_refused(self, limit: str) -> None:
        self.state.counters.refused[limit] += 1

    def _update_date(self) -> None:
        """Set the date of responses, once a second."""
        now = formatdate(self.state.clock.wall_ms() / 1000, usegmt=True)
        self.state.date = now
        self.state.date_line = b"date: %b\r\n" % now.encode()
        self._date = self.state.timers.call_later(1.0, self._update_date)
