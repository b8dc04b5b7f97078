"""Live delivery to a client that owes: it waits, and goes on by itself."""

from __future__ import annotations

from collections.abc import Callable

from millstream.clock import Timer, Timers
from millstream.servers.http.routing.usage import DELIVERY_QUOTAS, ClientUsage

THROTTLE_SECONDS_MAX = 10.0
"""When to look again at the latest: the quota may have been raised meanwhile."""


class Throttle:
    """Whether a delivery has to wait for its client's quota.

    It waits until nothing is owed, however many connections the client has: each looks again when
    its time has come.
    """

    def __init__(self, usage: ClientUsage, timers: Timers, wake: Callable[[], None]) -> None:
        """`wake` is called when it may be worth to ask again."""
        self._usage = usage
        self._timers = timers
        self._wake = wake
        self._timer: Timer | None = None

    def is_held(self) -> bool:
        """Whether nothing may be delivered now."""
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
        """Wake nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
