"""Clock that moves only on command."""

from __future__ import annotations

_NS_PER_MS = 1_000_000
_NS_PER_SECOND = 1_000_000_000


class ManualClock:
    """A clock that stands still until a test moves it.

    It counts whole nanoseconds, so ten steps of 0.1 s are exactly one of 1 s. All clocks created
    without a `boot_id` belong to the first boot of one machine.
    """

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, boot_id: str = "boot-1") -> None:
        self._wall_ns = wall_ms * _NS_PER_MS
        self._monotonic_ns = 0
        self._boot_id = boot_id

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return self._wall_ns // _NS_PER_MS

    def monotonic(self) -> float:
        """Return seconds since the clock was created, or the machine last booted."""
        return self._monotonic_ns / _NS_PER_SECOND

    def boot_id(self) -> str:
        """Return the id of the current boot."""
        return self._boot_id

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        if seconds < 0:
            raise ValueError(f"seconds must be 0 or more, got {seconds}; see `jump_wall`")
        elapsed_ns = round(seconds * _NS_PER_SECOND)
        self._wall_ns += elapsed_ns
        self._monotonic_ns += elapsed_ns

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward, or back if `ms` is negative; no time passes."""
        self._wall_ns += ms * _NS_PER_MS

    def reboot(self, boot_id: str) -> None:
        """Reboot the machine: `monotonic` counts from here. No time passes."""
        self._boot_id = boot_id
        self._monotonic_ns = 0
