"""Delays the live delivery to a client that exceeds its quota."""

from __future__ import annotations

from collections.abc import Callable

from millstream.clock import Timer, Timers
from millstream.servers.http.routing.usage import DELIVERY_QUOTAS, ClientUsage

THROTTLE_SECONDS_MAX = 10.0
"""Longest time until the quota is checked again: it may have been raised meanwhile."""


class Throttle:
    """Whether a delivery has to wait for its client's quota.

    It waits until nothing is owed, however many connections the client has: each checks again when
    its own wait is over.
    """

    def __init__(self, usage: ClientUsage, timers: Timers, wake: Callable[[], None]) -> None:
        """Create a throttle; `wake` is called when `is_held` may have changed."""
        self._usage = usage
        self._timers = timers
        self._wake = wake
        self._timer: Timer | None = None

    def is_held(self) -> bool:
        """Return whether nothing may be delivered now."""
        if self._usage.is_free or (owed := self._usage.owed(DELIVERY_QUOTAS)) is None:
            self.close()
            return False
        if self._timer is None:
            seconds = min(owed.throttle_ms / 1000, THROTTLE_SECONDS_MAX)
            self._usage.note_held(owed.kind, seconds)
            self._timer = self._timers.call_later(seconds, self._release)
        return True

    def _release(self) -> None:
        self._timer = None
        self._wake()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
