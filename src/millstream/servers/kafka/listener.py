"""Where Kafka clients connect: the listening socket and all connections that came of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections import Counter

from millstream.broker.broker import Broker
from millstream.config.schema import KafkaConfig
from millstream.servers.kafka.apis import HANDLERS
from millstream.servers.kafka.block_pool import BlockPool
from millstream.servers.kafka.counters import KafkaCounters
from millstream.servers.kafka.dispatcher import Dispatcher
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.kafka_protocol import KafkaProtocol
from millstream.tracing import Tracer

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that may wait to be accepted. Kafka has 50; a burst of test clients needs more."""

SWEEP_SECONDS_MAX = 1.0
"""How often deadlines are looked at, at the least."""

ACCEPT_PAUSE_SECONDS = 0.2
"""How long no connection is accepted when there are no descriptors left."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class KafkaListener:
    """The Kafka door of a node."""

    def __init__(
        self, broker: Broker, config: KafkaConfig | None = None, *, tracer: Tracer | None = None
    ) -> None:
        self.config = config or KafkaConfig()
        self.counters = KafkaCounters()
        self.blocks = BlockPool(bytes_max=self.config.receive_bytes_max)
        self.fetch_sessions = FetchSessions(self.config.fetch_sessions_max)
        self.dispatcher = Dispatcher(
            broker,
            HANDLERS,
            config=self.config,
            fetch_sessions=self.fetch_sessions,
            counters=self.counters,
            tracer=tracer,
        )
        self.is_draining = False
        self.is_exhausted = False
        """Whether there was no descriptor for the last connection that came."""
        self._sessions: set[KafkaProtocol] = set()
        self._by_host: Counter[str] = Counter()
        self._sockets: list[socket.socket] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    # Listening.

    async def listen(self, host: str, port: int) -> int:
        """Take connections at `host`; return the port, which the system picks for 0."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found[:1]:
            listening = socket.socket(family, kind, protocol)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sockets.append(listening)
            listening.setblocking(False)  # noqa: FBT003
            listening.bind(address)
            listening.listen(BACKLOG)
            loop.add_reader(listening, self._accept, listening)
        self._sweep_later()
        port_taken: int = self._sockets[0].getsockname()[1]
        return port_taken

    def _accept(self, listening: socket.socket) -> None:
        """Accept what waits, a bounded number at a time."""
        for _ in range(BACKLOG):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                self.is_exhausted = False  # The system looks for a descriptor first.
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause_accepting(listening, error)
                return
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)  # noqa: FBT003
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            loop.connect_accepted_socket(lambda: KafkaProtocol(self), connection)
        )
        task.add_done_callback(_connected)

    def _pause_accepting(self, listening: socket.socket, error: OSError) -> None:
        """Wait a moment instead of spinning: the connections wait in the kernel meanwhile."""
        self.is_exhausted = True
        logger.warning("no connection accepted for %s s: %s", ACCEPT_PAUSE_SECONDS, error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting, listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    # Connections.

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._sessions)

    def admit(self, session: KafkaProtocol) -> bool:
        """Whether one more connection may be, and count it if so."""
        config = self.config
        if (
            self.is_draining
            or len(self._sessions) >= config.connections_max
            or self._by_host[session.host] >= config.connections_per_address_max
        ):
            self.counters.refused += 1
            return False
        self._sessions.add(session)
        self._by_host[session.host] += 1
        self.counters.accepted += 1
        return True

    def forget(self, session: KafkaProtocol) -> None:
        """A connection has ended."""
        if session not in self._sessions:
            return
        self._sessions.remove(session)
        self._by_host[session.host] -= 1
        if not self._by_host[session.host]:
            del self._by_host[session.host]
        if not self._sessions and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _sweep_later(self) -> None:
        config = self.config
        shortest_ms = min(
            config.handshake_ms_max,
            config.request_ms_max,
            config.idle_ms_max,
            config.output_ms_max,
        )
        seconds = min(SWEEP_SECONDS_MAX, shortest_ms / 4000)
        self._sweep = asyncio.get_running_loop().call_later(seconds, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now = asyncio.get_running_loop().time()
        for session in list(self._sessions):
            session.check_deadlines(now)
        self._sweep_later()

    # Stopping.

    def stop_accepting(self) -> None:
        """Take no more connections."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        if self._sweep is not None:
            self._sweep.cancel()

    async def drain(self) -> None:
        """Take nothing new, answer what is under way, and return when all connections ended."""
        self.is_draining = True
        self.stop_accepting()
        if self._sessions:
            self._emptied = asyncio.get_running_loop().create_future()
            self.fetch_sessions.answer_all_waiting()
            for session in list(self._sessions):
                session.drain()
            await self._emptied

    def abort(self) -> None:
        """End all connections at once."""
        self.is_draining = True
        self.stop_accepting()
        for session in list(self._sessions):
            session.close("the node stops")


def _connected(task: asyncio.Task[tuple[asyncio.Transport, KafkaProtocol]]) -> None:
    """Look at how a connection began; one that ended at once is no news."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.info("connection lost at once: %s", error)
