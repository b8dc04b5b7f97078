"""Whether the other end of a connection is still there, as the kernel knows it."""

from __future__ import annotations

import asyncio
import socket

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
"""Not on every system: there a client that has gone is noticed when something is written."""

_CLOSED, _CLOSE_WAIT = 7, 8
"""States of TCP: the connection was reset, or the other end has closed it."""


def has_peer_gone(transport: asyncio.BaseTransport | None) -> bool:
    """Return whether the other end has closed the connection, though input may wait unread."""
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or _TCP_INFO is None:
        return False
    try:
        state: bytes = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)
    except OSError:
        return False
    return state[0] in {_CLOSED, _CLOSE_WAIT}
