"""Watches whether the event loop runs in time: a timer that measures how late it is called.

    tick ── 500 ms ──► tick ── 500 ms, and 40 ms late ──► tick

A single late tick is normal: a large request, a scrape, a machine that slept. The loop counts as
late after `LATE_TICKS_MIN` late ticks in a row, until one tick is in time. While the loop is
blocked it cannot report so: a health check then gets no response and times out.
"""

from __future__ import annotations

from millstream.clock import Clock, Timer, Timers

INTERVAL_SECONDS = 0.5
"""Interval of the ticks: an idle node wakes up for this twice a second."""

LATE_TICKS_MIN = 3
"""Late ticks in a row after which the loop counts as late."""


class LoopWatch:
    """Measures how late the event loop is. Runs on it."""

    def __init__(self, clock: Clock, timers: Timers, *, lag_ms_max: int) -> None:
        self._clock = clock
        self._timers = timers
        self._lag_max = lag_ms_max / 1000
        self._due = 0.0
        self._timer: Timer | None = None
        self._late_in_a_row = 0
        self.lag_seconds = 0.0
        """How late the last tick was."""
        self.late_ticks = 0
        """Ticks since the start that were later than allowed."""

    def start(self) -> None:
        self._due = self._clock.monotonic() + INTERVAL_SECONDS
        self._timer = self._timers.call_later(INTERVAL_SECONDS, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_late(self) -> bool:
        """Whether the loop is repeatedly late."""
        return self._late_in_a_row >= LATE_TICKS_MIN

    def _tick(self) -> None:
        self.lag_seconds = max(0.0, self._clock.monotonic() - self._due)
        if self.lag_seconds > self._lag_max:
            self.late_ticks += 1
            self._late_in_a_row += 1
        else:
            self._late_in_a_row = 0
        self.start()
