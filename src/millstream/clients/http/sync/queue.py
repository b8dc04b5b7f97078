"""A queue and its jobs, for those who block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.clients.http.core import operations as calls
from millstream.clients.http.core.queues.worker_job import WorkerJob
from millstream.clients.http.core.values import ClaimedJob, Placed, QueueState
from millstream.clients.http.sync.queue_worker import QueueWorker

if TYPE_CHECKING:
    from millstream.clients.http.sync.client import Client


class ClientJob(WorkerJob):
    """A job that belongs to a worker, until its lease ends."""

    def __init__(self, queue: ClientQueue, claimed: ClaimedJob) -> None:
        super().__init__(claimed)
        self._queue = queue

    def ack(self) -> None:
        """Say that it is done. Raises `StaleReceipt` where it belongs to someone else by now."""
        self._queue.ack([self])

    def nack(self, *, delay_ms: int = 0) -> None:
        """Give it back: others may have it, after `delay_ms`."""
        self._queue.nack([self], delay_ms=delay_ms)

    def extend(self, *, lease_ms: int | None = None) -> None:
        """Have its lease begin anew, with what the queue is set to or with `lease_ms`."""
        self._queue.extend([self], lease_ms=lease_ms)


class ClientQueue:
    """A queue of a node, by its name."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def put(self, value: Any, **options: Any) -> Placed:
        """Put a job in; as `Client.append` to the topic of the same name, which it is."""
        return self._client.append(self.name, value, **options)

    def claim(
        self,
        max_jobs: int = 1,
        *,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        worker: str = "",
    ) -> list[ClientJob]:
        """Claim up to `max_jobs`; waits up to `wait_ms` for the first where there is none.

        Raises `NodeUnreachable` with `may_be_done` where no answer came: jobs that were given out
        by that come back when their leases run out.
        """
        found = self._client.run(
            calls.claim(
                self._client.around,
                self.name,
                max_jobs=max_jobs,
                lease_ms=lease_ms,
                wait_ms=wait_ms,
                worker=worker,
            )
        )
        return [ClientJob(self, one) for one in found]

    def ack(self, jobs: Iterable[WorkerJob]) -> None:
        """Say that jobs are done. Raises `StaleReceipt` with those that belong to others by now."""
        settled = list(jobs)
        around = self._client.around
        self._client.run(calls.ack(around, self.name, [one.receipt for one in settled]))
        for job in settled:
            job.is_settled = True

    def nack(self, jobs: Iterable[WorkerJob], *, delay_ms: int = 0) -> None:
        """Give jobs back: others may have them, after `delay_ms`."""
        settled = list(jobs)
        receipts = [one.receipt for one in settled]
        self._client.run(calls.nack(self._client.around, self.name, receipts, delay_ms))
        for job in settled:
            job.is_settled = True

    def extend(self, jobs: Iterable[WorkerJob], *, lease_ms: int | None = None) -> float:
        """Have leases begin anew; return how many seconds they last."""
        receipts = [one.receipt for one in jobs]
        steps = calls.extend(self._client.around, self.name, receipts, lease_ms)
        return self._client.run(steps) / 1000

    def work(
        self,
        *,
        ahead: int = 10,
        lease_ms: int | None = None,
        wait_ms: int = 2_000,
        worker: str = "",
        stops_when_empty: bool = False,
    ) -> QueueWorker:
        """Work on jobs, one after the other.

            for job in queue.work():
                send_mail(job.value)

        Up to `ahead` jobs are claimed at once. A job is acked when the next one is asked for, and
        given back when the loop is left in another way: by an error, or by `break`. Leases are made
        longer for as long as it takes. `QueueWorker.stop`, from any thread, ends the loop after the
        current job.
        """
        return QueueWorker(
            self,
            ahead=ahead,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            worker=worker,
            stops_when_empty=stops_when_empty,
        )

    def counts(self) -> QueueState:
        """Count its jobs, and tell what it is set to."""
        return self._client.run(calls.describe_queue(self._client.around, self.name))

    def delete(self) -> None:
        """Delete it; the topic of the same name stays."""
        self._client.run(calls.delete_queue(self._client.around, self.name))

    @property
    def client(self) -> Client:
        """The client that it belongs to."""
        return self._client

    def __repr__(self) -> str:
        return f"<queue {self.name!r} at {self._client.address}>"
