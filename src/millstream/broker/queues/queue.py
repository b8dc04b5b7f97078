"""One work queue: the operations that workers call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.broker.queues import decisions
from millstream.broker.queues.claims import ClaimService
from millstream.broker.queues.dead_letter_mover import DeadLetterMover
from millstream.broker.queues.decisions import QueueDecision
from millstream.broker.queues.jobs import LEASED
from millstream.broker.queues.queue_store import QueueStore
from millstream.broker.queues.receipts import Delivery
from millstream.broker.queues.values import (
    ClaimResult,
    LeasedJob,
    QueueConfig,
    QueueCounts,
    SettleResult,
    check_count,
    check_delay,
    check_lease,
    check_wait,
)
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topics import Topics
from millstream.clock import Timers
from millstream.errors import MillstreamError, StaleReceipt

WORKER_LENGTH_MAX = 255
"""Characters stored of a worker's name, with each job that it has."""


@dataclass(slots=True)
class QueueCounters:
    """Running totals since the queue was opened."""

    claims: int = 0
    """Claims answered with at least one job."""
    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    released: int = 0
    extended: int = 0
    stale: int = 0
    """Receipts refused because they were not valid any more."""


class WorkQueue:
    """A topic whose records are leased to workers. Owned by one event loop.

    A job is leased to at most one worker at a time, by the monotonic clock. Every answer waits
    until everything it depends on is durable in the class of the topic.
    """

    def __init__(
        self,
        store: QueueStore,
        *,
        topics: Topics,
        appends: RecordAppender,
        timers: Timers,
    ) -> None:
        self.name = store.topic.name
        self.topic = store.topic
        self.counters = QueueCounters()
        self.store = store
        self._claims = ClaimService(store, timers)
        self._dead_letters = DeadLetterMover(store, topics, appends, timers)
        self._callbacks: dict[Callable[[], None], None] = {}
        store.on_wake = self._wake
        store.on_failure = self._claims.refuse

    async def open(self) -> None:
        """Replay the log of the queue, and resume moving dead letters."""
        await self.store.open()
        self._dead_letters.wake()

    async def close(self, refusal: MillstreamError) -> None:
        """Refuse new requests, and let those that wait fail with `refusal`."""
        if self.store.refusal is None:
            self.store.refusal = refusal
        await self._claims.close(refusal)
        await self._dead_letters.close()
        await self.store.close()
        self._notify()

    @property
    def config(self) -> QueueConfig:
        return self.store.config

    def reconfigure(self, config: QueueConfig) -> None:
        """Apply new settings. Leases that were granted do not change."""
        self.store.config = config
        self.store.state.limit(config.deliveries_max)
        self._wake()

    def counts(self) -> QueueCounts:
        """Count the jobs of each state, in constant time."""
        return self.store.counts()

    @property
    def refusal(self) -> MillstreamError | None:
        """Why the queue cannot be used, if it cannot."""
        return self.store.refusal

    @property
    def waiting(self) -> int:
        """Number of claims that wait for jobs."""
        return self._claims.waiting

    def is_leased(self, job: LeasedJob) -> bool:
        """Return whether this delivery of a job is still the one that holds the lease."""
        leased = self.store.state.job(job.partition, job.record.offset)
        return leased is not None and leased.kind == LEASED and leased.number == job.number

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop when a job may have become claimable, or a lease ended.

        It is also called when the queue is closed. It must not block.
        """
        self._callbacks[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`. Does nothing if it is not registered."""
        self._callbacks.pop(callback, None)

    def _wake(self) -> None:
        self._dead_letters.wake()
        self._claims.wake()
        self._notify()

    def _notify(self) -> None:
        for callback in tuple(self._callbacks):
            callback()

    async def claim(
        self,
        *,
        max_jobs: int = 1,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        worker: str = "",
    ) -> ClaimResult:
        """Lease up to `max_jobs` jobs to the caller for `lease_ms`.

        If there is none, wait for one, at most `wait_ms`. If the call is cancelled before jobs were
        chosen, it has no effect; afterwards the jobs are released. `worker` is shown by
        `browse_jobs` until the node restarts.
        """
        check_count("max", max_jobs)
        check_wait(wait_ms)
        lease_ms = check_lease(self.config.lease_ms if lease_ms is None else lease_ms)
        worker = worker[:WORKER_LENGTH_MAX]
        result = await self._claims.claim(max_jobs, lease_ms, wait_ms, worker)
        if not result.jobs and not wait_ms and await self.store.catch_up():
            result = await self._claims.claim(max_jobs, lease_ms, 0, worker)
        self.counters.claims += bool(result.jobs)
        self.counters.delivered += len(result.jobs)
        return result

    async def ack(self, receipts: Sequence[str]) -> SettleResult:
        """Finish jobs. Repeating an ack that succeeded succeeds.

        Raises `StaleReceipt` for receipts whose job is leased to another worker or ended otherwise;
        the other receipts of the request are acked.
        """
        deliveries = await self._read(receipts)
        settled = await self._settle(receipts, decisions.ack(self.store.state, deliveries))
        self.counters.acked += settled.count
        return settled

    async def nack(self, receipts: Sequence[str], *, delay_ms: int = 0) -> SettleResult:
        """Return jobs, claimable after `delay_ms`. Treats stale receipts as `ack` does."""
        check_delay(delay_ms)
        deliveries = await self._read(receipts)
        now_ms = self.store.begin_ms() if delay_ms else self.store.now_ms()
        decided = decisions.nack(self.store.state, deliveries, now_ms=now_ms, delay_ms=delay_ms)
        settled = await self._settle(receipts, decided)
        self.counters.nacked += settled.count
        return settled

    async def release(self, receipts: Sequence[str]) -> SettleResult:
        """Return jobs that were not tried: the delivery does not count, and the receipt is stale.

        Treats stale receipts as `ack` does.
        """
        deliveries = await self._read(receipts)
        decided = decisions.release(self.store.state, deliveries, now_ms=self.store.now_ms())
        settled = await self._settle(receipts, decided)
        self.counters.released += settled.count
        return settled

    async def extend(self, receipts: Sequence[str], *, lease_ms: int | None = None) -> SettleResult:
        """Let leases end `lease_ms` from now. Treats stale receipts as `ack` does."""
        lease_ms = check_lease(self.config.lease_ms if lease_ms is None else lease_ms)
        deliveries = await self._read(receipts)
        decided = decisions.extend(
            self.store.state, deliveries, now_ms=self.store.begin_ms(), lease_ms=lease_ms
        )
        settled = await self._settle(receipts, decided)
        self.counters.extended += settled.count
        return settled

    async def _read(self, receipts: Sequence[str]) -> list[Delivery | None]:
        check_count("receipts", len(receipts))
        await self.store.usable()
        read = self.store.receipts.read
        return [read(receipt) for receipt in receipts]

    async def _settle(self, receipts: Sequence[str], decided: QueueDecision) -> SettleResult:
        """Commit a decision, and answer once it is durable, with everything it depends on."""
        ticket = self.store.commit(decided.event)
        if decided.event is not None:
            self.store.refresh()
            self._wake()
        timings = await self.store.wait(ticket)
        if decided.stale:
            self.counters.stale += len(decided.stale)
            raise StaleReceipt([receipts[index] for index in decided.stale], done=decided.done)
        return SettleResult(decided.done, timings)
