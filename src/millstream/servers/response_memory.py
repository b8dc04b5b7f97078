"""Memory of requests in flight and of responses that clients have not read, over all connections.

A fetch may take a share of what is left, so that the first large ones leave something for the next,
and all together never take more than the limit. Requests that are small can still exceed it, if
there are very many. Then fetches that wait for new records are answered, the oldest first, and
connections are closed whose clients read nothing, the longest of them first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.servers.request_connection import RequestConnection

COUNTED_SHARE = 0.75
"""The share of the limit that what is counted may use. The rest is for what is not: buffers that
are being filled, and what the allocator cannot return.
"""

SHARE = 8
"""A response may take this fraction of the memory that is left."""

SHARE_LEAST = 64 * 1024
"""What a response may take if nothing is left, and one batch if that is larger."""

SHED_FETCHES_MAX = 256
"""Waiting fetches that are answered in one turn of the loop."""

_NOBODY_WAITS: Mapping[Any, Callable[[], None]] = MappingProxyType({})


class ResponseMemory:
    """Counts the memory of one listener. Belongs to an event loop."""

    def __init__(
        self, *, bytes_max: int, waiting: Mapping[Any, Callable[[], None]] = _NOBODY_WAITS
    ) -> None:
        """Make the counter; the values of `waiting` answer fetches that wait for records."""
        self._bytes_max = int(bytes_max * COUNTED_SHARE)
        self._waiting = waiting
        self._unread: dict[RequestConnection, int] = {}
        self._unread_bytes = 0
        self._is_shedding = False
        self.held_bytes = 0
        """Memory of requests in flight, and of responses before they are handed to the socket."""

    @property
    def used_bytes(self) -> int:
        """All memory that counts."""
        return self.held_bytes + self._unread_bytes

    def share(self) -> int:
        """Return how many bytes of records a response may have."""
        return max((self._bytes_max - self.used_bytes) // SHARE, SHARE_LEAST)

    def hold(self, size: int) -> None:
        """Count memory of a request or its response."""
        self.held_bytes += size
        if self.held_bytes + self._unread_bytes > self._bytes_max:
            self._shed_soon()

    def note_unread(self, connection: RequestConnection, size: int) -> None:
        """Count the bytes that the socket of a client does not take; an earlier count ends."""
        self._unread_bytes += size - self._unread.get(connection, 0)
        self._unread[connection] = size
        if self.used_bytes > self._bytes_max:
            self._shed_soon()

    def note_read(self, connection: RequestConnection) -> None:
        """Stop counting: the client has read its responses, or is gone."""
        self._unread_bytes -= self._unread.pop(connection, 0)

    def _shed_soon(self) -> None:
        if not self._is_shedding:
            self._is_shedding = True
            asyncio.get_running_loop().call_soon(self._shed)

    def _shed(self) -> None:
        """Free memory: answer fetches that wait, then close connections that do not read."""
        self._is_shedding = False
        for finish in _first(self._waiting.values(), SHED_FETCHES_MAX):
            if self.used_bytes <= self._bytes_max:
                return
            finish()
        if self._waiting:
            return  # Their memory is free when the responses are sent.
        now = asyncio.get_running_loop().time()
        for connection in sorted(self._unread, key=lambda session: session.stalled_since or now):
            if self.used_bytes <= self._bytes_max:
                return
            if not connection.note_progress(now):
                connection.close("read nothing while the responses of all clients need the memory")


def _first(callbacks: Iterable[Callable[[], None]], count: int) -> list[Callable[[], None]]:
    return list(islice(callbacks, count))
