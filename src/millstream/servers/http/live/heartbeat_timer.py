"""Heartbeats of a connection without events."""

from __future__ import annotations

from collections.abc import Callable

from millstream.clock import Clock, Timers


class HeartbeatTimer:
    """Calls `beat` when nothing was sent for `seconds`."""

    def __init__(
        self, clock: Clock, timers: Timers, seconds: float, beat: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._seconds = seconds
        self._beat = beat
        self._sent = clock.monotonic()
        self._timer = timers.call_later(seconds, self._check)

    def note_sent(self) -> None:
        """Note that something was sent."""
        self._sent = self._clock.monotonic()

    def _check(self) -> None:
        silent = self._clock.monotonic() - self._sent
        if silent >= self._seconds:
            self._beat()
            silent = 0.0
        self._timer = self._timers.call_later(self._seconds - silent, self._check)

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()
