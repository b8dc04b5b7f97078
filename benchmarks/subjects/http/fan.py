"""The least that live delivery could cost: sync a record, then write one event to every watcher.

    fan.py FILE SIZE      an event has SIZE bytes

Who sends a GET watches; who sends a POST has its bytes written to FILE and synced, and then
everybody is told. It prints `port N` and runs until it is ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import cast

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_ANSWER = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n"


class Fan(asyncio.Protocol):
    """One connection."""

    def __init__(self, watchers: list[asyncio.Transport], descriptor: int, event: bytes) -> None:
        self._watchers = watchers
        self._descriptor = descriptor
        self._event = event

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        """Forget it."""
        if self._transport in self._watchers:
            self._watchers.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        """Register a watcher, or notify all watchers."""
        if data.startswith(b"GET"):
            self._watchers.append(self._transport)
            self._transport.write(_HEAD + self._event)
            return
        os.write(self._descriptor, data)
        os.fdatasync(self._descriptor)
        for watcher in self._watchers:
            watcher.write(self._event)
        self._transport.write(_ANSWER)


async def serve(path: str, size: int) -> None:
    """Serve until the process is ended."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    body = b"event: records\ndata: " + b"x" * size + b"\n\n"
    event = b"%x\r\n%s\r\n" % (len(body), body)
    watchers: list[asyncio.Transport] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: Fan(watchers, descriptor, event), "127.0.0.1", 0
    )
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
