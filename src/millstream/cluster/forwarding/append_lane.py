"""The order of the batches of one partition on their way to its leader.

    enter ──► one at a time, the oldest first ──► sent ──► in flight ──► ended
      ▲                                                        │
      └──────────── refused: another node leads ◄──────────────┘

Rules:

1. Batches are sent in the order of their tickets.
2. While batches are in flight to one node, none is sent to another. A batch that is refused goes
   back with its old ticket, so it is sent again before those that came after it.
3. A node that does not answer must not block the partition after another one was elected: after
   `DRAIN_SECONDS`, batches go to the new leader. Those that were in flight then are out of order:
   they are not sent again.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import NamedTuple

from millstream.clock import Timer, Timers

DRAIN_SECONDS = 1.0
"""How long batches for a new leader wait for those that are in flight to the old one. A node that
hands over answers at once."""


class _Waiting(NamedTuple):
    """A batch that waits to be sent."""

    ticket: int
    node_id: int
    turn: asyncio.Future[None]


class AppendLane:
    """The batches of one partition. Used on one event loop."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._tickets = 0
        self._waiting: list[_Waiting] = []
        """A heap, by ticket."""
        self._is_sending = False
        self._node_id = -1
        """Where the batches in flight were sent."""
        self._in_flight = 0
        self._generation = 0
        self._timer: Timer | None = None

    def take_ticket(self) -> int:
        """Return the place of a new batch: behind all others."""
        self._tickets += 1
        return self._tickets

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._is_sending or self._in_flight)

    async def enter(self, ticket: int, node_id: int) -> None:
        """Return when the batch with this ticket may be sent to a node. `sent` has to follow."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, _Waiting(ticket, node_id, turn))
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # It was its turn already.
                self._is_sending = False
            self._next()
            raise

    def sent(self, *, is_in_flight: bool) -> int:
        """Let the next batch be sent; return a generation for `ended` if this one is in flight."""
        self._is_sending = False
        self._in_flight += is_in_flight
        self._next()
        return self._generation

    def ended(self, generation: int) -> bool:
        """Take note of a response; return whether the batch may still be sent again in order."""
        if generation != self._generation:
            return False
        self._in_flight -= 1
        if not self._in_flight:
            # The caller may enter again in this turn of the loop, ahead of those that wait.
            asyncio.get_running_loop().call_soon(self._next)
        return True

    def _next(self) -> None:
        """Give the oldest batch its turn, if it may be sent."""
        while self._waiting and self._waiting[0].turn.cancelled():
            heapq.heappop(self._waiting)
        if self._is_sending or not self._waiting:
            return
        _, node_id, turn = self._waiting[0]
        if self._in_flight and node_id != self._node_id:
            if self._timer is None:
                self._timer = self._timers.call_later(DRAIN_SECONDS, self._abandon)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        heapq.heappop(self._waiting)
        self._is_sending = True
        self._node_id = node_id
        turn.set_result(None)

    def _abandon(self) -> None:
        """Stop waiting for the batches in flight."""
        self._timer = None
        self._generation += 1
        self._in_flight = 0
        self._next()
