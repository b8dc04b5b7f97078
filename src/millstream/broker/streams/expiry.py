"""Expiry of streams.

A stream with a time to live expires when it was not used for so long, by the monotonic clock; one
with a date expires by the wall clock. Uses are stored from time to time, so that a restart does not
count as one; a use that was not stored makes a stream live longer, never shorter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from millstream.broker.streams.row import StreamRow
from millstream.clock import Clock, Timer, Timers

CHECK_SECONDS_MAX = 60.0
"""Longest time between two looks at the wall clock, which may be set."""

SAVE_SECONDS_MIN = 1.0
SAVES_PER_TTL = 10
"""A use is stored if the last one was stored so long ago, or a tenth of the time to live."""


CLOCK_SAVE_SECONDS = 60.0
"""How often a coordinator stores the time by which streams age: if it fails, idle streams live so
much longer."""


class ExpiryClock(Protocol):
    """Time that continues over restarts, as a store keeps it."""

    def now_ms(self) -> int:
        """Return milliseconds; never fewer than before."""
        ...


class StreamLifetime:
    """The expiry of one stream."""

    def __init__(self, row: StreamRow, clock: Clock, retention_clock: ExpiryClock) -> None:
        self._clock = clock
        self._retention_clock = retention_clock
        self._ttl = row.ttl_seconds
        self._expires_ms = row.expires_ms
        self._saved_ms = row.touched_ms
        self.readers = 0
        """Number of live readers: while there are some, the stream is in use."""
        idle = max(0, retention_clock.now_ms() - row.touched_ms) / 1000
        slack = self._save_interval() if idle else 0.0
        self._touched = clock.monotonic() - max(0.0, idle - slack)

    def _save_interval(self) -> float:
        return max(SAVE_SECONDS_MIN, (self._ttl or 0) / SAVES_PER_TTL)

    def remaining(self) -> float | None:
        """Return the seconds until the stream expires; `None` if it never does."""
        if self._expires_ms is not None:
            return (self._expires_ms - self._clock.wall_ms()) / 1000
        if self._ttl is None:
            return None
        if self.readers:
            return float(self._ttl)
        return self._touched + self._ttl - self._clock.monotonic()

    @property
    def is_expired(self) -> bool:
        remaining = self.remaining()
        return remaining is not None and remaining <= 0

    def touch(self) -> int | None:
        """Record a use; return the time to store, if that is due."""
        if self._ttl is None:
            return None
        self._touched = self._clock.monotonic()
        now_ms = self._retention_clock.now_ms()
        if now_ms - self._saved_ms < self._save_interval() * 1000:
            return None
        self._saved_ms = now_ms
        return now_ms


class StreamDeadlines:
    """Calls back for each path whose stream may have expired."""

    def __init__(self, clock: Clock, timers: Timers, on_due: Callable[[str], None]) -> None:
        self._clock = clock
        self._timers = timers
        self._on_due = on_due
        self._order = count()
        self._heap: list[tuple[float, int, str]] = []
        self._timer: Timer | None = None
        self._timer_due = 0.0

    def set(self, path: str, remaining: float) -> None:
        """Call back for `path` after `remaining` seconds, or earlier if that is far away."""
        due = self._clock.monotonic() + min(max(remaining, 0.0), CHECK_SECONDS_MAX)
        heapq.heappush(self._heap, (due, next(self._order), path))
        self._arm()

    def stop(self) -> None:
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if not self._heap:
            return
        due = self._heap[0][0]
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._timers.call_later(due - self._clock.monotonic(), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            self._on_due(heapq.heappop(self._heap)[2])
        self._arm()
