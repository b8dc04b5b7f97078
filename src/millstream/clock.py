"""Time, passed in.

Wall time dates records and files and decides nothing that safety depends on; whatever is measured
or waited for uses the monotonic clock, which no operator can set back.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes; may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The clock of the machine."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()
