"""A queue and its jobs, for those who await."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.clients.http.aio.queue_worker import AsyncQueueWorker
from millstream.clients.http.core import operations as calls
from millstream.clients.http.core.queues.worker_job import WorkerJob
from millstream.clients.http.core.values import ClaimedJob, Placed, QueueState

if TYPE_CHECKING:
    from millstream.clients.http.aio.client import AsyncClient


class AsyncJob(WorkerJob):
    """A job that belongs to a worker, until its lease ends."""

    def __init__(self, queue: AsyncQueue, claimed: ClaimedJob) -> None:
        super().__init__(claimed)
        self._queue = queue

    async def ack(self) -> None:
        """Say that it is done. Raises `StaleReceipt` where it belongs to someone else by now."""
        await self._queue.ack([self])

    async def nack(self, *, delay_ms: int = 0) -> None:
        """Give it back: others may have it, after `delay_ms`."""
        await self._queue.nack([self], delay_ms=delay_ms)

    async def extend(self, *, lease_ms: int | None = None) -> None:
        """Have its lease begin anew, with what the queue is set to or with `lease_ms`."""
        await self._queue.extend([self], lease_ms=lease_ms)


class AsyncQueue:
    """A queue of a node, by its name."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def put(self, value: Any, **options: Any) -> Placed:
        """Put a job in; as `AsyncClient.append` to the topic of the same name, which it is."""
        return await self._client.append(self.name, value, **options)

    async def claim(
        self,
        max_jobs: int = 1,
        *,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        worker: str = "",
    ) -> list[AsyncJob]:
        """Claim up to `max_jobs`; waits up to `wait_ms` for the first where there is none.

        Raises `NodeUnreachable` with `may_be_done` where no answer came: jobs that were given out
        by that come back when their leases run out.
        """
        found = await self._client.run(
            calls.claim(
                self._client.around,
                self.name,
                max_jobs=max_jobs,
                lease_ms=lease_ms,
                wait_ms=wait_ms,
                worker=worker,
            )
        )
        return [AsyncJob(self, one) for one in found]

    async def ack(self, jobs: Iterable[WorkerJob]) -> None:
        """Say that jobs are done. Raises `StaleReceipt` with those that belong to others by now."""
        settled = list(jobs)
        around = self._client.around
        await self._client.run(calls.ack(around, self.name, [one.receipt for one in settled]))
        for job in settled:
            job.is_settled = True

    async def nack(self, jobs: Iterable[WorkerJob], *, delay_ms: int = 0) -> None:
        """Give jobs back: others may have them, after `delay_ms`."""
        settled = list(jobs)
        receipts = [one.receipt for one in settled]
        await self._client.run(calls.nack(self._client.around, self.name, receipts, delay_ms))
        for job in settled:
            job.is_settled = True

    async def extend(self, jobs: Iterable[WorkerJob], *, lease_ms: int | None = None) -> float:
        """Have leases begin anew; return how many seconds they last."""
        receipts = [one.receipt for one in jobs]
        steps = calls.extend(self._client.around, self.name, receipts, lease_ms)
        return (await self._client.run(steps)) / 1000

    def work(
        self,
        *,
        ahead: int = 10,
        lease_ms: int | None = None,
        wait_ms: int = 2_000,
        worker: str = "",
        stops_when_empty: bool = False,
    ) -> AsyncQueueWorker:
        """Work on jobs, one after the other.

            async with queue.work() as jobs:
                async for job in jobs:
                    await send_mail(job.value)

        Up to `ahead` jobs are claimed at once. A job is acked when the next one is asked for, and
        given back when `async with queue.work() as jobs` is left in another way: by an error, or
        by `break`. Leases are extended for as long as it takes. `AsyncQueueWorker.stop` ends the
        loop after the current job.
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
        """Count its jobs, and tell what it is set to."""
        return await self._client.run(calls.describe_queue(self._client.around, self.name))

    async def delete(self) -> None:
        """Delete it; the topic of the same name stays."""
        await self._client.run(calls.delete_queue(self._client.around, self.name))

    @property
    def client(self) -> AsyncClient:
        """The client that it belongs to."""
        return self._client

    def __repr__(self) -> str:
        return f"<queue {self.name!r} at {self._client.address}>"
