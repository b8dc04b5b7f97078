"""Time, passed in.

Wall time dates records and files and decides nothing that safety depends on; whatever is measured
or waited for uses the monotonic clock, which no operator can set back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes; may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class Timer(Protocol):
    """Something that will happen, unless it is called off."""

    def cancel(self) -> None:
        """Call it off. Harmless once it happened."""
        ...


class Timers(Protocol):
    """Who calls back when time has passed. Where the loop runs, it does."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, when `seconds` have passed on the monotonic clock."""
        ...


class SystemClock:
    """The clock of the machine."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()
