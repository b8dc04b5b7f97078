"""Facts that a figure depends on besides the code: the machine, its disk and the libraries."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import millstream

LIBRARIES = (
    "millstream",
    "uvloop",
    "crc32c",
    "xxhash",
    "cramjam",
    "numba",
    "numpy",
    "pyarrow",
    "pyspark",
)


def machine_facts(folder: Path) -> dict[str, str]:
    """Describe the machine, with the file system that `folder` is on."""
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in LIBRARIES),
        "load at the start": _load(),
    }


class Watch:
    """What happens around a run, from now on: other work on the machine, edits of the code."""

    def __init__(self) -> None:
        self._began = _scheduled()
        self._source = _source_digest()

    def facts(self) -> dict[str, str]:
        """Say how much the machine had to do besides, and whether the code stayed the same."""
        running, waiting = (now - then for now, then in zip(_scheduled(), self._began, strict=True))
        share = waiting / max(1, running + waiting)
        return {
            "load at the end": _load(),
            "ready but waiting for a core": f"{share:.0%} of the time",
            "code": self._source if self._source == _source_digest() else "changed during the run",
        }


def _scheduled() -> tuple[int, int]:
    """Nanoseconds that the main thread ran, and that it waited for a core."""
    running, waiting, _ = Path("/proc/self/schedstat").read_text().split()
    return int(running), int(waiting)


def _source_digest() -> str:
    """Tell one state of the package from another, committed or not."""
    package = Path(millstream.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return f"millstream with digest {digest.hexdigest()[:12]}"


def _load() -> str:
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return type and options of the mount that holds `folder`: the longest that it is below."""
    path = folder.resolve()
    found = (Path("/"), "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if path.is_relative_to(mount) and len(Path(mount).parts) >= len(found[0].parts):
            found = (Path(mount), f"{kind} ({options})")
    return found[1]


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"
