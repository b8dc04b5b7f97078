"""Unfinished jobs, and the state of the partitions that contain them."""

from __future__ import annotations

from typing import NamedTuple

LEASED = 0
DELAYED = 1
EXPIRED = 2
"""Its lease ran out, and it was not delivered again: its receipt is still valid."""
RETURNED = 3
"""A worker returned it, and its delay is over: it has no valid receipt."""
DEAD_LETTERING = 4

RECEIPT_VALID = (LEASED, EXPIRED)
"""The newest receipt of such a job is valid."""
TIMED = (LEASED, DELAYED)
"""Such a job has a deadline."""
REDELIVERABLE = (EXPIRED, RETURNED)
"""Such a job can be claimed, or is exhausted."""


class UnfinishedJob:
    """A job that was delivered and is not finished, or a damaged batch."""

    __slots__ = (
        "came_back",
        "deliveries",
        "due_ms",
        "is_damaged",
        "kind",
        "length_ms",
        "number",
        "worker",
    )

    def __init__(self, number: int, kind: int, due_ms: int, length_ms: int) -> None:
        self.number = number
        """Number of its newest delivery, which its receipt names. It never falls, so no receipt
        becomes valid again. 0 for a damaged batch, which is never delivered.
        """
        self.deliveries = number
        """Deliveries that count: all but those that were undone by a release."""
        self.is_damaged = not number
        """Whether its record cannot be decoded: it is not delivered, but becomes a dead letter."""
        self.kind = kind
        self.due_ms = due_ms
        """End of its lease or delay."""
        self.length_ms = length_ms
        """Full length of the lease or delay: after a reboot it starts again."""
        self.came_back: DueJob | None = None
        """Set when its deadline passes: only the newest entry is valid."""
        self.worker = ""
        """The worker that got it last, for `browse_jobs`; not stored."""


class PartitionJobs:
    """The jobs of one partition."""

    __slots__ = ("forgotten", "frontier", "jobs")

    def __init__(self, frontier: int, forgotten: int = 0) -> None:
        self.frontier = frontier
        """All jobs before this offset were delivered at least once."""
        self.forgotten = forgotten
        """Before this offset, some job may have ended in a way that is not remembered."""
        self.jobs: dict[int, UnfinishedJob] = {}

    @property
    def needed_offset(self) -> int:
        """The first offset whose record is still needed."""
        return min(self.jobs, default=self.frontier)


class DueJob(NamedTuple):
    """A job whose deadline passed; valid until something happens to the job."""

    partition: int
    offset: int
    job: UnfinishedJob
    due_ms: int
