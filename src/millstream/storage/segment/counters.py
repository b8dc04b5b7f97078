"""What a log counts. Plain numbers: counting must cost nothing where records pass by."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.histogram import Histogram


@dataclass(slots=True)
class StoreTotals:
    """Running totals of all logs of a store, whichever are open."""

    records: int = 0
    bytes: int = 0
    syncs: Histogram = field(default_factory=Histogram)
    """How long the disk took for commits that succeeded."""
    commits: Histogram = field(default_factory=Histogram)
    """The same from when the first of what was committed was written."""


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
    """How long the newest commit took: that which acknowledged what was acknowledged last."""
    rolls: int = 0
    seals: int = 0
    refusals_full: int = 0
    refusals_busy: int = 0
    refusals_limit: int = 0

    # Batches that had to wait to be admitted, by what they waited for.
    waits_log: int = 0
    waits_store: int = 0
    waits_sealing: int = 0

    recovered_bytes: int = 0
    offline: int = 0

    # What went because of its age or of how much there was.
    evicted_segments: int = 0
    evicted_bytes: int = 0
    evicted_records: int = 0

    # What was deleted by key: how often, and how many records it hid.
    deletions: int = 0
    deleted_records: int = 0

    # What cleaning did: runs that replaced something, and those that ended early by an error.
    cleanings: int = 0
    cleaning_failures: int = 0
    cleaning_seconds: float = 0.0
    cleaned_bytes_read: int = 0
    cleaned_bytes_written: int = 0
    removed_records: int = 0
