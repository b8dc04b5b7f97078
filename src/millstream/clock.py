"""Time, passed in.

Wall time dates records and files and decides nothing that safety depends on; whatever is measured
or waited for uses the monotonic clock, which no operator can set back.
"""

from __future__ import annotations

import contextlib
import os
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

    def boot_id(self) -> str:
        """Name the moment from which `monotonic` counts; empty where that is unknown.

        Two processes that have the same name for it can compare what `monotonic` told them.
        """
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


_BOOT_FILE = "/proc/sys/kernel/random/boot_id"
_NAMESPACE_LINK = "/proc/self/ns/time"


class SystemClock:
    """The clock of the machine."""

    def __init__(self) -> None:
        self._boot_id = _boot_id()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def boot_id(self) -> str:
        """Name the start of the machine, as the kernel does; empty where it does not say."""
        return self._boot_id


def _boot_id() -> str:
    """Name what `time.monotonic` counts from: a boot, and what a container may have added to it."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open(_BOOT_FILE, encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink(_NAMESPACE_LINK)}" if boot else ""
    return ""
