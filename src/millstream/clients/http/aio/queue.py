"""Queues and jobs of the asyncio client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.clients.http.aio.queue_worker import AsyncQueueWorker
from millstream.clients.http.core import operations
from millstream.clients.http.core.queues.worker_job import WorkerJob
from millstream.clients.http.core.values import ClaimedJob, Placed, QueueState

if TYPE_CHECKING:
    from millstream.clients.http.aio.client import AsyncClient


class AsyncJob(WorkerJob):
    """A claimed job. It belongs to this worker until its lease expires."""

    def __init__(self, queue: AsyncQueue, claimed: ClaimedJob) -> None:
        super().__init__(claimed)
        self._queue = queue

    async def ack(self) -> None:
        """Complete the job. Raises `StaleReceipt` if another worker has it by now."""
        await self._queue.ack([self])

    async def nack(self, *, delay_ms: int = 0) -> None:
        """Return the job to the queue; it can be claimed again after `delay_ms`."""
        await self._queue.nack([self], delay_ms=delay_ms)

    async def release(self) -> None:
        """Return the job untried: this delivery does not count."""
        await self._queue.release([self])

    async def extend(self, *, lease_ms: int | None = None) -> None:
        """Restart the lease, with the queue's lease time or with `lease_ms`."""
        await self._queue.extend([self], lease_ms=lease_ms)


class AsyncQueue:
    """Handle of a queue."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def put(self, value: Any, **options: Any) -> Placed:
        """Add a job: append to the topic of the same name, as `AsyncClient.append` does."""
        return await self._client.append(self.name, value, **options)

    async def claim(
        self,
        max_jobs: int = 1,
        *,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        worker: str = "",
    ) -> list[AsyncJob]:
        """Claim up to `max_jobs` jobs; if there is none, wait up to `wait_ms` for the first.

        Raises `NodeUnreachable` with `may_be_done` set if no response arrived, and `OutcomeUnknown`
        if the node that coordinates the queue did not answer the node that was asked. Jobs that
        were handed out by such a request return to the queue when their leases expire.
        """
        claimed = await self._client.run(
            operations.claim(
                self._client.context,
                self.name,
                max_jobs=max_jobs,
                lease_ms=lease_ms,
                wait_ms=wait_ms,
                worker=worker,
            )
        )
        return [AsyncJob(self, job) for job in claimed]

    async def ack(self, jobs: Iterable[WorkerJob]) -> None:
        """Complete jobs. Raises `StaleReceipt` with those that belong to other workers by now."""
        settled = list(jobs)
        context = self._client.context
        await self._client.run(operations.ack(context, self.name, [job.receipt for job in settled]))
        for job in settled:
            job.is_settled = True

    async def nack(self, jobs: Iterable[WorkerJob], *, delay_ms: int = 0) -> None:
        """Return jobs to the queue; they can be claimed again after `delay_ms`."""
        settled = list(jobs)
        receipts = [job.receipt for job in settled]
        await self._client.run(operations.nack(self._client.context, self.name, receipts, delay_ms))
        for job in settled:
            job.is_settled = True

    async def release(self, jobs: Iterable[WorkerJob]) -> None:
        """Return jobs that were not tried; these deliveries do not count."""
        settled = list(jobs)
        receipts = [job.receipt for job in settled]
        await self._client.run(operations.release(self._client.context, self.name, receipts))
        for job in settled:
            job.is_settled = True

    async def extend(self, jobs: Iterable[WorkerJob], *, lease_ms: int | None = None) -> float:
        """Restart the leases of jobs and return their length in seconds."""
        receipts = [job.receipt for job in jobs]
        steps = operations.extend(self._client.context, self.name, receipts, lease_ms)
        length_ms = await self._client.run(steps)
        return length_ms / 1000

    def work(
        self,
        *,
        ahead: int = 1,
        lease_ms: int | None = None,
        wait_ms: int = 2_000,
        worker: str = "",
        stops_when_empty: bool = False,
    ) -> AsyncQueueWorker:
        """Iterate over jobs.

            async with queue.work() as jobs:
                async for job in jobs:
                    await send_mail(job.value)

        Claims up to `ahead` jobs at a time: more save round trips if jobs are short, but jobs that
        wait here are not processed by other workers. A job is acknowledged when the next one is
        requested. If the `with` block or the loop is left, by an error or by `break`, the current
        job is returned to the queue, and those that were not begun are released, so that their
        delivery does not count. Leases are extended while a job is processed.
        `AsyncQueueWorker.stop` ends the loop after the current job.
        """
        return AsyncQueueWorker(
            self,
            ahead=ahead,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            worker=worker,
            stops_when_empty=stops_when_empty,
        )

    async def counts(self) -> QueueState:
        """Return the settings of the queue and the number of its jobs by state."""
        return await self._client.run(operations.describe_queue(self._client.context, self.name))

    async def delete(self) -> None:
        """Delete the queue. The topic of the same name remains."""
        await self._client.run(operations.delete_queue(self._client.context, self.name))

    @property
    def client(self) -> AsyncClient:
        return self._client

    def __repr__(self) -> str:
        return f"<queue {self.name!r} at {self._client.address}>"
