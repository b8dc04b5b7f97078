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

from millstream.config.cpus import format_cpus
from millstream.storage.disk.cpu_affinity import allowed_cpus

DESCRIPTORS_MIN = 4_096
"""Open files of a small node: 256 logs that are written, a thousand segments, connections."""

MEMORY_BYTES_MIN = 512 * 2**20
"""Memory of a small node: a tenth of it is the program, and appends may wait in the rest."""

MAPS_PER_FILE = 4
"""A segment and its index are mapped, and the kernel counts libraries and stacks as well."""

_NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "virtiofs"),
    }
)

_VOLATILE_FILE_SYSTEMS = {
    "tmpfs": "when the machine restarts",
    "ramfs": "when the machine restarts",
    "overlay": "with the container; mount a volume",
}

_SLOW_CLOCK_SOURCES = frozenset(("hpet", "acpi_pm", "jiffies"))

_CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"

UNLIMITED_BYTES = 2**60
"""A limit above this is no limit: cgroup v1 reports 2^63, less a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Properties of the machine. A number that the system does not report is `None`."""

    python: str
    kernel: str
    cpus: int
    """Processors that this process may run on."""
    cpu_list: str
    """Their numbers, such as `0-3,6`; empty if the system does not report them."""
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
    page_bytes: int
    maps_max: int | None
    """Files that the process may map into memory at the same time."""
    clock_source: str
    """What the kernel reads the time from."""


def detect_machine(data: str, *, root: str = "/") -> Machine:
    """Detect the machine of a node with its data in `data`. `proc` and `sys` are below `root`."""
    cpus = allowed_cpus()
    return Machine(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        kernel=f"{platform.system()} {platform.release()}",
        cpus=len(cpus) or os.cpu_count() or 1,
        cpu_list=format_cpus(cpus),
        cpu_quota=_cpu_quota(root),
        checksums="hardware" if hardware_based else "software",
        file_system=_file_system(data, root),
        free_bytes=_free_bytes(data),
        descriptors_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        memory_bytes=_memory_bytes(root),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        maps_max=_maps_max(root),
        clock_source=_read(root, _CLOCK_SOURCE).strip() or "unknown",
    )


def machine_warnings(machine: Machine, *, maps_open_max: int) -> list[str]:
    """Return what is unsuitable for a node, a sentence each.

    `maps_open_max` is the number of files that the store keeps mapped.
    """
    warnings = []
    kind, quota, maps = machine.file_system, machine.cpu_quota, machine.maps_max
    if kind in _NETWORK_FILE_SYSTEMS:
        warnings.append(
            f"the data directory is on a network file system ({kind}): syncs and locks are only as"
            " good as those of its server; use a local disk"
        )
    if kind in _VOLATILE_FILE_SYSTEMS:
        lost = _VOLATILE_FILE_SYSTEMS[kind]
        warnings.append(f"the data directory is on {kind}: all data is lost {lost}")
    if machine.descriptors_max < DESCRIPTORS_MIN:
        warnings.append(
            f"the process may have {machine.descriptors_max} open files, which limits connections"
            f" and logs; raise the limit (ulimit -n, LimitNOFILE) to {DESCRIPTORS_MIN} or more"
        )
    if quota is not None and quota < 1:
        warnings.append(
            f"the cgroup allows {quota:g} processors: the event loop stops for the rest of each"
            " period when they are used up; allow 1 or more"
        )
    if machine.memory_bytes is not None and machine.memory_bytes < MEMORY_BYTES_MIN:
        mib = machine.memory_bytes // 2**20
        warnings.append(
            f"there are {mib} MiB of memory: allow {MEMORY_BYTES_MIN // 2**20} MiB or more, or"
            " lower the limits of memory in the settings"
        )
    if maps is not None and maps < maps_open_max * MAPS_PER_FILE:
        warnings.append(
            f"the process may have {maps} memory maps, and storage.maps_open_max is"
            f" {maps_open_max}; raise vm.max_map_count to {maps_open_max * MAPS_PER_FILE} or more"
        )
    if machine.clock_source in _SLOW_CLOCK_SOURCES:
        warnings.append(
            f"the kernel reads the time from {machine.clock_source}, which is slow: every request"
            " takes longer"
        )
    if machine.checksums == "software":
        warnings.append("checksums are computed in software: every batch takes longer")
    return warnings


def process_age_ms(root: str = "/") -> int | None:
    """Return how long ago this process started, within 10 ms."""
    text = _read(root, "proc/self/stat")
    fields = text.rpartition(")")[2].split()  # The name before may contain anything.
    if len(fields) < 20:
        return None
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0, int((time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * 1000))


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


def _maps_max(root: str) -> int | None:
    text = _read(root, "proc/sys/vm/max_map_count").strip()
    return int(text) if text.isdecimal() else None


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
