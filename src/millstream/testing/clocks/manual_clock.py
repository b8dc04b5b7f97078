"""Time that only moves when a test says so."""

from __future__ import annotations

_NS_PER_MS = 1_000_000
_NS_PER_SECOND = 1_000_000_000


class ManualClock:
    """A clock that stands still until it is told to move.

    It counts whole nanoseconds, so ten steps of 0.1 s are exactly one of 1 s. All that are made
    without a `boot_id` belong to the first boot of one machine.
    """

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, boot_id: str = "boot-1") -> None:
        self._wall_ns = wall_ms * _NS_PER_MS
        self._monotonic_ns = 0
        self._boot_id = boot_id

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._wall_ns // _NS_PER_MS

    def monotonic(self) -> float:
        """Seconds since the clock was made, or the machine last started."""
        return self._monotonic_ns / _NS_PER_SECOND

    def boot_id(self) -> str:
        """Name the start of the machine."""
        return self._boot_id

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

    def reboot(self, boot_id: str) -> None:
        """Start the machine anew: `monotonic` counts from here. No time passes by this."""
        self._boot_id = boot_id
        self._monotonic_ns = 0
