"""Job loop of an asyncio worker, and the task that extends its leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Self

from millstream.clients.http.core import operations
from millstream.clients.http.core.queues.claim_outage import ClaimOutage
from millstream.clients.http.core.queues.claimed_jobs import ClaimedJobs
from millstream.errors import MillstreamError, NodeUnreachable, OutcomeUnknown, StaleReceipt

if TYPE_CHECKING:
    from millstream.clients.http.aio.queue import AsyncJob, AsyncQueue

logger = logging.getLogger(__name__)


class AsyncQueueWorker:
    """Iterator over the jobs of a queue. For one task; any task may stop it."""

    def __init__(
        self,
        queue: AsyncQueue,
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
        self._jobs: ClaimedJobs[AsyncJob] = ClaimedJobs()
        context = queue.client.context
        self._outage = ClaimOutage(queue.name, context.config, jitter=context.jitter)
        self._changed = asyncio.Event()
        self._is_stopped = False
        self._extender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[AsyncJob]:
        # Not stored on self: the task refers to self, and an abandoned generator must be freed.
        return self._work()

    def stop(self) -> None:
        """End the loop after the current job."""
        self._is_stopped = True

    async def close(self) -> None:
        """End the loop now and return unacknowledged jobs to the queue.

        Only the job that was being processed counts as delivered.
        """
        await self._end()

    async def _work(self) -> AsyncGenerator[AsyncJob, None]:
        self._extender = asyncio.get_running_loop().create_task(self._extend())
        try:
            while (job := await self._next()) is not None:
                yield job
                await self._ack(job)
        finally:
            await self._end()

    async def _next(self) -> AsyncJob | None:
        """Return the next job; `None` if the loop is stopped, or ends at an empty queue."""
        while not self._is_stopped:
            if (job := self._jobs.next()) is not None:
                return job
            jobs = await self._claim()
            if jobs is None:
                continue
            if not jobs and self._stops_when_empty:
                return None
            self._jobs.add(jobs, self._queue.client.context.clock.monotonic())
            self._changed.set()
        return None

    async def _claim(self) -> list[AsyncJob] | None:
        """Return claimed jobs; `None`, after a pause, if it is unknown whether there were any."""
        try:
            jobs = await self._queue.claim(
                self._ahead, lease_ms=self._lease_ms, wait_ms=self._wait_ms, worker=self._worker
            )
        except (NodeUnreachable, OutcomeUnknown) as lost:
            if isinstance(lost, NodeUnreachable) and not lost.may_be_done:
                raise
            # Jobs that it handed out return when their leases expire. There may be others now.
            await self._queue.client.pause(self._outage.failed(lost))
            return None
        self._outage.succeeded()
        return jobs

    async def _ack(self, job: AsyncJob) -> None:
        try:
            if not job.is_settled:
                await job.ack()
        except StaleReceipt:
            logger.warning(
                "%r was completed after its lease expired; another worker may repeat it", job
            )
        finally:
            self._jobs.remove(job)

    async def _end(self) -> None:
        """Stop the lease task and return unsettled jobs."""
        self.stop()
        extender, self._extender = self._extender, None
        if extender is not None:
            extender.cancel()
            await asyncio.gather(extender, return_exceptions=True)
        begun, ahead = self._jobs.take_unsettled()
        # If this fails, the jobs return when their leases expire.
        with contextlib.suppress(MillstreamError):
            await self._queue.nack(begun)
        with contextlib.suppress(MillstreamError):
            await self._queue.release(ahead)

    # The lease task.

    async def _extend(self) -> None:
        clock = self._queue.client.context.clock
        while True:
            self._changed.clear()
            due_at = self._jobs.leases.next_at()
            now = clock.monotonic()
            if due_at is not None and due_at <= now:
                if receipts := self._jobs.due(now):
                    await self._extend_now(receipts)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due_at is None else due_at - now):
                    await self._changed.wait()

    async def _extend_now(self, receipts: list[str]) -> None:
        client = self._queue.client
        stale: tuple[str, ...] = ()
        lease_s: float | None = None
        try:
            steps = operations.extend(client.context, self._queue.name, receipts, self._lease_ms)
            lease_s = await client.run(steps) / 1000
        except StaleReceipt as error:
            stale = error.receipts
        except MillstreamError as error:
            logger.warning("leases of queue %s could not be extended: %s", self._queue.name, error)
        now = client.context.clock.monotonic()
        self._jobs.mark_lost(stale)
        if lease_s is not None:
            self._jobs.leases.renew(receipts, lease_s, now)
        else:
            self._jobs.leases.retry_later(receipts, now)
