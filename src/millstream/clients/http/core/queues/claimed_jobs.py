"""The jobs that a worker holds: the one that is worked on, and those that were claimed ahead.

Pure, and the same for those who block and those who await; whoever uses it from several threads
keeps them apart.
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
    """What a worker holds, and how long."""

    def __init__(self) -> None:
        self._ahead: deque[J] = deque()
        self.current: J | None = None
        """The job that is worked on."""
        self.leases = Leases()

    def claimed(self, jobs: Sequence[J], now: float) -> None:
        """Take jobs in."""
        self._ahead.extend(jobs)
        for job in jobs:
            self.leases.add([job.receipt], job.lease_s, now)

    def next(self) -> J | None:
        """Return the next job, which is worked on from now; nothing where there is none."""
        self.current = None
        while self._ahead:
            job = self._ahead.popleft()
            if not job.is_lost:
                self.current = job
                return job
        return None

    def due(self, now: float) -> list[str]:
        """Return the receipts of leases that have to be made longer now."""
        if self.current is not None and self.current.is_settled:
            self.leases.remove([self.current.receipt])  # Its worker was quicker than the loop.
        return self.leases.due(now)

    def lost(self, receipts: Iterable[str]) -> None:
        """Take note of leases that ended: their jobs may belong to others."""
        gone = set(receipts)
        self.leases.remove(gone)
        for job in (*self._ahead, self.current):
            if job is not None and job.receipt in gone:
                job.is_lost = True
                logger.warning("the lease of %r ended before it could be made longer", job)

    def settled(self, job: J) -> None:
        """Take note that a job was acked or given back."""
        self.leases.remove([job.receipt])

    def rest(self) -> list[J]:
        """Return what is held and not settled, and hold it no more."""
        held = [*([self.current] if self.current else []), *self._ahead]
        self._ahead.clear()
        self.current = None
        self.leases.remove([job.receipt for job in held])
        return [job for job in held if not job.is_settled and not job.is_lost]
