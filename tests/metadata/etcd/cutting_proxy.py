"""A proxy between a client and etcd that cuts, halves and holds back on command."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from typing import Self
from urllib.parse import urlsplit


class Disturbance(enum.Enum):
    CUT_BEFORE = "the connection is closed before etcd has the request"
    CUT_AFTER = "the connection is closed when etcd has answered, before the answer is passed on"
    HALF = "half of the answer is passed on, then the connection is closed"
    HANG_BEFORE = "etcd never gets the request, and the connection stays open"
    HANG_AFTER = "etcd gets the request, and its answer is never passed on"


MADE = {Disturbance.CUT_AFTER, Disturbance.HALF, Disturbance.HANG_AFTER}
"""Disturbances of which etcd carries out the request."""


class CuttingProxy:
    """Passes everything on, until it is told not to."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[ProxyConnection] = set()
        self._disturbances: dict[str, deque[Disturbance]] = defaultdict(deque)
        self.requests: Counter[str] = Counter()
        """By path."""
        self.heads: dict[str, bytes] = {}
        """The head of the last request, by path."""
        self.bodies: dict[str, bytes] = {}
        self.arrived = asyncio.Event()
        """Set at each request."""

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def accept(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Close all connections, and accept no more."""
        if self._server is not None:
            self._server.close()
            self.cut()
            self._server = None

    def cut(self) -> None:
        """Close all connections."""
        for connection in list(self._connections):
            connection.close()

    def disturb(self, path: str, *disturbances: Disturbance) -> None:
        """Disturb the next requests of a path."""
        self._disturbances[path].extend(disturbances)

    def freeze(self, path: str) -> None:
        """Pass nothing more on of the answers that are under way."""
        for connection in self._connections:
            if connection.path == path:
                connection.disturbance = Disturbance.HANG_AFTER

    def next_disturbance(self, path: str, head: bytes, body: bytes) -> Disturbance | None:
        self.requests[path] += 1
        self.heads[path] = head
        self.bodies[path] = body
        self.arrived.set()
        waiting = self._disturbances[path]
        return waiting.popleft() if waiting else None

    async def wait_for_request(self, path: str, count: int) -> None:
        while self.requests[path] < count:
            self.arrived.clear()
            await self.arrived.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ProxyConnection(self, reader, writer)
        self._connections.add(connection)
        try:
            upstream = await asyncio.open_connection(*self._target)
            await connection.run(*upstream)
        except OSError:
            pass
        finally:
            connection.close()
            self._connections.discard(connection)


class ProxyConnection:
    def __init__(
        self, proxy: CuttingProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.path = ""
        self.disturbance: Disturbance | None = None
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._upstream: asyncio.StreamWriter | None = None
        self._passing: asyncio.Task[None] | None = None

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._upstream = writer
        self._passing = asyncio.ensure_future(self._pass_answers(reader))
        async for path, head, body in self._requests():
            self.path = path
            self.disturbance = self._proxy.next_disturbance(path, head, body)
            match self.disturbance:
                case Disturbance.CUT_BEFORE:
                    return
                case Disturbance.HANG_BEFORE:
                    continue
                case _:
                    writer.write(head + body)

    async def _requests(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        while True:
            try:
                head = await self._reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, OSError):
                return
            lines = head.decode().lower().split("\r\n")
            length = next(
                int(line.partition(":")[2]) for line in lines if line.startswith("content-length")
            )
            yield lines[0].split()[1], head, await self._reader.readexactly(length)

    async def _pass_answers(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                match self.disturbance:
                    case Disturbance.CUT_AFTER:
                        break
                    case Disturbance.HALF:
                        self._writer.write(data[: len(data) // 2])
                        await self._writer.drain()
                        break
                    case Disturbance.HANG_AFTER:
                        continue
                    case _:
                        self._writer.write(data)
        self.close()

    def close(self) -> None:
        for writer in (self._writer, self._upstream):
            if writer is not None:
                writer.close()
        if self._passing is not None and self._passing is not asyncio.current_task():
            self._passing.cancel()
