"""The least that could answer: the listener of a node before an application that does nothing.

    empty.py SIZE      reads each body to its end, and answers with SIZE bytes

It prints `port N` and runs until it is ended.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.servers.http.server.listener import HttpListener


async def serve(size: int) -> None:
    """Answer until the process is ended."""
    answer = bytes(size)

    async def handle(request: Request) -> Response:
        async for _ in request.stream():
            pass
        return Response(answer)

    app = Starlette(routes=[Route("/{path:path}", handle, methods=["POST"])])
    port = await HttpListener(app).listen("127.0.0.1", 0)
    print(f"port {port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
