"""How connections come in: as many as there may be, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable

from millstream.servers.http.server.raw_responses import BUSY_RESPONSE
from millstream.servers.http.server.server_state import HttpServerState

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that may wait to be accepted."""

TURN_MAX = 64
"""Connections that are accepted in one turn of the loop; then others have theirs."""

PAUSE_SECONDS = 0.2
"""How long no connection is accepted when there are no descriptors left."""

DESCRIPTOR_SHARE = 0.4
"""How many of the descriptors that the process may have its HTTP clients may take. The others are
for the log, which would fail without, and for Kafka's clients."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Takes connections from a listening socket, which it owns."""

    def __init__(
        self, doorway: HttpServerState, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._doorway = doorway
        self._make_protocol = make_protocol
        self._socket: socket.socket | None = None
        self._arriving: Counter[str] = Counter()
        """Accepted, and not connected to their protocol yet, by address."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._descriptors_max = 0
        self.is_exhausted = False
        """Whether there was no descriptor for the last connection that came."""

    def listen(self, listening: socket.socket) -> None:
        """Take connections from now on."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._descriptors_max = max(1, int(soft * DESCRIPTOR_SHARE))
        self._socket = listening
        listening.setblocking(False)  # noqa: FBT003
        self._resume()

    def stop(self) -> None:
        """Take no more."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        """Accept what waits, a bounded number at a time."""
        assert self._socket is not None
        for _ in range(TURN_MAX):
            try:
                connection, peer = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                self.is_exhausted = False  # The system looks for a descriptor first.
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                return
            address = str(peer[0])
            if (reason := self._why_not(address)) is None:
                self._take(connection, address)
            else:
                self._doorway.counters.refused[reason] += 1
                _turn_away(connection)

    def _why_not(self, address: str) -> str | None:
        """Return why no connection may come from there at present; `None` where one may."""
        config, connections = self._doorway.config, self._doorway.connections
        count = len(connections) + self._arriving.total()
        if count >= config.connections_max:
            return "connections"
        if count >= self._descriptors_max:
            return "descriptors"
        if (
            connections.count_of(address) + self._arriving[address]
            >= config.connections_per_address_max
        ):
            return "address"
        return None

    def _take(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)  # noqa: FBT003
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._doorway.counters.accepted += 1
        self._arriving[address] += 1
        task = asyncio.get_running_loop().create_task(self._connect(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            logger.info("%s: connection lost at once: %s", address, error)
        finally:
            self._arriving[address] -= 1
            if not self._arriving[address]:
                del self._arriving[address]

    def _pause(self, error: OSError) -> None:
        """Wait a moment instead of spinning: the connections wait in the kernel meanwhile."""
        self.is_exhausted = True
        logger.warning("no connection accepted for %s s: %s", PAUSE_SECONDS, error)
        assert self._socket is not None
        asyncio.get_running_loop().remove_reader(self._socket)
        self._doorway.timers.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)


def _turn_away(connection: socket.socket) -> None:
    """Close a connection, and say why where that costs no waiting."""
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)  # noqa: FBT003
        connection.send(BUSY_RESPONSE)
