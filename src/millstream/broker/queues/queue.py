"""One queue: what workers ask of it."""

from __future__ import annotations

import asyncio
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
"""Characters that are kept of a worker's name, with each job that it has."""


@dataclass(slots=True)
class QueueCounters:
    """Running totals since the queue was opened."""

    claims: int = 0
    """Claims that were answered with jobs."""
    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    extended: int = 0
    stale: int = 0
    """Receipts that counted no more."""


class WorkQueue:
    """A topic with a layer of leases. One event loop owns it.

    A job belongs to at most one worker at a time, by the monotonic clock. Every answer waits until
    what it rests on is durable in the class of the topic.
    """

    def __init__(
        self,
        ledger: QueueStore,
        *,
        topics: Topics,
        appends: RecordAppender,
        timers: Timers,
    ) -> None:
        self.name = ledger.topic.name
        self.topic = ledger.topic
        self.counters = QueueCounters()
        self.ledger = ledger
        self._claims = ClaimService(ledger, timers)
        self._burial = DeadLetterMover(ledger, topics, appends, timers)
        self._callbacks: dict[Callable[[], None], None] = {}
        ledger.on_wake = self._wake
        ledger.on_failure = self._claims.refuse

    async def open(self) -> None:
        """Read what is known of the jobs, and begin to look after them."""
        await self.ledger.open()
        self._burial.wake()

    async def close(self, refusal: MillstreamError) -> None:
        """Tell all who wait `refusal`, and take no more."""
        if self.ledger.refusal is None:
            self.ledger.refusal = refusal
        await self._claims.close(refusal)
        await self._burial.close()
        await self.ledger.close()
        self._tell()

    # What it is.

    @property
    def config(self) -> QueueConfig:
        """What it is set to."""
        return self.ledger.config

    def reconfigure(self, config: QueueConfig) -> None:
        """Go by other settings from here on; leases that were given stay as they are."""
        self.ledger.config = config
        self.ledger.state.limit(config.deliveries_max)
        self._wake()

    def counts(self) -> QueueCounts:
        """Count all jobs. It costs nothing to speak of."""
        return self.ledger.counts()

    @property
    def refusal(self) -> MillstreamError | None:
        """Why it cannot be used any more, if it cannot."""
        return self.ledger.refusal

    @property
    def waiting(self) -> int:
        """How many claims stand in line."""
        return self._claims.waiting

    def is_leased(self, job: LeasedJob) -> bool:
        """Whether a job still belongs to who was handed it, by this very delivery."""
        lane = self.ledger.state.lanes.get(job.partition)
        found = lane.jobs.get(job.record.offset) if lane is not None else None
        return found is not None and found.kind == LEASED and found.deliveries == job.deliveries

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back on the loop when a job may have become claimable, or a lease ended.

        Also when the queue is gone. It should only take note and return.
        """
        self._callbacks[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Call it no more. Harmless where it is not called."""
        self._callbacks.pop(callback, None)

    def _wake(self) -> None:
        self._burial.wake()
        self._claims.wake()
        self._tell()

    def _tell(self) -> None:
        for callback in tuple(self._callbacks):
            callback()

    # What workers ask.

    async def claim(
        self,
        *,
        max_jobs: int = 1,
        lease_ms: int | None = None,
        wait_ms: int = 0,
        worker: str = "",
    ) -> ClaimResult:
        """Return jobs that belong to the caller from now on, for as long as its lease lasts.

        Where there is none, it waits for one, `wait_ms` at the most. Who stops waiting before jobs
        were chosen for it gets none; afterwards, they are given back, and the delivery counts.
        `worker` is shown to those who look, for as long as the node runs.
        """
        check_count("max", max_jobs)
        check_wait(wait_ms)
        lease_ms = check_lease(self.config.lease_ms if lease_ms is None else lease_ms)
        await self.ledger.usable()
        jobs, ticket = await self._claims.claim(
            max_jobs, lease_ms, wait_ms, worker[:WORKER_LENGTH_MAX]
        )
        try:
            cost = await self.ledger.wait(ticket)
        except asyncio.CancelledError:
            self._claims.give_back(jobs)
            raise
        self.counters.claims += bool(jobs)
        self.counters.delivered += len(jobs)
        return ClaimResult(jobs, cost)

    async def ack(self, receipts: Sequence[str]) -> SettleResult:
        """Let jobs be done, for ever. Repeating an ack that succeeded is fine.

        Raises `StaleReceipt` for those whose jobs belong to others or ended otherwise; what was
        asked for the rest was done.
        """
        deliveries = await self._read(receipts)
        settled = await self._settle(receipts, decisions.ack(self.ledger.state, deliveries))
        self.counters.acked += settled.count
        return settled

    async def nack(self, receipts: Sequence[str], *, delay_ms: int = 0) -> SettleResult:
        """Give jobs back, for others to have once `delay_ms` have passed; as `ack` does."""
        check_delay(delay_ms)
        deliveries = await self._read(receipts)
        now_ms = self.ledger.begin_ms() if delay_ms else self.ledger.now_ms()
        decided = decisions.nack(self.ledger.state, deliveries, now_ms=now_ms, delay_ms=delay_ms)
        settled = await self._settle(receipts, decided)
        self.counters.nacked += settled.count
        return settled

    async def extend(self, receipts: Sequence[str], *, lease_ms: int | None = None) -> SettleResult:
        """Let leases last `lease_ms` from now; as `ack` does."""
        lease_ms = check_lease(self.config.lease_ms if lease_ms is None else lease_ms)
        deliveries = await self._read(receipts)
        decided = decisions.extend(
            self.ledger.state, deliveries, now_ms=self.ledger.begin_ms(), lease_ms=lease_ms
        )
        settled = await self._settle(receipts, decided)
        self.counters.extended += settled.count
        return settled

    async def _read(self, receipts: Sequence[str]) -> list[Delivery | None]:
        check_count("receipts", len(receipts))
        await self.ledger.usable()
        read = self.ledger.receipts.read
        return [read(receipt) for receipt in receipts]

    async def _settle(self, receipts: Sequence[str], decided: QueueDecision) -> SettleResult:
        """Commit what was decided; answer once it is durable, and what it rests on."""
        ticket = self.ledger.commit(decided.event)
        if decided.event is not None:
            self.ledger.refresh()
            self._wake()
        cost = await self.ledger.wait(ticket)
        if decided.stale:
            self.counters.stale += len(decided.stale)
            raise StaleReceipt([receipts[place] for place in decided.stale], done=decided.done)
        return SettleResult(decided.done, cost)
