"""Who wants jobs, and gets them: a line of claimers, served in turn or evenly.

Jobs that came back go first, by when they did; then those that nobody had yet, by their offsets,
one partition after the other. Records are read before anything is decided, and the decision is made
in one turn of the loop: what happened to a job while its record was read, counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from millstream.broker.queues.decisions import claimable, drop_deleted_jobs, nack
from millstream.broker.queues.events import FirstDeliveries, JobsDelivered, group_jobs, runs_of
from millstream.broker.queues.queue_store import QueueStore
from millstream.broker.queues.read_ahead import ReadAhead, read_offsets
from millstream.broker.queues.receipts import Delivery
from millstream.broker.queues.values import CLAIM_MAX, LeasedJob
from millstream.clock import Timer, Timers
from millstream.errors import Busy, MillstreamError
from millstream.records.record import StoredRecord

logger = logging.getLogger(__name__)

CLAIMERS_MAX = 10_000
"""Claimers that may wait at one queue: each is a request that is held open."""


class ClaimGrant(NamedTuple):
    """What a claimer gets, and what has to be durable before it is told."""

    jobs: list[LeasedJob]
    ticket: asyncio.Future[None] | None


class Claimer:
    """Someone in line."""

    __slots__ = ("future", "is_waiting", "lease_ms", "max_jobs", "timer", "worker")

    def __init__(self, max_jobs: int, lease_ms: int, *, is_waiting: bool, worker: str) -> None:
        self.worker = worker
        self.max_jobs = max_jobs
        self.lease_ms = lease_ms
        self.is_waiting = is_waiting
        """Whether it stays where there is no job for it."""
        self.future: asyncio.Future[ClaimGrant] = asyncio.get_running_loop().create_future()
        self.timer: Timer | None = None


class ClaimService:
    """Serves the claimers of one queue."""

    def __init__(self, ledger: QueueStore, timers: Timers) -> None:
        self._ledger = ledger
        self._timers = timers
        self._line: deque[Claimer] = deque()
        self._window: Timer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._is_woken = False
        self._stocks: dict[int, ReadAhead] = {}
        self._records: dict[tuple[int, int], StoredRecord] = {}
        """Records of jobs that came back, read a moment ago."""
        self._turn = 0

    # The line.

    async def claim(
        self, max_jobs: int, lease_ms: int, wait_ms: int, worker: str = ""
    ) -> ClaimGrant:
        """Stand in line for jobs; returns none where there was none in time."""
        if len(self._line) >= CLAIMERS_MAX:
            raise Busy(f"{len(self._line)} claims wait at {self._ledger.topic.name} already")
        claimer = Claimer(max_jobs, lease_ms, is_waiting=wait_ms > 0, worker=worker)
        if wait_ms > 0:
            claimer.timer = self._timers.call_later(wait_ms / 1000, lambda: self._give_up(claimer))
        window_ms = self._ledger.config.claim_window_ms
        if window_ms > 0 and not self._line and self._window is None:
            self._window = self._timers.call_later(window_ms / 1000, self._end_window)
        self._line.append(claimer)
        self.wake()
        try:
            return await claimer.future
        except asyncio.CancelledError:
            if not claimer.future.cancelled() and claimer.future.exception() is None:
                self.give_back(claimer.future.result().jobs)
            raise
        finally:
            if claimer.timer is not None:
                claimer.timer.cancel()
            if claimer in self._line:
                self._line.remove(claimer)

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    def give_back(self, jobs: Sequence[LeasedJob]) -> None:
        """Let others have jobs whose claimer is gone; that they were handed out counts."""
        ledger = self._ledger
        if jobs and ledger.is_usable:
            deliveries = [
                Delivery(job.partition, job.record.offset, job.deliveries) for job in jobs
            ]
            ledger.commit(nack(ledger.state, deliveries, now_ms=ledger.now_ms(), delay_ms=0).event)
            ledger.refresh()
            ledger.on_wake()

    def _give_up(self, claimer: Claimer) -> None:
        if not claimer.future.done():
            claimer.future.set_result(ClaimGrant([], self._ledger.commit(None)))

    def _end_window(self) -> None:
        self._window = None
        self.wake()

    def wake(self) -> None:
        """Serve those in line, if there is anything to serve."""
        if not self._line or self._window is not None:
            return
        self._is_woken = True
        if self._serving is None:
            self._serving = asyncio.get_running_loop().create_task(self._serve())
            self._serving.add_done_callback(self._end_serving)

    def _end_serving(self, serving: asyncio.Task[None]) -> None:
        self._serving = None
        if not serving.cancelled() and (error := serving.exception()) is not None:
            logger.error("claims at %s failed", self._ledger.topic.name, exc_info=error)
            self.refuse(error)
        if self._is_woken:  # Between its last look and now.
            self.wake()

    def refuse(self, error: BaseException) -> None:
        """Tell all in line that they get nothing, and why."""
        while self._line:
            claimer = self._line.popleft()
            if not claimer.future.done():
                claimer.future.set_exception(error)
        self.forget()

    def forget(self) -> None:
        """Let go of what was read ahead."""
        self._records.clear()
        for stock in self._stocks.values():
            stock.clear()

    async def close(self, error: MillstreamError) -> None:
        """Serve no more."""
        if self._window is not None:
            self._window.cancel()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        self.refuse(error)

    # Serving.

    async def _serve(self) -> None:
        while self._line and self._is_woken and self._window is None:
            self._is_woken = False
            try:
                await self._serve_once()
            except MillstreamError as error:
                self.refuse(error)

    async def _serve_once(self) -> None:
        """Serve those in line, until there are no more jobs or no more claimers."""
        while (claimers := self._claimers()) and self._window is None:
            present = list(self._line)  # Who comes while jobs are read may see more than these.
            wanted = min(CLAIM_MAX, sum(claimer.max_jobs for claimer in claimers))
            sick = await self._prepare(wanted)
            await self._ledger.usable()
            claimers = [claimer for claimer in claimers if not claimer.future.done()]
            found = self._count(wanted, sick)
            if not found:
                self._answer_none(present, sick)
                return
            parts = even_shares([claimer.max_jobs for claimer in claimers], found)
            for claimer, part in zip(claimers, parts, strict=True):
                if part:
                    handed = self._hand_out(claimer, part, sick)
                    self._line.remove(claimer)
                    claimer.future.set_result(handed)

    def _claimers(self) -> list[Claimer]:
        """Return who is served next: the first in line, or all where that is to be even."""
        while self._line and self._line[0].future.done():
            self._line.popleft()
        if not self._ledger.config.claim_window_ms:
            return list(self._line)[:1] if self._line else []
        return [claimer for claimer in self._line if not claimer.future.done()]

    def _answer_none(self, present: list[Claimer], sick: dict[int, MillstreamError]) -> None:
        """Answer those who do not wait. Where jobs cannot be read, all are told."""
        if sick:
            raise next(iter(sick.values()))
        for claimer in present:
            if not claimer.is_waiting and not claimer.future.done():
                self._line.remove(claimer)
                claimer.future.set_result(ClaimGrant([], self._ledger.commit(None)))

    # Reading.

    async def _prepare(self, wanted: int) -> dict[int, MillstreamError]:
        """Read the records of jobs that go out next; returns what cannot be read, by partition."""
        sick: dict[int, MillstreamError] = {}
        state = await self._ledger.usable()
        again = claimable(state, wanted)
        if again:
            await self._read_again([(due.partition, due.offset) for due in again], sick)
        count = len(again)
        for index in self._in_turn():
            if count >= wanted:
                break
            try:
                count += await self._fill(index, wanted - count)
            except MillstreamError as error:
                sick[index] = error
        return sick

    async def _read_again(
        self, places: list[tuple[int, int]], sick: dict[int, MillstreamError]
    ) -> None:
        """Read the records of jobs that came back; those that are gone are dropped."""
        wanted = [place for place in places if place not in self._records]
        self._records = {p: self._records[p] for p in places if p in self._records}
        for index, offsets in group_jobs(wanted):
            partition = self._ledger.topic.partitions[index]
            try:
                await partition.open()
                found = await read_offsets(partition, offsets)
            except MillstreamError as error:
                sick[index] = error
                continue
            for offset, record in found.records.items():
                self._records[index, offset] = record
            state = await self._ledger.usable()
            jobs = state.lanes[index].jobs
            gone = [offset for offset in found.missing if offset in jobs]
            self._ledger.commit(drop_deleted_jobs(state, {index: gone}))

    async def _fill(self, index: int, wanted: int) -> int:
        """Have jobs of a partition in stock, if it has any; returns how many."""
        partition = self._ledger.topic.partitions[index]
        if not partition.is_open:
            await partition.open()
        stock = self._stocks.get(index)
        if stock is None:
            stock = self._stocks[index] = ReadAhead(partition)
        is_more = True
        while True:
            state = await self._ledger.usable()
            lane = state.lanes.get(index)
            if lane is None:
                return 0
            is_sound = stock.is_sound(lane.frontier)
            if is_sound and (stock.count >= wanted or stock.is_full or not is_more):
                break
            is_more = await stock.read_more(lane.frontier)
        if not stock.count and stock.end > lane.frontier:  # There was no job on the way.
            taken = stock.take(0)
            fresh = FirstDeliveries(index, [], taken.end, taken.removed)
            self._ledger.commit(JobsDelivered(0, 0, [fresh], []))
        return stock.count

    def _in_turn(self) -> Sequence[int]:
        """Return the partitions, beginning with another each time."""
        count = len(self._ledger.topic.partitions)
        self._turn = (self._turn + 1) % count
        return [*range(self._turn, count), *range(self._turn)]

    # Handing out.

    def _count(self, limit: int, sick: dict[int, MillstreamError]) -> int:
        """Return how many jobs can be handed out now, up to `limit`."""
        state = self._ledger.state
        again = sum(
            (due.partition, due.offset) in self._records for due in claimable(state, limit, sick)
        )
        fresh = sum(stock.count for _, stock in self._sound_stocks(sick))
        room = max(0, self._ledger.limits.unfinished_max - state.unfinished)
        return min(limit, again + min(fresh, room))

    def _sound_stocks(self, sick: dict[int, MillstreamError]) -> list[tuple[int, ReadAhead]]:
        lanes = self._ledger.state.lanes
        count = len(self._ledger.topic.partitions)
        in_turn = sorted(self._stocks.items(), key=lambda one: (one[0] - self._turn) % count)
        return [
            (index, stock)
            for index, stock in in_turn
            if index not in sick
            and stock.count
            and stock.partition.is_open
            and stock.is_sound(lanes[index].frontier)
        ]

    def _hand_out(
        self, claimer: Claimer, limit: int, sick: dict[int, MillstreamError]
    ) -> ClaimGrant:
        """Decide which jobs go to a claimer, `limit` at the most, and commit that."""
        ledger = self._ledger
        state, make = ledger.state, ledger.receipts.make
        lease_ms = claimer.lease_ms
        jobs: list[LeasedJob] = []
        again: list[tuple[int, int]] = []
        for due in claimable(state, limit, sick):
            place = due.partition, due.offset
            if (record := self._records.pop(place, None)) is not None:
                number = due.job.deliveries + 1
                jobs.append(
                    LeasedJob(make(*place, number), due.partition, record, number, lease_ms)
                )
                again.append(place)
        fresh: list[FirstDeliveries] = []
        for index, stock in self._sound_stocks(sick):
            if len(jobs) == limit:
                break
            taken = stock.take(limit - len(jobs))
            offsets = [record.offset for record in taken.records]
            fresh.append(FirstDeliveries(index, runs_of(offsets), taken.end, taken.removed))
            jobs += [
                LeasedJob(make(index, record.offset, 1), index, record, 1, lease_ms)
                for record in taken.records
            ]
        due_ms = ledger.begin_ms() + lease_ms
        ticket = ledger.commit(JobsDelivered(due_ms, lease_ms, fresh, group_jobs(again)))
        self._note_worker(claimer.worker, jobs)
        return ClaimGrant(jobs, ticket)

    def _note_worker(self, worker: str, jobs: Sequence[LeasedJob]) -> None:
        """Remember who has jobs, for those who look."""
        lanes = self._ledger.state.lanes
        for job in jobs:
            if worker or job.deliveries > 1:  # Someone else may have had it before.
                lanes[job.partition].jobs[job.record.offset].worker = worker


def even_shares(wants: Sequence[int], available: int) -> list[int]:
    """Divide what there is evenly: nobody gets more than it wants, nor than others that want more.

    What cannot be divided goes to those who came first.
    """
    given = [0] * len(wants)
    modest_first = sorted(range(len(wants)), key=lambda index: (wants[index], -index))
    for place, index in enumerate(modest_first):
        given[index] = min(wants[index], available // (len(wants) - place))
        available -= given[index]
    return given
