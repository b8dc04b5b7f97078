"""Notices that the client of a long request has disconnected, or that the node stops.

A handler does not learn that its client has disconnected: the server notes it, and the handler
continues. A handler that waits for long, or whose result would be lost, has to watch for it:

    async with watch_disconnect(request) as disconnected:
        await asyncio.wait((work, disconnected), return_when=asyncio.FIRST_COMPLETED)
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.servers.http.routing.request import HttpRequest


class DisconnectReason(enum.Enum):
    """Why a waiting request has to end."""

    CLIENT = "the client disconnected"
    NODE = "the node stops"


@asynccontextmanager
async def watch_disconnect(request: HttpRequest) -> AsyncIterator[asyncio.Future[DisconnectReason]]:
    """Yield a future that is done when the client disconnects or the node stops.

    The body of the request has to be read before: further input is discarded.
    """
    disconnected: asyncio.Future[DisconnectReason] = asyncio.get_running_loop().create_future()

    def close() -> None:
        _settle(disconnected, DisconnectReason.NODE)

    shutdown = request.context.shutdown
    shutdown.watch(close)
    watching = asyncio.create_task(_watch(request, disconnected))
    try:
        yield disconnected
    finally:
        watching.cancel()
        shutdown.unwatch(close)
        disconnected.cancel()


async def _watch(request: HttpRequest, disconnected: asyncio.Future[DisconnectReason]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    _settle(disconnected, DisconnectReason.CLIENT)


def _settle(disconnected: asyncio.Future[DisconnectReason], reason: DisconnectReason) -> None:
    if not disconnected.done():
        disconnected.set_result(reason)
