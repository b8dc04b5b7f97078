"""I/O priority of a thread. Python has no function for it, so this calls Linux directly.

Whether it has an effect depends on the I/O scheduler: `bfq` and `mq-deadline` respect it, `none`
does not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

_SYSCALLS = {"x86_64": 251, "aarch64": 30}
"""Number of the system call `ioprio_set`."""

_WHO_THREAD, _THIS_THREAD = 1, 0
_CLASS_SHIFT = 13


class IoPriority(NamedTuple):
    """A scheduling class of the kernel, and a level in it: 0 is the most urgent, 7 the least."""

    kind: int
    level: int = 0


BEST_EFFORT, IDLE_CLASS = 2, 3

IDLE = IoPriority(IDLE_CLASS)
"""Served only when nobody else uses the disk."""

LOWEST_BEST_EFFORT = IoPriority(BEST_EFFORT, 7)
"""Served after all others of the default class, but never starved.

Also suitable for threads that write: a sync may have to wait for writes of an idle thread, and
that could take forever.
"""


def set_io_priority(wanted: IoPriority) -> None:
    """Set the priority of the calling thread; raise `OSError` if the kernel refuses."""
    number = _SYSCALLS.get(platform.machine())
    if number is None or sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"not supported on {sys.platform}, {platform.machine()}")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    arguments = (number, _WHO_THREAD, _THIS_THREAD, (wanted.kind << _CLASS_SHIFT) | wanted.level)
    if syscall(*map(ctypes.c_long, arguments)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def is_granted(wanted: IoPriority, set_it: Callable[[IoPriority], None] = set_io_priority) -> bool:
    """Return whether the kernel grants a priority, by trying it in a short-lived thread."""
    granted: list[IoPriority] = []

    def ask() -> None:
        try:
            set_it(wanted)
        except OSError:
            return
        granted.append(wanted)

    asking = threading.Thread(target=ask, name="millstream-priority")
    asking.start()
    asking.join()
    return bool(granted)
