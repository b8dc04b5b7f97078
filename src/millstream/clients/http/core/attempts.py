"""How often something is tried, and how long it is waited in between. Pure: told the time.

    attempt ─► no ─► pause, about twice as long as the one before ─► attempt ─► ... ─► deadline

A pause is between half of its full length and all of it, by chance, so that many clients that were
refused at once do not come back at once. Where the node says when to come, it is not earlier than
that. No pause ends at the deadline or behind it: then there is nothing more to wait for.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.clients.http.core.config import ClientConfig


class Attempts:
    """The attempts of one call."""

    def __init__(self, config: ClientConfig, *, now: float, chance: Callable[[], float]) -> None:
        self._full_s = config.pause_s_min
        self._pause_s_max = config.pause_s_max
        self._chance = chance
        self._deadline = now + config.timeout_s
        self.count = 1
        """Which attempt is under way, from 1."""

    def left_s(self, now: float) -> float:
        """Return how long the attempt under way may take: until the deadline of all of them."""
        return max(0.0, self._deadline - now)

    def pause_s(self, now: float, *, retry_after_s: float = 0.0) -> float | None:
        """Return how long to wait before the next attempt; nothing where there is to be none.

        `chance` gives a number from 0 to below 1.
        """
        drawn_s = self._full_s * (1 + self._chance()) / 2
        pause_s = max(drawn_s, retry_after_s)
        if now + pause_s >= self._deadline:
            return None
        self._full_s = min(self._full_s * 2, self._pause_s_max)
        self.count += 1
        return pause_s
