"""Counters of logs. Plain numbers, so that counting costs almost nothing on the append path."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.errors import BACKPRESSURE_KINDS, BackpressureKind
from millstream.histogram import Histogram

BATCH_BYTES_BUCKETS = tuple(float(4**power) for power in range(3, 13))
"""Upper bounds in bytes: 64 bytes to 16 MiB."""
BATCH_RECORDS_BUCKETS = tuple(float(4**power) for power in range(9))
"""Upper bounds in records: 1 to 65,536."""


@dataclass(slots=True)
class StoreTotals:
    """Running totals of all logs of a store, open or closed."""

    records: int = 0
    bytes: int = 0
    syncs: Histogram = field(default_factory=Histogram)
    """Durations of successful commits."""
    commits: Histogram = field(default_factory=Histogram)
    """Durations from the first write of a commit of class `fsync` to its end."""
    batch_bytes: Histogram = field(default_factory=lambda: Histogram(BATCH_BYTES_BUCKETS))
    """Sizes of written batches."""
    batch_records: Histogram = field(default_factory=lambda: Histogram(BATCH_RECORDS_BUCKETS))
    """Numbers of records in written batches."""
    sync_fallbacks: int = 0
    """Commits that a thread synced because the kernel took no more."""


def _no_backpressure() -> dict[BackpressureKind, int]:
    return dict.fromkeys(BACKPRESSURE_KINDS, 0)


@dataclass(slots=True)
class LogCounters:
    """Running totals of one log since it was opened."""

    appends: int = 0
    records: int = 0
    bytes: int = 0
    writes: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    last_sync_seconds: float = 0.0
    """Duration of the newest commit."""
    rolls: int = 0
    seals: int = 0

    # Batches that were refused, and batches that waited for admission, by the kind of
    # backpressure.
    refusals: dict[BackpressureKind, int] = field(default_factory=_no_backpressure)
    waits: dict[BackpressureKind, int] = field(default_factory=_no_backpressure)

    recovered_bytes: int = 0
    offline: int = 0

    # Evicted by retention, because of age or size.
    evicted_segments: int = 0
    evicted_bytes: int = 0
    evicted_records: int = 0

    # Deletions by key, and the records that they masked.
    deletions: int = 0
    deleted_records: int = 0

    # Decisions: those that this node made as the leader, those that it applied as a leader or a
    # replica, and attempts to apply one that failed.
    decisions: int = 0
    decisions_applied: int = 0
    decision_failures: int = 0

    # Cleaner runs that replaced a segment, and runs that ended early with an error.
    cleanings: int = 0
    cleaning_failures: int = 0
    cleaning_seconds: float = 0.0
    cleaned_bytes_read: int = 0
    cleaned_bytes_written: int = 0
    removed_records: int = 0

    # Moved to the cold store.
    relocated_segments: int = 0
    relocated_bytes: int = 0
