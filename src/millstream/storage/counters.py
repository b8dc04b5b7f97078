"""What a log counts. Plain numbers: counting must cost nothing where records pass by."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

COMMIT_SECONDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Upper ends of the buckets into which the time of a commit falls."""


@dataclass(slots=True)
class Totals:
    """Running totals of all logs of a store, whichever are open."""

    records: int = 0
    bytes: int = 0
    by_seconds: list[int] = field(default_factory=lambda: [0] * (len(COMMIT_SECONDS) + 1))
    """How many commits took so long; not summed up."""

    def note_commit(self, seconds: float) -> None:
        """Count a commit."""
        self.by_seconds[bisect_left(COMMIT_SECONDS, seconds)] += 1


@dataclass(slots=True)
class Counters:
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
