"""Accepts connections for a server, within its limits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from millstream.servers.client_host import client_host
from millstream.servers.connection_set import ConnectionSet

logger = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that may wait in the kernel. Kafka has 50; a burst of test clients needs more."""

TURN_MAX = 64
"""Connections that are accepted in one turn of the event loop."""

PAUSE_SECONDS = 0.2
"""How long no connection is accepted after the descriptors ran out."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""Not on every system."""


class ConnectionLimits(Protocol):
    """The settings of a server that the acceptor obeys."""

    @property
    def connections_max(self) -> int:
        """Connections in all."""
        ...

    @property
    def connections_per_address_max(self) -> int:
        """Connections from one address."""
        ...


class Acceptor:
    """Accepts connections from one listening socket. Used on the event loop only.

    A protocol adds itself to `connections` when it is connected, and removes itself when it is not.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        connections: ConnectionSet[Any],
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        on_refused: Callable[[str], None],
        refusal: bytes = b"",
        descriptor_share: float | None = None,
        unsent_bytes_max: int | None = None,
        ssl_context: ssl.SSLContext | None = None,
        ssl_seconds_max: float = 10.0,
    ) -> None:
        """Create an acceptor that does not listen yet.

        `on_refused` is called with the limit that a refused connection exceeds: `connections`,
        `descriptors` or `address`; the client is sent `refusal`. With an `ssl_context`, connections
        are encrypted; `on_refused` is called with `tls` for those that did not get there within
        `ssl_seconds_max`. `descriptor_share` is the part of
        the descriptors of the process that connections may take. `unsent_bytes_max` limits what
        the kernel takes of a connection's output before it can be sent, which may be megabytes.
        """
        self.is_exhausted = False
        """Whether no descriptor was left for the last connection."""
        self._limits = limits
        self._connections = connections
        self._make_protocol = make_protocol
        self._on_refused = on_refused
        self._refusal = refusal
        self._descriptor_share = descriptor_share
        self._unsent_bytes_max = unsent_bytes_max
        self._ssl_context = ssl_context
        self._ssl_seconds_max = ssl_seconds_max
        self._descriptors_max: int | None = None
        self._socket: socket.socket | None = None
        self._connecting: Counter[str] = Counter()
        """Accepted and not connected to their protocol yet, by address."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Accept connections at `host`; return the port, which the system picks for 0."""
        if self._descriptor_share is not None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._descriptors_max = max(1, int(soft * self._descriptor_share))
        self._socket = await _listening_socket(host, port)
        if self._unsent_bytes_max is not None and _NOTSENT_LOWAT is not None:
            # Connections inherit it.
            self._socket.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, self._unsent_bytes_max)
        self._resume()
        bound_port: int = self._socket.getsockname()[1]
        return bound_port

    def stop(self) -> None:
        """Accept no more connections."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _accept(self) -> None:
        """Accept the connections that wait, a bounded number at a time."""
        assert self._socket is not None
        for _ in range(TURN_MAX):
            try:
                connection, peer = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                # The kernel takes a descriptor before it looks for a connection: there is one.
                self.is_exhausted = False
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(error)
                return
            address = client_host(peer)
            if (limit := self._exceeded_limit(address)) is None:
                self._take(connection, address)
            else:
                self._on_refused(limit)
                self._refuse(connection)

    def _exceeded_limit(self, address: str) -> str | None:
        limits, connections = self._limits, self._connections
        count = len(connections) + self._connecting.total()
        if count >= limits.connections_max:
            return "connections"
        if self._descriptors_max is not None and count >= self._descriptors_max:
            return "descriptors"
        count = connections.count_of(address) + self._connecting[address]
        return "address" if count >= limits.connections_per_address_max else None

    def _take(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)  # noqa: FBT003
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connecting[address] += 1
        task = asyncio.get_running_loop().create_task(self._connect(connection, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Show another certificate from now on; connections that exist go on as they are."""
        self._ssl_context = context

    async def _connect(self, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        context = self._ssl_context
        try:
            await loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._ssl_seconds_max,
            )
        except OSError as error:
            if context is None:
                logger.info("%s: connection lost immediately: %s", address, error)
            else:
                self._on_refused("tls")
                logger.info("%s: no TLS connection: %s", address, _tls_reason(error))
        finally:
            self._connecting[address] -= 1
            if not self._connecting[address]:
                del self._connecting[address]

    def _refuse(self, connection: socket.socket) -> None:
        """Close a connection; tell the client why if that does not block."""
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)  # noqa: FBT003
            connection.send(self._refusal)

    def _pause(self, error: OSError) -> None:
        """Wait a moment instead of spinning. Connections wait in the kernel meanwhile."""
        self.is_exhausted = True
        logger.warning("no connections are accepted for %s s: %s", PAUSE_SECONDS, error)
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)


def _tls_reason(error: OSError) -> str:
    """Return why there is no TLS connection, without OpenSSL's file names and numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the client is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error) or "the client has closed the connection"


async def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the first address of `host`, IPv4 if it has one."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = min(
        addresses, key=lambda info: info[0] is not socket.AF_INET
    )
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)  # noqa: FBT003
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
