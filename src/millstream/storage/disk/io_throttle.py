"""How fast work in the background may go, and how it is stopped.

Cleaning reads and writes as much as it likes to; whoever waits for the disk would wait for it too.
So it says how much it has done, now and then, and is held up until that much was allowed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from millstream.errors import Stopping

PAUSE_SECONDS_MIN = 0.001
"""Shorter pauses are added up: the kernel would make each of them longer than it is."""


class IoThrottle:
    """Holds work up so that it does at most `bytes_per_second_max`; 0 is no limit.

    Work in one thread at a time calls `pause`; any thread may call the rest. Time that work does
    not use is not saved up for it. `wait` sleeps for so many seconds; a test passes its own.
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
        """Return when `size` bytes more were allowed.

        Raises `Stopping` as soon as there shall be no more work, or none of this kind: whoever
        makes `unless` true calls `wake` afterwards.
        """
        self._check(unless)
        if self._bytes_per_second_max:
            now = self._monotonic()
            rest = max(0.0, self._owed_seconds - (now - self._measured))
            self._owed_seconds = rest + size / self._bytes_per_second_max
            self._measured = now
            if self._owed_seconds >= PAUSE_SECONDS_MIN:
                self._sleep(self._owed_seconds, unless)
                self._owed_seconds = 0.0
                self._measured = self._monotonic()
        self._check(unless)

    def wake(self) -> None:
        """Have work that pauses look whether it is still wanted."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no more work be done, for good."""
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
