"""A network that can be cut, made of TCP proxies on the loopback address.

    clients ──► proxy ──► node 1: Kafka, HTTP
    node 2  ──► proxy ──► node 1: peers
    node 2  ──► proxy ──► etcd

Each party has a name: `clients`, `node-1`, `etcd-0`. A rule applies to the bytes that go from one
party to another, whichever of them opened the connection, so a cut can be one-way. Bytes that meet
a cut are held, and delivered when it heals, as TCP would do by sending them again; but if one side
closes its connection meanwhile, they are dropped, and the other side is disconnected when the cut
heals. A connection that is opened through a cut is accepted, and silent.

Packets cannot be lost in TCP: what a lost one costs is the time until it is sent again. So `loss`
is the share of chunks that arrive `RETRANSMIT_SECONDS` later, with all that follow them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

from millstream.testing.cluster.network import OPEN, ClusterNetwork, LinkRule, NetworkFailed

T = TypeVar("T")

RETRANSMIT_SECONDS = 0.2
"""The shortest time after which Linux sends a lost packet again."""

CHUNK_SIZE_MAX = 64 * 1024
CHUNKS_HELD_MAX = 64
"""Chunks of one direction of a connection that are held. Then its sender has to wait."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, without waiting.


class Network(ClusterNetwork):
    """Proxies between parties, which run in a thread of their own. Close it after use."""

    def __init__(self, seed: int = 0) -> None:
        self._rules: dict[tuple[str, str], LinkRule] = {}
        self._held: Counter[tuple[str, str]] = Counter()
        self._random = random.Random(seed)  # noqa: S311 - chooses what is late.
        self._changed = asyncio.Event()
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="cluster network", daemon=True
        )
        self._thread.start()

    # Rules, from any thread.

    def heal(self) -> None:
        """Remove all rules: what was held is delivered."""
        self._call(self._set_rules({}, is_added=False))

    def set_rules(self, rules: Mapping[tuple[str, str], LinkRule]) -> None:
        """Set rules by source and target. They apply when this returns."""
        self._call(self._set_rules(rules, is_added=True))

    def rule(self, source: str, target: str) -> LinkRule:
        """Return the rule for bytes from `source` to `target`."""
        return self._rules.get((source, target), OPEN)

    def held(self, source: str, target: str) -> int:
        """Return how many bytes are at the head of their queues because of a cut."""
        return self._held[source, target]

    async def _set_rules(
        self, rules: Mapping[tuple[str, str], LinkRule], *, is_added: bool
    ) -> None:
        self._rules = {**self._rules, **rules} if is_added else dict(rules)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # Proxies.

    def add_proxy(
        self, port: int, target: tuple[str, int], target_name: str, source: Callable[[int], str]
    ) -> None:
        """Listen on `port`, and pass connections on to `target`.

        `source` returns the name of the party that opened a connection from the given port.
        """
        self._call(self._listen(port, target, target_name, source))

    async def _listen(
        self, port: int, target: tuple[str, int], target_name: str, source: Callable[[int], str]
    ) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            try:
                name = source(int(writer.get_extra_info("peername")[1]))
                await self._connect(_Side(reader, writer, name), target, target_name)
            except (OSError, LookupError):  # The source or the target is not there any more.
                _reset(writer)
            except asyncio.CancelledError:  # The network is closed; asyncio would report it.
                _reset(writer)

        self._servers.append(
            await asyncio.start_server(accept, "127.0.0.1", port, limit=CHUNK_SIZE_MAX)
        )

    async def _connect(self, source: _Side, target: tuple[str, int], target_name: str) -> None:
        await self._until_open(source.name, target_name)
        reader, writer = await asyncio.open_connection(*target, limit=CHUNK_SIZE_MAX)
        self._writers.add(writer)
        other = _Side(reader, writer, target_name)
        pumps = [
            asyncio.ensure_future(self._pump(source, other)),
            asyncio.ensure_future(self._pump(other, source)),
        ]
        is_complete = False
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            ended, remaining = (source, other) if pumps[0].done() else (other, source)
            is_complete = not self.rule(ended.name, remaining.name).is_cut
            # The other side hears of the end when bytes could reach it.
            await self._until_open(ended.name, remaining.name)
        finally:
            # Before anything is awaited: the network may be closed meanwhile, which cancels this.
            for writer in (source.writer, other.writer):
                if is_complete:
                    writer.close()
                else:  # Bytes were dropped: no reader may take this for a proper end.
                    _reset(writer)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: _Side, target: _Side) -> None:
        """Pass bytes on until `source` ends, or one of the connections breaks."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_HELD_MAX)
        delivery = asyncio.ensure_future(self._deliver(chunks, source.name, target))
        due = 0.0
        try:
            while data := await source.reader.read(CHUNK_SIZE_MAX):
                rule = self.rule(source.name, target.name)
                delay_s = rule.delay_s
                if rule.loss and self._random.random() < rule.loss:
                    delay_s += RETRANSMIT_SECONDS
                due = max(due, time.monotonic() + delay_s)  # Later bytes do not overtake.
                await chunks.put((due, data))
            if not self.rule(source.name, target.name).is_cut:
                await chunks.join()
        except OSError:
            pass
        finally:
            delivery.cancel()
            await asyncio.gather(delivery, return_exceptions=True)

    async def _deliver(
        self, chunks: asyncio.Queue[tuple[float, bytes]], source: str, target: _Side
    ) -> None:
        try:
            while True:
                due, data = await chunks.get()
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                if self.rule(source, target.name).is_cut:
                    await self._hold(source, target.name, len(data))
                target.writer.write(data)
                await target.writer.drain()
                chunks.task_done()
        except OSError:
            target.writer.close()  # Ends the pump in the other direction, and so the connection.

    async def _hold(self, source: str, target: str, size: int) -> None:
        self._held[source, target] += size
        try:
            await self._until_open(source, target)
        finally:
            self._held[source, target] -= size

    async def _until_open(self, source: str, target: str) -> None:
        while self.rule(source, target).is_cut:
            await self._changed.wait()

    # The thread.

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End all connections and the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await asyncio.sleep(0)  # Connections that were just accepted begin, and are ended as well.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:  # Also those that still wait for a reader.
            writer.transport.abort()
        # Transports close their sockets in later turns of the loop.
        while any(_is_open(writer) for writer in self._writers):  # noqa: ASYNC110
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two connections of a proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: str


def _is_open(writer: asyncio.StreamWriter) -> bool:
    return bool(writer.get_extra_info("socket").fileno() >= 0)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once (RST), without what was not sent yet."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def process_of_connection(port: int, target: int, pids: Mapping[str, int]) -> str:
    """Return the name of the process that opened a connection from `port` to the port `target`.

    Both are ports of the loopback address. Raises `LookupError` if none of the processes has it.
    """
    socket_link = f"socket:[{_inode(port, target)}]"
    for name, pid in pids.items():
        folder = f"/proc/{pid}/fd"
        try:
            for descriptor in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(f"{folder}/{descriptor}") == socket_link:
                        return name
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended.
    raise LookupError(f"no node has a connection from port {port}")


def _inode(port: int, target: int) -> str:
    """Return the inode of the socket that is connected from `port` to `target`."""
    ends = [f"0100007F:{end:04X}" for end in (port, target)]
    try:
        with open("/proc/net/tcp", encoding="ascii") as table:
            next(table)
            for line in table:
                columns = line.split()
                if columns[1:3] == ends and columns[3] in _CONNECTED:
                    return columns[9]
    except FileNotFoundError:
        raise NetworkFailed("the network of a test cluster needs Linux: no /proc/net/tcp") from None
    raise LookupError(f"nothing is connected from port {port}")


_CONNECTED = ("01", "04", "05", "08")  # ESTABLISHED, and those that are being closed.
