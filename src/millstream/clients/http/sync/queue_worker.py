"""Job loop of a blocking worker, and the thread that extends its leases."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Self

from millstream.clients.http.core import operations
from millstream.clients.http.core.queues.claim_outage import ClaimOutage
from millstream.clients.http.core.queues.claimed_jobs import ClaimedJobs
from millstream.errors import MillstreamError, NodeUnreachable, OutcomeUnknown, StaleReceipt

if TYPE_CHECKING:
    from millstream.clients.http.sync.queue import ClientJob, ClientQueue

logger = logging.getLogger(__name__)


class QueueWorker:
    """Iterator over the jobs of a queue. For one thread; any thread may stop it."""

    def __init__(
        self,
        queue: ClientQueue,
        *,
        ahead: int,
        lease_ms: int | None,
        wait_ms: int,
        worker: str,
        stops_when_empty: bool,
    ) -> None:
        self._queue = queue
        self._ahead = ahead
        self._lease_ms = lease_ms
        self._wait_ms = 0 if stops_when_empty else wait_ms
        self._worker = worker
        self._stops_when_empty = stops_when_empty
        self._jobs: ClaimedJobs[ClientJob] = ClaimedJobs()
        context = queue.client.context
        self._outage = ClaimOutage(queue.name, context.config, jitter=context.jitter)
        self._condition = threading.Condition()
        self._is_stopped = False
        self._extender: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ClientJob]:
        # Not stored on self: the thread refers to self, and an abandoned generator must be freed.
        return self._work()

    def stop(self) -> None:
        """End the loop after the current job. May be called from any thread."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()

    def close(self) -> None:
        """End the loop now and return unacknowledged jobs to the queue.

        Only the job that was being processed counts as delivered.
        """
        self._end()

    def _work(self) -> Generator[ClientJob, None, None]:
        self._extender = threading.Thread(
            target=self._extend, name=f"millstream-leases-{self._queue.name}", daemon=True
        )
        self._extender.start()
        try:
            while (job := self._next()) is not None:
                yield job
                self._ack(job)
        finally:
            self._end()

    def _next(self) -> ClientJob | None:
        """Return the next job; `None` if the loop is stopped, or ends at an empty queue."""
        while not self._is_stopped:
            with self._condition:
                job = self._jobs.next()
            if job is not None:
                return job
            jobs = self._claim()
            if jobs is None:
                continue
            if not jobs and self._stops_when_empty:
                return None
            with self._condition:
                self._jobs.add(jobs, self._queue.client.context.clock.monotonic())
                self._condition.notify_all()
        return None

    def _claim(self) -> list[ClientJob] | None:
        """Return claimed jobs; `None`, after a pause, if it is unknown whether there were any."""
        try:
            jobs = self._queue.claim(
                self._ahead, lease_ms=self._lease_ms, wait_ms=self._wait_ms, worker=self._worker
            )
        except (NodeUnreachable, OutcomeUnknown) as lost:
            if isinstance(lost, NodeUnreachable) and not lost.may_be_done:
                raise
            # Jobs that it handed out return when their leases expire. There may be others now.
            self._queue.client.pause(self._outage.failed(lost))
            return None
        self._outage.succeeded()
        return jobs

    def _ack(self, job: ClientJob) -> None:
        try:
            if not job.is_settled:
                job.ack()
        except StaleReceipt:
            logger.warning(
                "%r was completed after its lease expired; another worker may repeat it", job
            )
        finally:
            with self._condition:
                self._jobs.remove(job)

    def _end(self) -> None:
        """Return unsettled jobs and stop the lease thread."""
        self.stop()
        with self._condition:
            begun, ahead = self._jobs.take_unsettled()
            self._condition.notify_all()
        # If this fails, the jobs return when their leases expire.
        with contextlib.suppress(MillstreamError):
            self._queue.nack(begun)
        with contextlib.suppress(MillstreamError):
            self._queue.release(ahead)
        if self._extender is not None and self._extender is not threading.current_thread():
            self._extender.join()
            self._extender = None

    # The lease thread.

    def _extend(self) -> None:
        clock = self._queue.client.context.clock
        while True:
            with self._condition:
                if self._is_stopped and not len(self._jobs.leases):
                    return
                due_at = self._jobs.leases.next_at()
                now = clock.monotonic()
                if due_at is None or due_at > now:
                    self._condition.wait(None if due_at is None else due_at - now)
                    continue
                receipts = self._jobs.due(now)
            if receipts:
                self._extend_now(receipts)

    def _extend_now(self, receipts: list[str]) -> None:
        client = self._queue.client
        stale: tuple[str, ...] = ()
        lease_s: float | None = None
        try:
            steps = operations.extend(client.context, self._queue.name, receipts, self._lease_ms)
            lease_s = client.run(steps) / 1000
        except StaleReceipt as error:
            stale = error.receipts
        except MillstreamError as error:
            logger.warning("leases of queue %s could not be extended: %s", self._queue.name, error)
        now = client.context.clock.monotonic()
        with self._condition:
            self._jobs.mark_lost(stale)
            if lease_s is not None:
                self._jobs.leases.renew(receipts, lease_s, now)
            else:
                self._jobs.leases.retry_later(receipts, now)
