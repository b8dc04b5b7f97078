"""Turns of the connections that have sent more requests than can start at once.

One connection with a thousand small requests, or a thousand with a few each, must not delay a
single request of another. So

- all of them together start a limited number in one turn of the event loop, and fewer while other
  connections send requests one by one: each of these takes several turns;
- a connection with few requests starts them when they arrive, one with many when its turn comes;
- syncs in flight get the processor after each turn: the kernel's worker runs on the processor that
  the loop has, and would wait for several milliseconds while the loop is never idle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.servers.request_connection import RequestConnection

TURN_REQUESTS_MAX = 64
"""Requests that are started in one turn of the loop if one connection has a backlog."""

SLICE_REQUESTS_MAX = 16
"""The same, of all connections together, if several have a backlog."""

SHORT_SLICE_REQUESTS_MAX = 4
"""The same, while there are also connections without a backlog: about a tenth of a millisecond."""

SHORT_SLICES = 256
"""Turns that are this short after a request of a connection without a backlog."""

ARRIVAL_REQUESTS_MAX = 4
"""Requests of one connection that are started when they arrive, while others have a backlog. One
that has sent more waits for its turn.
"""


class Backlogs:
    """The connections with a backlog, in the order of their turns. Belongs to an event loop."""

    def __init__(self, yield_to_syncs: Callable[[], None] = lambda: None) -> None:
        self._yield_to_syncs = yield_to_syncs
        self._connections: deque[RequestConnection] = deque()
        self._is_scheduled = False
        self._short_slices = 0

    @property
    def is_empty(self) -> bool:
        """Whether no connection waits for its turn."""
        return not self._connections

    def note_arrival(self) -> None:
        """Note that a connection without a backlog has sent a request."""
        self._short_slices = SHORT_SLICES

    def add(self, connection: RequestConnection) -> None:
        """Let a connection start requests in later turns. It must not be in the queue."""
        self._connections.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._yield_to_syncs()
        connections = self._connections
        connection = connections.popleft()
        connection.continue_backlog(self._next_slice())
        if connections:
            self._schedule()

    def _next_slice(self) -> int:
        if self._short_slices:
            self._short_slices -= 1
            return SHORT_SLICE_REQUESTS_MAX
        return SLICE_REQUESTS_MAX if self._connections else TURN_REQUESTS_MAX
