"""Timers on a manual clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from millstream.testing.clocks.manual_clock import ManualClock


class ManualTimer:
    """A scheduled callback."""

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimers:
    """Timers on a `ManualClock`: `advance` moves it from one due timer to the next.

    Each callback sees the clock at its due time, and may set timers that are due within the same
    `advance`.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._order = count()
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> ManualTimer:
        """Call `callback` once, when the clock has advanced by `seconds`."""
        timer = ManualTimer(self._clock.monotonic() + max(seconds, 0.0), callback)
        heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass, and run all callbacks that are due by then, in order."""
        end = self._clock.monotonic() + seconds
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                self._clock.advance(max(0.0, due - self._clock.monotonic()))
                timer.callback()
        self._clock.advance(max(0.0, end - self._clock.monotonic()))

    @property
    def pending(self) -> int:
        """Number of pending timers."""
        return sum(not timer.is_cancelled for *_, timer in self._timers)
