"""How urgent the kernel takes the disk work of a thread to be. Linux has no name for it in Python.

Whether it makes a difference is up to the scheduler of the disk: `bfq` and `mq-deadline` heed it,
`none` does not.
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

_SYSCALLS = {"x86_64": (251, 252), "aarch64": (30, 31)}
"""Numbers of `ioprio_set` and `ioprio_get`."""

_WHO_THREAD, _THIS_THREAD = 1, 0
_CLASS_SHIFT = 13
_LEVEL_MASK = (1 << _CLASS_SHIFT) - 1


class IoPriority(NamedTuple):
    """A class of the kernel's, and a level within it: 0 is the most urgent, 7 the least."""

    kind: int
    level: int = 0


BEST_EFFORT, IDLE_CLASS = 2, 3

IDLE = IoPriority(IDLE_CLASS)
"""Served when nobody else wants the disk."""

LOWEST_BEST_EFFORT = IoPriority(BEST_EFFORT, 7)
"""Served after all others of the usual class, and in its turn all the same. For threads that write
too: what others sync may have to wait for what an idle thread began, and that may never end."""


def set_io_priority(wanted: IoPriority) -> None:
    """Set the priority of the calling thread; raises `OSError` where the kernel refuses."""
    number, _ = _numbers()
    _call(number, (wanted.kind << _CLASS_SHIFT) | wanted.level)


def get_io_priority() -> IoPriority:
    """Return the priority of the calling thread; raises `OSError` where the kernel does not say."""
    _, number = _numbers()
    found = _call(number)
    return IoPriority(found >> _CLASS_SHIFT, found & _LEVEL_MASK)


def is_granted(wanted: IoPriority, set_it: Callable[[IoPriority], None] = set_io_priority) -> bool:
    """Whether the kernel lets a thread have a priority: one that is made to ask, and ends."""
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


def _numbers() -> tuple[int, int]:
    found = _SYSCALLS.get(platform.machine())
    if found is None or sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"unknown on {sys.platform}, {platform.machine()}")
    return found


def _call(number: int, *value: int) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    numbers = (number, _WHO_THREAD, _THIS_THREAD, *value)
    result: int = syscall(*map(ctypes.c_long, numbers))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
