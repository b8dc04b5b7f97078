"""Whether the event loop turns in time: a timer that looks how late it is called.

    tick ── 500 ms ──► tick ── 500 ms, and 40 ms late ──► tick

One tick that comes late is no news: a large request, a scrape, a machine that slept. The loop is
late when it is so time after time, `LATE_TICKS_MIN` times in a row, and no more once a tick comes
in time. While it does not turn at all it cannot say so: who asks waits for an answer, and gives up.
"""

from __future__ import annotations

from millstream.clock import Clock, Timer, Timers

INTERVAL_SECONDS = 0.5
"""How often is looked: an idle node wakes up for this twice a second."""

LATE_TICKS_MIN = 3
"""How many ticks in a row have to be late."""


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
        """How many ticks came later than allowed, since the start."""

    def start(self) -> None:
        """Look from now on."""
        self._due = self._clock.monotonic() + INTERVAL_SECONDS
        self._timer = self._timers.call_later(INTERVAL_SECONDS, self._tick)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_late(self) -> bool:
        """Whether the loop comes late, time after time."""
        return self._late_in_a_row >= LATE_TICKS_MIN

    def _tick(self) -> None:
        self.lag_seconds = max(0.0, self._clock.monotonic() - self._due)
        if self.lag_seconds > self._lag_max:
            self.late_ticks += 1
            self._late_in_a_row += 1
        else:
            self._late_in_a_row = 0
        self.start()
