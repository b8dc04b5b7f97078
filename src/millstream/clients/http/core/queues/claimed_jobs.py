"""Jobs that a worker has claimed: the current one, and those claimed ahead.

Does no I/O; shared by the blocking and the asyncio worker. Not thread-safe: a caller with several
threads holds a lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from millstream.clients.http.core.queues.leases import Leases
from millstream.clients.http.core.queues.worker_job import WorkerJob

logger = logging.getLogger(__name__)

J = TypeVar("J", bound=WorkerJob)


class ClaimedJobs(Generic[J]):
    """Claimed jobs and their leases."""

    def __init__(self) -> None:
        self._ahead: deque[J] = deque()
        self.current: J | None = None
        """The job that is being processed."""
        self.leases = Leases()

    def add(self, jobs: Sequence[J], now: float) -> None:
        """Add jobs that were just claimed."""
        self._ahead.extend(jobs)
        for job in jobs:
            self.leases.add([job.receipt], job.lease_s, now)

    def next(self) -> J | None:
        """Make the next job the current one and return it; `None` if there is none."""
        self.current = None
        while self._ahead:
            job = self._ahead.popleft()
            if not job.is_lost:
                self.current = job
                return job
        return None

    def due(self, now: float) -> list[str]:
        """Return the receipts of leases that have to be extended now."""
        if self.current is not None and self.current.is_settled:
            self.leases.remove([self.current.receipt])  # Settled by the worker, not by the loop.
        return self.leases.due(now)

    def mark_lost(self, receipts: Iterable[str]) -> None:
        """Mark jobs whose leases expired: other workers may have them."""
        lost = set(receipts)
        self.leases.remove(lost)
        for job in (*self._ahead, self.current):
            if job is not None and job.receipt in lost:
                job.is_lost = True
                logger.warning("the lease of %r expired before it could be extended", job)

    def remove(self, job: J) -> None:
        """Stop extending the lease of a job that was settled."""
        self.leases.remove([job.receipt])

    def take_unsettled(self) -> tuple[list[J], list[J]]:
        """Remove all jobs and return those that are neither settled nor lost.

        The first list has the job that was being processed, the second those that were not begun.
        """
        begun, ahead = [self.current] if self.current else [], list(self._ahead)
        self._ahead.clear()
        self.current = None
        self.leases.remove([job.receipt for job in (*begun, *ahead)])
        return _held(begun), _held(ahead)


def _held(jobs: list[J]) -> list[J]:
    return [job for job in jobs if not job.is_settled and not job.is_lost]
