"""Until when something has to be done: one moment for all the waits that it takes."""

from __future__ import annotations

from millstream.clock import Clock


class Deadline:
    """A moment on the monotonic clock. Passed down, so that steps share it and do not add up."""

    def __init__(self, seconds: float, *, clock: Clock) -> None:
        self.seconds = seconds
        """How long it was when it was set; for messages."""
        self._clock = clock
        self._at = clock.monotonic() + seconds

    def left_s(self) -> float:
        """Seconds that are left; 0 where it has passed."""
        return max(0.0, self._at - self._clock.monotonic())

    def share(self, count: int) -> Deadline:
        """Return one after a `count`-th of the time left, so that others get their turn."""
        return Deadline(self.left_s() / count, clock=self._clock)
