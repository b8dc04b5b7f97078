"""Retry schedule of one call: exponential backoff with jitter, up to a deadline. Does no I/O.

    attempt ─► fails ─► pause, about twice as long as the last ─► attempt ─► ... ─► deadline

A pause is a random time between half of its full length and all of it, so that clients that were
refused together do not return together. If the node sends `Retry-After`, the pause is at least that
long. A pause never ends at or after the deadline: the call fails instead.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.clients.http.core.config import ClientConfig


class Pauses:
    """Growing pauses after attempts that failed in a row."""

    def __init__(self, config: ClientConfig, *, jitter: Callable[[], float]) -> None:
        """`jitter` returns a number from 0 up to, but not including, 1."""
        self._full_s = config.pause_s_min
        self._pause_s_max = config.pause_s_max
        self._jitter = jitter

    def draw_s(self) -> float:
        """Return the next pause, if it is used."""
        return self._full_s * (1 + self._jitter()) / 2

    def grow(self) -> None:
        """Note that a pause is used: the next one is about twice as long."""
        self._full_s = min(self._full_s * 2, self._pause_s_max)


class Attempts:
    """Attempts of one call."""

    def __init__(self, config: ClientConfig, *, now: float, jitter: Callable[[], float]) -> None:
        self._pauses = Pauses(config, jitter=jitter)
        self._deadline = now + config.timeout_s
        self.count = 1
        """Number of the current attempt, from 1."""

    def left_s(self, now: float) -> float:
        """Return how long the current attempt may take: until the common deadline."""
        return max(0.0, self._deadline - now)

    def pause_s(self, now: float, *, retry_after_s: float = 0.0) -> float | None:
        """Return how long to wait before the next attempt; `None` if there is no time for one."""
        pause_s = max(self._pauses.draw_s(), retry_after_s)
        if now + pause_s >= self._deadline:
            return None
        self._pauses.grow()
        self.count += 1
        return pause_s
