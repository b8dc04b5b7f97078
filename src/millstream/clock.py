"""Clocks and timers, passed in as parameters.

Wall time is used for the timestamps of records and files; safety never depends on it. Durations
and waits use the monotonic clock, which no operator can set back.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 by the system clock, which may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed moment; never decreases."""
        ...

    def boot_id(self) -> str:
        """Return an id of the moment from which `monotonic` counts; empty if it is unknown.

        Two processes with the same id can compare their values of `monotonic`.
        """
        ...


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback. Has no effect once it ran."""
        ...


class Timers(Protocol):
    """A scheduler of callbacks; an event loop is one."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, after `seconds` on the monotonic clock."""
        ...


_BOOT_FILE = "/proc/sys/kernel/random/boot_id"
_NAMESPACE_LINK = "/proc/self/ns/time"


class SystemClock:
    """The clock of the machine."""

    def __init__(self) -> None:
        self._boot_id = _boot_id()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def boot_id(self) -> str:
        """Return the kernel's id of this boot; empty if the kernel has none."""
        return self._boot_id


def _boot_id() -> str:
    """Return an id of the origin of `time.monotonic`: the boot and the time namespace."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open(_BOOT_FILE, encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink(_NAMESPACE_LINK)}" if boot else ""
    return ""
