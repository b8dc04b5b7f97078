"""Processors that this process, or one of its threads, may run on.

Linux keeps this for each thread, and a new thread takes it over from the one that starts it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from millstream.config.cpus import format_cpus
from millstream.errors import InvalidConfig


def allowed_cpus() -> tuple[int, ...]:
    """Return the processors that the calling thread may run on; empty if unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


def check_cpus(name: str, cpus: Collection[int], allowed: Collection[int]) -> None:
    """Raise `InvalidConfig` unless all processors are allowed. `name` is that of the setting.

    The kernel does not refuse a list of which it allows a part.
    """
    if cpus and not allowed:
        raise InvalidConfig(f"{name} must be none: this system cannot choose processors")
    if missing := set(cpus) - set(allowed):
        raise InvalidConfig(
            f"{name} must be processors that this process may run on, which are"
            f" {format_cpus(allowed)}, got {format_cpus(missing)}"
        )


def pin_process(cpus: Collection[int]) -> None:
    """Let all threads of this process, also later ones, run on these processors only."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # The thread has ended.
            os.sched_setaffinity(int(thread), cpus)


def pin_thread(cpus: Collection[int]) -> None:
    """Let the calling thread run on these processors only."""
    os.sched_setaffinity(0, cpus)
