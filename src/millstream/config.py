"""What can be set, as frozen values that were checked once.

`LogConfig` is what one topic may set, `StoreConfig` what one process may set. No dictionary of
options travels further inward than here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from millstream.errors import InvalidConfig

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
DAY_MS = 24 * 60 * 60 * 1000


class Durability(enum.Enum):
    """What an acknowledgement promises."""

    EPHEMERAL = "ephemeral"
    """Kept in memory only; gone when the process ends."""

    MEMORY = "memory"
    """Acknowledged once it is in the process's memory, written to its file soon after."""

    DISK = "disk"
    """Acknowledged once the kernel has it: survives the death of the process, not of the power."""

    FSYNC = "fsync"
    """Acknowledged once the disk has it: survives a power cut at any instant."""


class _Limited:
    """Checks every whole number of a config against its limits, and names what is allowed."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {}

    def __post_init__(self) -> None:
        for name, (least, most) in self._limits.items():
            _check_number(name, getattr(self, name), least, most)


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidConfig(f"{name} is {value!r}, a whole number is needed")
    if not least <= value <= most:
        raise InvalidConfig(f"{name} is {value}, allowed is {least} to {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(_Limited):
    """What one topic may set for its logs."""

    durability: Durability = Durability.FSYNC
    """What an acknowledgement promises. We do not ship a default that loses data."""

    segment_bytes_max: int = 256 * MIB
    """A segment is closed before it would grow past this."""

    segment_records_max: int = 2**31 - 1
    """A segment is closed before it would hold more records than this."""

    segment_age_ms_max: int = 7 * DAY_MS
    """A segment is closed when its first batch is older than this."""

    index_interval_bytes: int = 4 * KIB
    """One index entry for every so many bytes of log."""

    batch_size_max: int = 16 * MIB
    """Larger batches are refused."""

    unflushed_bytes_max: int = 64 * MIB
    """How much may wait for the disk before appenders have to wait too."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        # A segment's positions fit 31 bits, as Kafka's tools expect of a `.log` file.
        "segment_bytes_max": (1 * KIB, 2 * GIB - 1),
        "segment_records_max": (1, 2**31 - 1),
        "segment_age_ms_max": (1, 2**53),
        "index_interval_bytes": (64, 16 * MIB),
        "batch_size_max": (61, 64 * MIB),
        "unflushed_bytes_max": (1, 16 * GIB),
    }

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        if not isinstance(self.durability, Durability):
            allowed = ", ".join(kind.value for kind in Durability)
            raise InvalidConfig(f"durability is {self.durability!r}, allowed is {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(_Limited):
    """What one process may set for all its logs."""

    sync_threads: int = 4
    """Threads that wait for the disk. The kernel joins concurrent syncs, so a few suffice."""

    writers_open_max: int = 256
    """Logs whose two files stay open for writing; beyond, those opened first are closed when idle.
    Twice as many descriptors, then: half of what a process may have by default."""

    maps_open_max: int = 1024
    """Sealed segments and indexes that stay mapped."""

    unflushed_bytes_max: int = 512 * MIB
    """How much of all logs together may wait for the disk before appenders have to wait."""

    ephemeral_bytes_max: int = 256 * MIB
    """What all `ephemeral` logs together may hold."""

    _limits: ClassVar[dict[str, tuple[int, int]]] = {
        "sync_threads": (1, 64),
        "writers_open_max": (1, 1_000_000),
        # Far below the kernel's default of 65,530 maps for one process.
        "maps_open_max": (1, 32_768),
        "unflushed_bytes_max": (1, 64 * GIB),
        "ephemeral_bytes_max": (1 * KIB, 1024 * GIB),
    }


def durability_named(name: str) -> Durability:
    """Return the durability class that is called `name`."""
    try:
        return Durability(name)
    except ValueError:
        allowed = ", ".join(kind.value for kind in Durability)
        raise InvalidConfig(f"durability is {name!r}, allowed is {allowed}") from None


def settings_of(config: LogConfig | StoreConfig) -> dict[str, Any]:
    """Return the settings of `config` by name, as plain values."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {k: v.value if isinstance(v, Durability) else v for k, v in values.items()}
