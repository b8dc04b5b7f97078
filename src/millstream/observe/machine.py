"""Detects the machine that a node runs on, as far as the system reports it."""

from __future__ import annotations

import os
import platform
import re
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import hardware_based

UNLIMITED_BYTES = 2**60
"""A limit above this is no limit: cgroup v1 reports 2^63, less a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Properties of the machine. A number that the system does not report is `None`."""

    python: str
    kernel: str
    cpus: int
    """Processors that this process may run on."""
    cpu_quota: float | None
    """Number of processors that it may use fully, if a cgroup limits that."""
    checksums: str
    """Whether batch checksums are computed in hardware or in software."""
    file_system: str
    free_bytes: int | None
    """Free space on the disk with the data directory."""
    descriptors_max: int
    memory_bytes: int | None
    """Memory of the machine, or the limit of the cgroup."""


def detect_machine(data: str, *, root: str = "/") -> Machine:
    """Detect the machine of a node with its data in `data`. `proc` and `sys` are below `root`."""
    return Machine(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        kernel=f"{platform.system()} {platform.release()}",
        cpus=_cpus(),
        cpu_quota=_cpu_quota(root),
        checksums="hardware" if hardware_based else "software",
        file_system=_file_system(data, root),
        free_bytes=_free_bytes(data),
        descriptors_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        memory_bytes=_memory_bytes(root),
    )


def process_age_ms(root: str = "/") -> int | None:
    """Return how long ago this process started, within 10 ms."""
    text = _read(root, "proc/self/stat")
    fields = text.rpartition(")")[2].split()  # The name before may contain anything.
    if len(fields) < 20:
        return None
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0, int((time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * 1000))


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read(1024 * 1024)
    except OSError:
        return ""


def _cgroup_files(root: str, controller: str, name: str) -> Iterator[str]:
    """Yield the content of the file `name` of the cgroup of this process and of each above it."""
    for line in _read(root, "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        while True:
            yield _read(root, os.path.join("sys/fs/cgroup", controllers, *parts, name)).strip()
            if not parts:
                break
            parts.pop()


def _cpu_quota(root: str) -> float | None:
    quotas = [
        int(words[0]) / int(words[1])
        for text in _cgroup_files(root, "cpu", "cpu.max")
        if len(words := text.split()) == 2 and all(word.isdecimal() for word in words)
    ]
    return min(quotas, default=None)


def _memory_bytes(root: str) -> int | None:
    limits = [
        int(text)
        for name in ("memory.max", "memory.limit_in_bytes")
        for text in _cgroup_files(root, "memory", name)
        if text.isdecimal() and int(text) < UNLIMITED_BYTES
    ]
    if match := re.search(r"^MemTotal:\s+([0-9]+) kB", _read(root, "proc/meminfo"), re.MULTILINE):
        limits.append(int(match[1]) * 1024)
    return min(limits, default=None)


def _file_system(data: str, root: str) -> str:
    """Return the type of the file system that holds `data`, by the nearest mount point above it."""
    path = os.path.realpath(data)
    kind, length = "unknown", 0
    for line in _read(root, "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
        is_above = mount in ("/", path) or path.startswith(f"{mount}/")
        if is_above and len(mount) >= length:  # The last one mounted there hides the others.
            kind, length = kinds[0], len(mount)
    return kind


def _free_bytes(data: str) -> int | None:
    try:
        stats = os.statvfs(data)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize
