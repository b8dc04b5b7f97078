"""A job that was handed out and is not done, and what is known of a partition."""

from __future__ import annotations

from typing import NamedTuple

LEASED = 0
DELAYED = 1
EXPIRED = 2
"""Its lease ran out, and nobody else has it: its receipt still counts."""
RETURNED = 3
"""Given back, and its delay is over: nobody has a receipt that counts."""
DEAD_LETTERING = 4

RECEIPT_VALID = (LEASED, EXPIRED)
"""The newest receipt of such a job counts."""
TIMED = (LEASED, DELAYED)
"""Time will change them."""
REDELIVERABLE = (EXPIRED, RETURNED)
"""Such a job can be claimed, or is doomed."""


class UnfinishedJob:
    """A job that was handed out, and is not done."""

    __slots__ = ("came_back", "deliveries", "due_ms", "kind", "length_ms", "worker")

    def __init__(self, deliveries: int, kind: int, due_ms: int, length_ms: int) -> None:
        self.deliveries = deliveries
        self.kind = kind
        self.due_ms = due_ms
        """When its lease or its delay is over."""
        self.length_ms = length_ms
        """How long that lasts from its beginning: so long again, after a reboot."""
        self.came_back: DueJob | None = None
        """When its time came for the last time."""
        self.worker = ""
        """Who was handed it last, for those who look; nothing is kept of that on the disk."""


class PartitionJobs:
    """What is known of one partition."""

    __slots__ = ("forgotten", "frontier", "jobs")

    def __init__(self, frontier: int, forgotten: int = 0) -> None:
        self.frontier = frontier
        """All before it was handed out at least once, or is no job."""
        self.forgotten = forgotten
        """Before it, some job may have ended in a way that is not remembered."""
        self.jobs: dict[int, UnfinishedJob] = {}

    @property
    def needed_offset(self) -> int:
        """The first offset whose record is still needed."""
        return min(self.jobs, default=self.frontier)


class DueJob(NamedTuple):
    """A job whose time has come; it counts until something happens to the job."""

    partition: int
    offset: int
    job: UnfinishedJob
    due_ms: int
