"""What a log counts. Plain numbers: counting must cost nothing where records pass by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Running totals of one log since it was opened."""

    appends: int = 0
    records: int = 0
    bytes: int = 0
    writes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    rolls: int = 0
    seals: int = 0
    refusals_full: int = 0
    refusals_busy: int = 0
    recovered_bytes: int = 0
    offline: int = 0
