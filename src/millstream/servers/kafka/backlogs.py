"""Turns of the connections that have sent more requests than can start at once.

One connection with a thousand small requests, or a thousand with a few each, must not delay a
single request of another: so all of them together start a limited number in one turn of the event
loop, and a request that arrives alone does not queue behind them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.servers.kafka.kafka_protocol import KafkaProtocol

TURN_REQUESTS_MAX = 64
"""Requests that are started in one turn of the loop if one connection has a backlog."""

SLICE_REQUESTS_MAX = 16
"""The same, of all connections together, if several have a backlog: less than a millisecond, which
a lone request has to wait several times, as it takes several turns.
"""

ARRIVAL_REQUESTS_MAX = 4
"""Requests of one connection that are started when they arrive, while others have a backlog."""


class Backlogs:
    """The connections with a backlog, in the order of their turns. Belongs to an event loop."""

    def __init__(self) -> None:
        self._connections: deque[KafkaProtocol] = deque()
        self._is_scheduled = False

    def requests_at_arrival(self) -> int:
        """Return how many requests a connection may start when they arrive."""
        return ARRIVAL_REQUESTS_MAX if self._connections else TURN_REQUESTS_MAX

    def add(self, connection: KafkaProtocol) -> None:
        """Let a connection start requests in later turns. It must not be in the queue."""
        self._connections.append(connection)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        connections = self._connections
        connection = connections.popleft()
        connection.continue_backlog(SLICE_REQUESTS_MAX if connections else TURN_REQUESTS_MAX)
        if connections and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)
