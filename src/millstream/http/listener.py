"""Where HTTP clients connect."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

KEEP_ALIVE_SECONDS = 5
DRAIN_SECONDS = 5
"""How long a request that is under way may hold up the end."""

CONNECTIONS_MAX = 1_000
"""Connections at once; beyond, a client gets 503."""


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: when to stop is the node's to say."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpListener:
    """The HTTP door of a node."""

    def __init__(self, app: Starlette) -> None:
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=DRAIN_SECONDS,
                limit_concurrency=CONNECTIONS_MAX,
                ws="none",
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Take connections at `host`; return the port, which the system picks for 0."""
        # Now, and not when the first client comes: there may be no descriptor left for it then.
        self._server.config.load()
        listening = socket.create_server((host, port), family=_family(host), backlog=1024)
        port_taken: int = listening.getsockname()[1]
        serving = self._server.serve(sockets=[listening])
        self._task = asyncio.get_running_loop().create_task(serving)
        return port_taken

    async def stop(self) -> None:
        """Take no more, answer what is under way, and end."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
