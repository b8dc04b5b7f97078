"""Absolute deadline that all waits of a call share."""

from __future__ import annotations

from millstream.clock import Clock


class Deadline:
    """Time on the monotonic clock. It is passed down, so that the waits of a call do not add up."""

    def __init__(self, seconds: float, *, clock: Clock) -> None:
        self.seconds = seconds
        """Original length; for messages."""
        self._clock = clock
        self._at = clock.monotonic() + seconds

    def left_s(self) -> float:
        """Return the remaining seconds; 0 if it has passed."""
        return max(0.0, self._at - self._clock.monotonic())

    def share(self, count: int) -> Deadline:
        """Return a deadline after 1/`count` of the time left, so that other nodes can be tried."""
        return Deadline(self.left_s() / count, clock=self._clock)
