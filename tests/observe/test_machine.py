"""Detection of machine properties, including systems that do not report them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from millstream.config.cpus import format_cpus
from millstream.observe.machine import (
    Machine,
    detect_machine,
    machine_warnings,
    process_age_ms,
)

GIB = 1024**3
MEMORY = "MemTotal:       16777216 kB\nMemFree:  1 kB\n"


@pytest.fixture
def system(tmp_path: Path):
    """A fake /proc and /sys."""

    def made(**files: str) -> str:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(tmp_path)

    return made


def looked(root: str, data: str = "/data/here") -> Machine:
    return detect_machine(data, root=root)


def test_this_machine_tells_all_there_is(tmp_path: Path):
    found = detect_machine(str(tmp_path))
    assert found.python.startswith("CPython 3.")
    assert found.kernel.startswith("Linux ")
    assert 1 <= found.cpus <= (os.cpu_count() or 1)
    assert found.checksums in ("hardware", "software")
    assert found.file_system not in ("", "unknown")
    assert found.free_bytes is not None
    assert found.memory_bytes is not None
    assert found.descriptors_max > 0
    assert found.cpu_list == format_cpus(os.sched_getaffinity(0))
    assert found.page_bytes >= 4096
    assert found.maps_max is not None
    assert found.maps_max > 1000
    assert found.clock_source not in ("", "unknown")
    age_ms = process_age_ms()
    assert age_ms is not None
    assert 0 <= age_ms < 24 * 3600 * 1000


def test_a_system_that_tells_nothing_is_no_trouble(tmp_path: Path):
    found = looked(str(tmp_path / "nothing"), data=str(tmp_path / "no/such/directory"))
    assert (found.memory_bytes, found.cpu_quota, found.free_bytes) == (None, None, None)
    assert (found.file_system, found.clock_source) == ("unknown", "unknown")
    assert found.maps_max is None
    assert process_age_ms(str(tmp_path / "nothing")) is None


def test_memory_is_what_the_machine_has(system):
    assert looked(system(proc__meminfo=MEMORY)).memory_bytes == 16 * GIB


def test_memory_is_what_the_nearest_of_all_cgroups_allows(system):
    root = system(
        proc__meminfo=MEMORY,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__memory_max="unused",
    )
    place = Path(root) / "sys/fs/cgroup/a"
    (place / "b/memory.max").write_text("max\n")
    (place / "memory.max").write_text(f"{2 * GIB}\n")
    assert looked(root).memory_bytes == 2 * GIB
    (place / "b/memory.max").write_text(f"{GIB}\n")
    assert looked(root).memory_bytes == GIB


def test_memory_is_what_a_cgroup_of_the_first_version_allows(system):
    root = system(
        proc__meminfo=MEMORY,
        proc__self__cgroup="3:cpu,cpuacct:/x\n4:memory:/job\n0::/\n",
        sys__fs__cgroup__memory__job__here="",
    )
    place = Path(root) / "sys/fs/cgroup/memory"
    (place / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert looked(root).memory_bytes == 16 * GIB
    (place / "job/memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    assert looked(root).memory_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("x y z", None)]
)
def test_processors_are_as_many_as_a_cgroup_lets_use(system, text: str, quota: float | None):
    root = system(proc__self__cgroup="0::/\n", sys__fs__cgroup__x="")
    (Path(root) / "sys/fs/cgroup/cpu.max").write_text(text)
    assert looked(root).cpu_quota == quota


MOUNTS = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 8:2 / /data rw - xfs /dev/sdb1 rw
31 22 8:3 / /data/he rw - tmpfs tmpfs rw
32 22 8:4 / /with\040space rw shared:1 - btrfs /dev/sdc rw
33 22 8:5 / /twice rw - ext4 /dev/sdd rw
34 22 8:6 / /twice rw - zfs pool rw
a broken line
"""


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("/data/here", "xfs"),
        ("/data", "xfs"),
        ("/database", "ext4"),
        ("/with space/x", "btrfs"),
        ("/twice/x", "zfs"),
    ],
)
def test_a_file_system_is_that_of_the_nearest_mount_above(system, data: str, kind: str):
    assert looked(system(proc__self__mountinfo=MOUNTS), data).file_system == kind


# Warnings.

SUITABLE = Machine(
    python="CPython 3.11.7",
    kernel="Linux 6.8.0",
    cpus=2,
    cpu_list="0-1",
    cpu_quota=None,
    checksums="hardware",
    file_system="ext4",
    free_bytes=1_000_000_000,
    descriptors_max=4_096,
    memory_bytes=512 * 1024**2,
    page_bytes=4096,
    maps_max=65_530,
    clock_source="tsc",
)


def warned(**changes: Any) -> list[str]:
    return machine_warnings(dataclasses.replace(SUITABLE, **changes), maps_open_max=1024)


def test_a_suitable_machine_has_no_warnings():
    assert warned() == []
    assert warned(memory_bytes=None, maps_max=None, cpu_quota=1.0, file_system="unknown") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file_system": "nfs4"}, "on a network file system (nfs4)"),
        ({"file_system": "tmpfs"}, "on tmpfs: all data is lost when the machine restarts"),
        ({"file_system": "overlay"}, "on overlay: all data is lost with the container"),
        ({"descriptors_max": 1024}, "may have 1024 open files, which limits connections and logs"),
        ({"cpu_quota": 0.5}, "the cgroup allows 0.5 processors"),
        ({"memory_bytes": 256 * 1024**2}, "there are 256 MiB of memory"),
        ({"maps_max": 2000}, "may have 2000 memory maps, and storage.maps_open_max is 1024"),
        ({"clock_source": "hpet"}, "reads the time from hpet"),
        ({"checksums": "software"}, "checksums are computed in software"),
    ],
)
def test_what_is_unsuitable_is_a_warning_with_what_was_found(changes: dict[str, Any], words: str):
    (warning,) = warned(**changes)
    assert words in warning
