r"""Claims of one queue: waiting claimers, served in turn or in even shares.

    claim ──► waiting ──► read ──► decide ──► commit ──► durable: answered
              claimers    I/O      \_ one turn of _/
                                      the loop

Jobs that were returned are delivered first, in the order in which they came back; then new jobs, by
offset, one partition after the other. Records are read before the decision, and the decision is
made on the state as it is after the reading, without waiting for anything in between: a job that
was acked, deleted or delivered while its record was read is not delivered.

A batch that cannot be decoded is skipped once the jobs before it are delivered: together its
records become one dead letter. So do returned jobs whose records cannot be decoded any more.

While a claimer waits, the state is usable: a claim begins by waiting for that, and when the state
stops being usable, all waiting claimers are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence

from millstream.broker.queues.decisions import (
    AvailableJobs,
    ClaimDecision,
    decide_claim,
    drop_deleted_jobs,
    even_shares,
    release,
    returned_jobs,
)
from millstream.broker.queues.events import (
    BatchDamaged,
    FirstDeliveries,
    JobPosition,
    JobsDelivered,
    group_jobs,
)
from millstream.broker.queues.fresh_jobs import FreshJobs
from millstream.broker.queues.queue_store import QueueStore
from millstream.broker.queues.read_ahead import ReadAhead, read_offsets
from millstream.broker.queues.receipts import Delivery
from millstream.broker.queues.values import CLAIM_MAX, ClaimResult, LeasedJob
from millstream.clock import Timer, Timers
from millstream.errors import (
    Busy,
    DamagedRecords,
    MillstreamError,
    RecordsInRepair,
    TierUnavailable,
)
from millstream.records.record import StoredRecord

logger = logging.getLogger(__name__)

CLAIMERS_MAX = 10_000
"""Claims that may wait at one queue: each is a request that is held open."""

_Grant = tuple[list[LeasedJob], asyncio.Future[None] | None]
"""The jobs of a claimer, and what has to be durable before it is answered."""


class _Claimer:
    """A claim that waits for jobs."""

    __slots__ = ("future", "lease_ms", "max_jobs", "may_wait", "worker")

    def __init__(self, max_jobs: int, lease_ms: int, *, may_wait: bool, worker: str) -> None:
        self.worker = worker
        self.max_jobs = max_jobs
        self.lease_ms = lease_ms
        self.may_wait = may_wait
        """Whether it keeps waiting if there is no job."""
        self.future: asyncio.Future[_Grant] = asyncio.get_running_loop().create_future()


class ClaimService:
    """Serves the claims of one queue."""

    def __init__(self, store: QueueStore, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._claimers: deque[_Claimer] = deque()
        self._window: Timer | None = None
        """Runs while claims are gathered, to be served in even shares."""
        self._serving: asyncio.Task[None] | None = None
        self._is_woken = False
        """Whether something changed since the serving task last looked for jobs."""
        self._read_ahead: dict[int, ReadAhead] = {}
        self._returned_records: dict[JobPosition, StoredRecord] = {}
        """Records of returned jobs that were read and not delivered yet."""
        self._first_partition = 0

    async def claim(
        self, max_jobs: int, lease_ms: int, wait_ms: int, worker: str = ""
    ) -> ClaimResult:
        """Return jobs that are leased to the caller; none if there was none within `wait_ms`.

        The answer is durable, and so is everything it depends on.
        """
        await self._store.usable()
        if len(self._claimers) >= CLAIMERS_MAX:
            raise Busy(
                f"queue {self._store.topic.name} has {len(self._claimers)} waiting claims,"
                f" limit is {CLAIMERS_MAX}"
            )
        claimer = _Claimer(max_jobs, lease_ms, may_wait=wait_ms > 0, worker=worker)
        timer = None
        if wait_ms > 0:
            timer = self._timers.call_later(wait_ms / 1000, lambda: self._answer_none(claimer))
        window_ms = self._store.config.claim_window_ms
        if window_ms > 0 and not self._claimers and self._window is None:
            self._window = self._timers.call_later(window_ms / 1000, self._end_window)
        self._claimers.append(claimer)
        self.wake()
        try:
            jobs, ticket = await claimer.future
            return ClaimResult(jobs, await self._store.wait(ticket))
        except asyncio.CancelledError:
            # The caller has left. If jobs were chosen for it already, others may have them.
            future = claimer.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release(future.result()[0])
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if claimer in self._claimers:
                self._claimers.remove(claimer)

    @property
    def waiting(self) -> int:
        """Number of claims that wait."""
        return len(self._claimers)

    def _release(self, jobs: Sequence[LeasedJob]) -> None:
        """Release jobs whose claimer has left: nobody has seen them."""
        state = self._store.current()
        if jobs and state is not None:
            deliveries = [Delivery(job.partition, job.record.offset, job.number) for job in jobs]
            decided = release(state, deliveries, now_ms=self._store.now_ms())
            self._store.commit(decided.event)
            self._store.refresh()
            self._store.on_wake()

    def _end_window(self) -> None:
        self._window = None
        self.wake()

    def wake(self) -> None:
        """Look for jobs, if a claim waits."""
        if not self._claimers or self._window is not None:
            return
        self._is_woken = True
        if self._serving is None:
            self._serving = asyncio.get_running_loop().create_task(self._serve())
            self._serving.add_done_callback(self._end_serving)

    def _end_serving(self, serving: asyncio.Task[None]) -> None:
        self._serving = None
        if not serving.cancelled() and (error := serving.exception()) is not None:
            logger.error("queue %s: serving claims failed", self._store.topic.name, exc_info=error)
            self.refuse(error)
        if self._is_woken:  # After the task last looked, and before this callback.
            self.wake()

    def refuse(self, error: BaseException) -> None:
        """Fail all waiting claims, and discard the jobs that were read ahead."""
        while self._claimers:
            claimer = self._claimers.popleft()
            if not claimer.future.done():
                claimer.future.set_exception(error)
        self._returned_records.clear()
        for read_ahead in self._read_ahead.values():
            read_ahead.clear()

    async def close(self, error: MillstreamError) -> None:
        """Stop serving, and fail all waiting claims."""
        if self._window is not None:
            self._window.cancel()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        self.refuse(error)

    # Serving.

    async def _serve(self) -> None:
        while self._claimers and self._is_woken and self._window is None:
            self._is_woken = False
            try:
                await self._serve_all()
            except MillstreamError as error:
                self.refuse(error)

    async def _serve_all(self) -> None:
        """Serve the waiting claims until no job or no claim is left."""
        while (claimers := self._next_claimers()) and self._window is None:
            # Only these may be told that there is no job: there may be one for those that arrive
            # while records are read, as the reading started before.
            present, changes = list(self._claimers), self._store.changes
            wanted = min(CLAIM_MAX, sum(claimer.max_jobs for claimer in claimers))
            available = await self._read(wanted)
            if available is None:
                return
            # From here on nothing is awaited: the state stays as it was when `_read` returned.
            claimers = [claimer for claimer in claimers if not claimer.future.done()]
            if not self._deliver(claimers, available, wanted):
                if available.unreadable:
                    raise next(iter(available.unreadable.values()))
                if self._store.changes != changes:
                    continue  # Jobs that were counted on were deleted, or there are new ones.
                for claimer in present:
                    if not claimer.may_wait:
                        self._answer_none(claimer)
                return

    def _next_claimers(self) -> list[_Claimer]:
        """Return the claim that is served next, or all if they get even shares."""
        while self._claimers and self._claimers[0].future.done():
            self._claimers.popleft()
        if not self._store.config.claim_window_ms:
            return list(self._claimers)[:1] if self._claimers else []
        return [claimer for claimer in self._claimers if not claimer.future.done()]

    def _answer_none(self, claimer: _Claimer) -> None:
        if not claimer.future.done():
            claimer.future.set_result(([], self._store.commit(None)))

    def _deliver(self, claimers: Sequence[_Claimer], available: AvailableJobs, wanted: int) -> bool:
        """Answer `claimers` with the jobs that they get; returns whether there are jobs."""
        if not claimers:  # They have left: serve the others.
            return True
        if len(claimers) == 1:
            shares = [claimers[0].max_jobs]
        else:
            count = len(self._decide(available, wanted, lease_ms=0).jobs)
            shares = even_shares([claimer.max_jobs for claimer in claimers], count)
        is_any = False
        for claimer, share in zip(claimers, shares, strict=True):
            if share == 0:
                continue
            decided = self._decide(available, share, lease_ms=claimer.lease_ms)
            if decided.jobs:
                is_any = True
                self._claimers.remove(claimer)
                claimer.future.set_result(self._grant(claimer, decided))
        return is_any

    def _decide(self, available: AvailableJobs, n: int, *, lease_ms: int) -> ClaimDecision:
        store = self._store
        return decide_claim(
            store.state,
            available,
            n,
            now_ms=store.begin_ms(),
            lease_ms=lease_ms,
            unfinished_max=store.limits.unfinished_max,
        )

    def _grant(self, claimer: _Claimer, decided: ClaimDecision) -> _Grant:
        """Commit a decision, and return the jobs with their receipts."""
        store = self._store
        ticket = store.commit(decided.event)
        for fresh, taken in decided.fresh:
            fresh.drop(taken)
        for position in decided.returned:
            del self._returned_records[position]
        make_receipt, lease_ms, worker = store.receipts.make, claimer.lease_ms, claimer.worker
        jobs = [
            LeasedJob(
                make_receipt(index, record.offset, number),
                index,
                record,
                number,
                deliveries,
                lease_ms,
            )
            for index, record, number, deliveries in decided.jobs
        ]
        partitions = store.state.partitions
        for job in jobs:
            if worker or job.number > 1:  # Another worker may have had it before.
                partitions[job.partition].jobs[job.record.offset].worker = worker
        return jobs, ticket

    # Reading.

    async def _read(self, wanted: int) -> AvailableJobs | None:
        """Read the records of the next jobs; returns `None` if the state is not usable any more.

        It stops reading at `wanted` jobs, and returns all that were read. A partition that cannot
        be read does not stop the others.
        """
        store = self._store
        if (state := store.current()) is None:
            return None
        unreadable: dict[int, MillstreamError] = {}
        is_complete = False
        while not is_complete:
            returned = returned_jobs(state, wanted, unreadable)
            due = [(job.partition, job.offset) for job in returned]
            is_complete = not due or await self._read_returned(due, unreadable)
            if (state := store.current()) is None:
                return None
        count = len(due)
        order = self._partition_order()
        for index in order:
            if count >= wanted:
                break
            try:
                count += await self._fill(index, wanted - count)
            except MillstreamError as error:
                unreadable[index] = error
        if (state := store.current()) is None:
            return None
        fresh = [
            (index, read_ahead.jobs)
            for index in order
            if index not in unreadable
            and (read_ahead := self._read_ahead.get(index)) is not None
            and read_ahead.partition.is_open
            and (known := state.partitions.get(index)) is not None
            and read_ahead.is_current(known.frontier)
        ]
        for index, jobs in fresh:
            self._skip_empty(index, jobs)
        return AvailableJobs(self._returned_records, fresh, unreadable)

    def _skip_empty(self, index: int, jobs: FreshJobs) -> None:
        """Move the frontier over offsets that hold no job, if no job was read before them."""
        if not jobs.count and jobs.end > jobs.start:
            skipped = jobs.peek(0)
            first = FirstDeliveries(index, [], skipped.end, skipped.removed)
            self._store.commit(JobsDelivered(0, 0, [first], []))
            jobs.drop(skipped)

    async def _read_returned(
        self, positions: list[JobPosition], unreadable: dict[int, MillstreamError]
    ) -> bool:
        """Read the records of returned jobs.

        Removes jobs that were deleted, and those that cannot be decoded; returns false if there
        were any, or if a partition turned out to be unreadable: other jobs are next then.
        """
        records = self._returned_records
        missing = [position for position in positions if position not in records]
        self._returned_records = records = {p: records[p] for p in positions if p in records}
        deleted: dict[int, list[int]] = {}
        is_complete = True
        for index, offsets in group_jobs(missing):
            partition = self._store.partitions[index]
            try:
                await partition.open()
                read = await read_offsets(partition, offsets)
            except MillstreamError as error:
                unreadable[index] = error
                is_complete = False
                continue
            for offset, record in read.records.items():
                records[index, offset] = record
            deleted[index] = read.missing
            if read.damaged:
                self._exhaust_damaged(index, read.damaged)
                is_complete = False
        if (state := self._store.current()) is not None:
            event = drop_deleted_jobs(state, deleted)
            self._store.commit(event)
            is_complete = is_complete and event is None
        return is_complete

    def _exhaust_damaged(self, index: int, damaged: Mapping[int, DamagedRecords]) -> None:
        """Let returned jobs whose records cannot be decoded become dead letters."""
        if (state := self._store.current()) is None:
            return
        for offset in damaged:
            if (job := state.job(index, offset)) is not None:
                job.is_damaged = True
        state.limit(self._store.config.deliveries_max)
        self._report(index, next(iter(damaged.values())))

    async def _fill(self, index: int, wanted: int) -> int:
        """Read new jobs of a partition ahead, if it has any; returns how many there are."""
        partition = self._store.partitions[index]
        if not partition.is_open:
            await partition.open()
        read_ahead = self._read_ahead.get(index)
        if read_ahead is None:
            read_ahead = self._read_ahead[index] = ReadAhead(partition)
        has_more = True
        # While records are read, the frontier may move, and records may be deleted: then the
        # read-ahead is not current any more, and is read again from the new frontier.
        while (state := self._store.current()) is not None and index in state.partitions:
            frontier = state.partitions[index].frontier
            if read_ahead.is_current(frontier):
                count = read_ahead.jobs.count
                if count >= wanted or read_ahead.is_full or not has_more:
                    return count
                if read_ahead.damage is not None:
                    if count or state.unfinished >= self._store.limits.unfinished_max:
                        return count  # Deliver these first, or wait until some jobs are finished.
                    self._skip_damage(read_ahead, read_ahead.damage)
                    await asyncio.sleep(0)  # There may be many; let others run.
                    continue
            try:
                has_more = await read_ahead.read_more(frontier)
            except (RecordsInRepair, TierUnavailable):
                if read_ahead.jobs.count and read_ahead.is_current(frontier):
                    return read_ahead.jobs.count  # Deliver the jobs before them.
                raise
        return 0

    def _skip_damage(self, read_ahead: ReadAhead, damage: DamagedRecords) -> None:
        """Move the frontier over records that cannot be decoded. They become one dead letter."""
        store, index, offset = self._store, read_ahead.partition.index, read_ahead.jobs.end
        self._skip_empty(index, read_ahead.jobs)
        store.commit(BatchDamaged(store.now_ms(), index, offset, damage.to_offset + 1))
        self._report(index, damage)

    def _report(self, index: int, damage: DamagedRecords) -> None:
        logger.error(
            "queue %s: records of partition %d cannot be delivered, and are moved to the"
            " dead-letter topic: %s",
            self._store.topic.name,
            index,
            damage,
        )
        self._store.refresh()
        self._store.on_wake()

    def _partition_order(self) -> Sequence[int]:
        """Return the partitions, starting with another one each time."""
        count = len(self._store.partitions)
        self._first_partition = first = (self._first_partition + 1) % count
        return [*range(first, count), *range(first)]
