"""Whether somebody still waits for an answer, for handlers that take their time.

A client that went away is told to nobody: the server notes it, and the handler goes on. Whoever
waits for long, or would hand something out at the end, listens for it meanwhile, and for the door
that closes:

    async with listen(request) as leaving:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.servers.http.routing.request import HttpRequest


class DisconnectReason(enum.Enum):
    """Why a request that waits has come to its end."""

    CLIENT = "the client went away"
    NODE = "the node stops"


@asynccontextmanager
async def watch_disconnect(request: HttpRequest) -> AsyncIterator[asyncio.Future[DisconnectReason]]:
    """Give a future that is done once the client went away, or the door closes.

    The body of the request has to be read before: what comes of it from here on is thrown away.
    """
    leaving: asyncio.Future[DisconnectReason] = asyncio.get_running_loop().create_future()

    def close() -> None:
        _settle(leaving, DisconnectReason.NODE)

    closing = request.context.shutdown
    closing.watch(close)
    listening = asyncio.create_task(_watch(request, leaving))
    try:
        yield leaving
    finally:
        listening.cancel()
        closing.unwatch(close)
        leaving.cancel()


async def _watch(request: HttpRequest, leaving: asyncio.Future[DisconnectReason]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    _settle(leaving, DisconnectReason.CLIENT)


def _settle(leaving: asyncio.Future[DisconnectReason], why: DisconnectReason) -> None:
    if not leaving.done():
        leaving.set_result(why)
