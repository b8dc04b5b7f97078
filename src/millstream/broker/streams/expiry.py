"""When streams expire.

A stream with a time to live expires when nobody used it for so long, by the monotonic clock; one
with a date expires when the wall clock says so. Uses are written down now and then, so that a
restart does not count as one; what was not written down makes a stream live longer, and never
shorter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from millstream.broker.streams.row import StreamRow
from millstream.clock import Clock, Timer, Timers

LOOK_SECONDS_MAX = 60.0
"""How long nobody looks at the wall clock, which someone may have set."""

NOTE_SECONDS_MIN = 1.0
NOTES_PER_LIFE = 10
"""A use is written down when the one before was so long ago, or a tenth of the time to live."""


class ExpiryClock(Protocol):
    """Time that goes on over restarts, as a store keeps it."""

    def now_ms(self) -> int:
        """Milliseconds; never fewer than before."""
        ...


class StreamLifetime:
    """How long one stream lives."""

    def __init__(self, row: StreamRow, clock: Clock, steady: ExpiryClock) -> None:
        self._clock = clock
        self._steady = steady
        self._ttl = row.ttl_seconds
        self._expires_ms = row.expires_ms
        self._noted_ms = row.touched_ms
        self.readers = 0
        """How many read it live: while there are some, it is in use."""
        idle = max(0, steady.now_ms() - row.touched_ms) / 1000
        slack = self._note_seconds() if idle else 0.0
        self._touched = clock.monotonic() - max(0.0, idle - slack)

    def _note_seconds(self) -> float:
        return max(NOTE_SECONDS_MIN, (self._ttl or 0) / NOTES_PER_LIFE)

    def left(self) -> float | None:
        """Return how many seconds are left; `None` for ever."""
        if self._expires_ms is not None:
            return (self._expires_ms - self._clock.wall_ms()) / 1000
        if self._ttl is None:
            return None
        if self.readers:
            return float(self._ttl)
        return self._touched + self._ttl - self._clock.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether it has expired."""
        left = self.left()
        return left is not None and left <= 0

    def touch(self) -> int | None:
        """Take note of a use; return what to write down, where that is due."""
        if self._ttl is None:
            return None
        self._touched = self._clock.monotonic()
        now_ms = self._steady.now_ms()
        if now_ms - self._noted_ms < self._note_seconds() * 1000:
            return None
        self._noted_ms = now_ms
        return now_ms


class StreamDeadlines:
    """Calls back for each path whose stream may have expired: whoever is called looks."""

    def __init__(self, clock: Clock, timers: Timers, on_due: Callable[[str], None]) -> None:
        self._clock = clock
        self._timers = timers
        self._on_due = on_due
        self._order = count()
        self._heap: list[tuple[float, int, str]] = []
        self._timer: Timer | None = None
        self._timer_due = 0.0

    def set(self, path: str, left: float) -> None:
        """Call back for `path` in so many seconds, or earlier where that is far away."""
        due = self._clock.monotonic() + min(max(left, 0.0), LOOK_SECONDS_MAX)
        heapq.heappush(self._heap, (due, next(self._order), path))
        self._arm()

    def stop(self) -> None:
        """Call back no more."""
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
