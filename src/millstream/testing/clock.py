"""Time that only moves when a test says so."""

from __future__ import annotations

_NS_PER_MS = 1_000_000
_NS_PER_SECOND = 1_000_000_000


class ManualClock:
    """A clock that stands still until it is told to move.

    It counts whole nanoseconds, so ten steps of 0.1 s are exactly one of 1 s.
    """

    def __init__(self, *, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ns = wall_ms * _NS_PER_MS
        self._monotonic_ns = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._wall_ns // _NS_PER_MS

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._monotonic_ns / _NS_PER_SECOND

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(f"time cannot pass by {seconds} s; `jump_wall` sets the wall clock")
        elapsed_ns = round(seconds * _NS_PER_SECOND)
        self._wall_ns += elapsed_ns
        self._monotonic_ns += elapsed_ns

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward, or back where `ms` is negative; no time passes."""
        self._wall_ns += ms * _NS_PER_MS
