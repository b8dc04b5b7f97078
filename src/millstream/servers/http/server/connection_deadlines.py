"""The two deadlines of a connection, on one timer.

One is for what the client sends, one for what it reads. Moving a deadline further away costs no
timer: the timer that runs fires early, finds nothing due, and is set again. So a busy connection
sets one every few seconds at most, however many requests and bytes pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from millstream.clock import Clock, Timer, Timers

OUTPUT_PROGRESS_MIN = 64 * 1024
"""Bytes that a client has to read within its deadline: one that reads a large response slowly is
not cut off, one that reads it byte by byte is."""


def has_read_enough(unread_before: int, unread_now: int) -> bool:
    """Return whether a client that has not read everything has made enough progress to go on."""
    return 0 < unread_now <= unread_before - OUTPUT_PROGRESS_MIN


class ConnectionDeadlines:
    """Calls back when the client is late. Used on the event loop only."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        *,
        on_input_late: Callable[[], None],
        on_output_late: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._on_input_late = on_input_late
        self._on_output_late = on_output_late
        self._input_due = self._output_due = math.inf
        self._timer: Timer | None = None
        self._timer_due = math.inf

    def set_input(self, milliseconds: float | None) -> None:
        """Set the time that the client has to send something, from now on; `None` is forever."""
        self._input_due = self._due(milliseconds)
        self._watch(self._input_due)

    def set_output(self, milliseconds: float | None) -> None:
        """Set the time that the client has to read something, from now on; `None` is forever."""
        self._output_due = self._due(milliseconds)
        self._watch(self._output_due)

    def cancel(self) -> None:
        """Remove both deadlines."""
        self._input_due = self._output_due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self, milliseconds: float | None) -> float:
        return math.inf if milliseconds is None else self._clock.monotonic() + milliseconds / 1000

    def _watch(self, due: float) -> None:
        """Make sure that a timer fires at `due` at the latest."""
        if due == math.inf or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._timers.call_later(due - self._clock.monotonic(), self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        if self._input_due <= now:
            self._input_due = math.inf
            self._on_input_late()
        if self._output_due <= now:
            self._output_due = math.inf
            self._on_output_late()
        self._watch(min(self._input_due, self._output_due))
