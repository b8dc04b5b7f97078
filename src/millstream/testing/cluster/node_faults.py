"""Faults of one node: its disk fails, is full or slow, its clock jumps, it leaks memory.

The harness sends them to the process of the node (`node_process.py`), which has a file system and a
clock that obey. Files are real, so everything else is as in production; but syncs run in threads
and not in the kernel (AIO), because a call can only fail in this process.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from millstream.clock import SystemClock
from millstream.storage.disk.filesystem import Filesystem
from millstream.testing.disk.fault import GROWING
from millstream.testing.disk.faulty_filesystem import CallFaults, FaultyFilesystem

APPLIED = "faults applied"
"""The line with which a node answers."""

_WRITING = ("sync", "write_at")
_SLOW = ("sync", "sync_directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaults:
    """What is wrong with a node."""

    error: int | None = None
    """Number of the error of all calls of `calls`, such as `errno.EIO`."""
    calls: tuple[str, ...] = ()
    """Calls of `Filesystem` and `File`, by name."""
    sync_delay_s: float = 0.0
    """How much longer each sync takes."""
    wall_step_ms: int = 0
    """How far the wall clock is ahead; behind, if it is negative."""
    leak_bytes: int = 0
    """Memory that the node allocates and does not use."""

    def __post_init__(self) -> None:
        if self.sync_delay_s < 0:
            raise ValueError(f"sync_delay_s must be at least 0, got {self.sync_delay_s}")
        if self.leak_bytes < 0:
            raise ValueError(f"leak_bytes must be at least 0, got {self.leak_bytes}")


NO_FAULTS = NodeFaults()


def failing_disk() -> NodeFaults:
    """Return the faults of a disk that cannot write any more (EIO)."""
    return NodeFaults(error=errno.EIO, calls=_WRITING)


def full_disk() -> NodeFaults:
    """Return the faults of a disk without space (ENOSPC)."""
    return NodeFaults(error=errno.ENOSPC, calls=tuple(sorted(GROWING - {"lock", "close"})))


def encode_faults(faults: NodeFaults) -> str:
    """Return faults as one line of JSON."""
    return json.dumps(
        {
            "error": faults.error,
            "calls": faults.calls,
            "sync_delay_s": faults.sync_delay_s,
            "wall_step_ms": faults.wall_step_ms,
            "leak_bytes": faults.leak_bytes,
        }
    )


def decode_faults(line: str) -> NodeFaults:
    """Return the faults of a line that `encode_faults` made."""
    fields = json.loads(line)
    return NodeFaults(**{**fields, "calls": tuple(fields["calls"])})


class CurrentFaults(CallFaults):
    """The faults that a node has now. Set in one thread, read in others."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self.faults = NO_FAULTS
        self._sleep = sleep
        self._leaked = bytearray()

    def set(self, faults: NodeFaults) -> None:
        """Replace all faults."""
        self._leaked = bytearray(faults.leak_bytes)
        self.faults = faults

    def strike(self, name: str, path: str) -> OSError | None:
        """Delay a call, and return its error if it has to fail."""
        faults = self.faults
        if faults.sync_delay_s and name in _SLOW:
            self._sleep(faults.sync_delay_s)
        if faults.error is None or name not in faults.calls:
            return None
        return OSError(faults.error, os.strerror(faults.error), path)

    def filesystem(self, inner: Filesystem) -> Filesystem:
        """Return a file system with these faults."""
        return FaultyFilesystem(inner, self)


class SteppedClock(SystemClock):
    """The clock of the machine, with a wall clock that may be wrong."""

    def __init__(self, current: CurrentFaults) -> None:
        super().__init__()
        self._current = current

    def wall_ms(self) -> int:
        return super().wall_ms() + self._current.faults.wall_step_ms
