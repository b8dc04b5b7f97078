"""Rate limit for background I/O, and a way to stop it.

The cleaner would read and write as fast as it can, and others that need the disk would wait for it.
So it reports how much it has done, now and then, and is paused until that much is allowed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from millstream.errors import Stopping

PAUSE_SECONDS_MIN = 0.001
"""Shorter pauses are accumulated: the kernel would make each of them longer than requested."""


class IoThrottle:
    """Limits work to `bytes_per_second_max`; 0 is no limit.

    One thread at a time calls `pause`; any thread may call the other methods. Unused time is not
    credited. `wait` sleeps for a number of seconds; a test passes its own.
    """

    def __init__(
        self,
        bytes_per_second_max: int = 0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        self._bytes_per_second_max = bytes_per_second_max
        self._monotonic = monotonic
        self._wait = wait
        self._changed = threading.Condition()
        self._is_stopped = False
        self._owed_seconds = 0.0
        self._measured = monotonic()

    @property
    def is_stopped(self) -> bool:
        """Whether no more work may be done."""
        return self._is_stopped

    def pause(self, size: int, *, unless: Callable[[], bool] = lambda: False) -> None:
        """Return when `size` more bytes are allowed.

        Raises `Stopping` when the throttle is stopped or `unless` returns true; code that makes
        `unless` true must call `wake` afterwards.
        """
        self._check(unless)
        if self._bytes_per_second_max:
            now = self._monotonic()
            remaining = max(0.0, self._owed_seconds - (now - self._measured))
            self._owed_seconds = remaining + size / self._bytes_per_second_max
            self._measured = now
            if self._owed_seconds >= PAUSE_SECONDS_MIN:
                self._sleep(self._owed_seconds, unless)
                self._owed_seconds = 0.0
                self._measured = self._monotonic()
        self._check(unless)

    def wake(self) -> None:
        """Make paused work check whether it has to stop."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop all work permanently."""
        self._is_stopped = True
        self.wake()

    def _check(self, unless: Callable[[], bool]) -> None:
        if self._is_stopped or unless():
            raise Stopping("cleaning was stopped")

    def _sleep(self, seconds: float, unless: Callable[[], bool]) -> None:
        if self._wait is not None:
            self._wait(seconds)
            return
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or unless(), seconds)
