"""Memory limits of single processes, by control groups of Linux.

A group for each process is made below the group of this process, so it can only take away: what
limits this process limits all of them. With a limit just above what a process has allocated, the
kernel first takes away its cached pages, and then kills it (SIGKILL) when it allocates more.

Both versions are supported. Version 2 gives memory to groups below only if this process is alone in
the root group, or if its group has no processes of its own; so it is often not available there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

_CGROUPS = Path("/proc/self/cgroup")
_VERSION_1 = Path("/sys/fs/cgroup/memory")
_VERSION_2 = Path("/sys/fs/cgroup")
_numbers = itertools.count(1)


class MemoryLimitFailed(Exception):
    """The memory of processes cannot be limited on this machine."""


class MemoryGroup:
    """A control group of one process, which has no limit at first. Remove it after use."""

    def __init__(self, name: str) -> None:
        """Make a group. Raises `MemoryLimitFailed` if that is not permitted."""
        parent, self._is_version_2 = _own_group()
        self.path = parent / f"ms{os.getpid()}-{next(_numbers)}-{name}"
        try:
            if self._is_version_2:
                (parent / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
        except OSError as error:
            raise MemoryLimitFailed(f"no group can be made below {parent}: {error}") from error
        self._limit = self.path / ("memory.max" if self._is_version_2 else "memory.limit_in_bytes")
        if not self._limit.exists():
            self.path.rmdir()
            raise MemoryLimitFailed(f"{parent} does not control memory")

    def add(self, pid: int) -> None:
        """Count what a process allocates from now on."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def allocated(self) -> int:
        """Return how many bytes are in use that the kernel cannot take away: all but cached files.

        What it has allocated for the process itself counts too, such as buffers of sockets.
        """
        usage = "memory.current" if self._is_version_2 else "memory.usage_in_bytes"
        stat = dict(
            line.split(" ") for line in (self.path / "memory.stat").read_text().splitlines()
        )
        cached = int(stat["active_file"]) + int(stat["inactive_file"])
        return max(0, int((self.path / usage).read_text()) - cached)

    def kills(self) -> int:
        """Return how many processes the kernel has killed because of the limit."""
        events = "memory.events" if self._is_version_2 else "memory.oom_control"
        lines = (self.path / events).read_text().splitlines()
        return int(dict(line.split(" ") for line in lines)["oom_kill"])

    def limit(self, size: int) -> bool:
        """Set a limit in bytes. Returns false if more than that is in use already."""
        try:
            self._limit.write_text(str(size))
        except OSError:  # Version 1 refuses; version 2 kills.
            return False
        return True

    def lift(self) -> None:
        """Remove the limit."""
        self._limit.write_text("max" if self._is_version_2 else "-1")

    def remove(self) -> None:
        """Remove the group, whose process has ended."""
        with contextlib.suppress(FileNotFoundError):
            self.path.rmdir()


def why_no_memory_limit() -> str | None:
    """Return why memory cannot be limited here; None if it can."""
    try:
        MemoryGroup("probe").remove()
    except MemoryLimitFailed as error:
        return str(error)
    return None


def _own_group() -> tuple[Path, bool]:
    """Return the directory of the group of this process, and whether it is of version 2."""
    try:
        lines = _CGROUPS.read_text().splitlines()
    except OSError as error:
        raise MemoryLimitFailed(f"there are no control groups: {error}") from error
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path.lstrip("/")
    if "memory" in paths:
        return _VERSION_1 / paths["memory"], False
    if "" in paths and (_VERSION_2 / "cgroup.controllers").exists():
        return _VERSION_2 / paths[""], True
    raise MemoryLimitFailed(f"{_CGROUPS} names no group that controls memory")
