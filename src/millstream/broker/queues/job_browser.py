"""Looking at the jobs of a queue: nothing is claimed, nothing is decided.

    offsets of one partition
    --------|------------------
     handed  not handed out yet: fresh, and ready
     out

Jobs that were handed out and are not done are in memory, and only their records are read; those
that nobody had yet are read from the topic. What happens while records are read may show or not.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import read_page, size_of
from millstream.broker.queues.jobs import DELAYED, LEASED, UnfinishedJob
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.read_ahead import read_offsets
from millstream.config.schema import MIB
from millstream.records.record import StoredRecord

JobStateName: TypeAlias = Literal["ready", "leased", "delayed"]

BYTES_MAX = 4 * MIB
"""What is read of a topic for one page."""

JOBS_PER_TURN = 5_000
"""Jobs that are sorted before others have their turn: about a millisecond."""


class RecordPosition(NamedTuple):
    """A place in a topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class QueuedJob(NamedTuple):
    """A job, as it was a moment ago."""

    partition: int
    record: StoredRecord
    state: JobStateName
    deliveries: int
    ready_in_ms: int | None
    """When its lease or its delay is over; `None` where it can be claimed."""
    worker: str
    """Who has it, if it said so since the node was started."""


class JobPage(NamedTuple):
    """Some jobs, by partition and offset."""

    jobs: list[QueuedJob]
    next: RecordPosition | None
    """The last that was looked at; `None` where there is no more."""


class _DeliveredJob(NamedTuple):
    """A job that was handed out, as it was when it was found."""

    offset: int
    state: JobStateName
    deliveries: int
    due_ms: int
    worker: str


async def browse_jobs(
    queue: WorkQueue, *, state: JobStateName | None, after: RecordPosition | None, limit: int
) -> JobPage:
    """Return jobs of a queue that are not done, of one state or of all, behind a place.

    A page ends early where so much was read that more must wait.
    """
    start = after or RecordPosition(0, -1)
    looking = _JobBrowser(queue, state, count_max=limit + 1)
    for partition in queue.topic.partitions[start.partition :]:
        first = start.offset + 1 if partition.index == start.partition else 0
        await looking.look_at(partition, first)
        if looking.stopped_at is not None:
            break
    found = looking.found
    if len(found) > limit:
        last = found[limit - 1]
        return JobPage(found[:limit], RecordPosition(last.partition, last.record.offset))
    return JobPage(found, looking.stopped_at)


class _JobBrowser:
    """Gathers jobs, one partition after the other."""

    def __init__(self, queue: WorkQueue, state: JobStateName | None, *, count_max: int) -> None:
        self.found: list[QueuedJob] = []
        self.stopped_at: RecordPosition | None = None
        """The last place that was looked at, once there are enough jobs or bytes."""
        self._queue = queue
        self._state = state
        self._count_max = count_max
        self._size_left = BYTES_MAX

    async def look_at(self, partition: Partition, first: int) -> None:
        """Take the jobs of a partition from the offset `first` on."""
        state = await self._queue.ledger.usable()
        lane = state.lanes.get(partition.index)
        if lane is None or not partition.is_open:
            return
        frontier = lane.frontier
        await self._take_held(partition, await self._held(lane.jobs, first))
        if self.stopped_at is None and self._state in (None, "ready"):
            await self._take_fresh(partition, max(frontier, first))

    # Jobs that were handed out.

    async def _held(self, jobs: Mapping[int, UnfinishedJob], first: int) -> list[_DeliveredJob]:
        """Return the first jobs that were handed out, by offset; the loop is free in between."""
        items = list(jobs.items())
        best: list[_DeliveredJob] = []
        for begin in range(0, len(items), JOBS_PER_TURN):
            piece = [
                _DeliveredJob(
                    offset, _WORDS.get(job.kind, "ready"), job.deliveries, job.due_ms, job.worker
                )
                for offset, job in items[begin : begin + JOBS_PER_TURN]
                if offset >= first
            ]
            wanted = [one for one in piece if self._state in (None, one.state)]
            best = heapq.nsmallest(self._count_max - len(self.found), best + wanted)
            if len(items) > JOBS_PER_TURN:
                await asyncio.sleep(0)
        return best

    async def _take_held(self, partition: Partition, held: list[_DeliveredJob]) -> None:
        if not held:
            return
        read = await read_offsets(partition, [one.offset for one in held], size_max=self._size_left)
        self._size_left -= read.size
        missing = set(read.missing)
        last = None
        now_ms = self._queue.ledger.now_ms()
        for one in held:
            record = read.records.get(one.offset)
            if record is not None:
                self.found.append(_queued_job(partition.index, record, one, now_ms))
            elif one.offset not in missing:
                break
            last = one.offset
        if last is not None and last != held[-1].offset:
            self.stopped_at = RecordPosition(partition.index, last)
        else:
            self._stop_if_enough(partition, held[-1].offset)

    # Jobs that nobody had yet.

    async def _take_fresh(self, partition: Partition, first: int) -> None:
        cursor = max(first, partition.log_start_offset)
        while cursor < partition.last_stable_offset and self.stopped_at is None:
            read = await read_page(
                partition,
                cursor,
                limit=self._count_max - len(self.found),
                size_max=self._size_left,
            )
            self._size_left -= sum(map(size_of, read.records))
            self.found += [
                QueuedJob(partition.index, record, "ready", 0, None, "") for record in read.records
            ]
            if read.next_offset == cursor:
                return
            cursor = read.next_offset
            self._stop_if_enough(partition, cursor - 1)

    def _stop_if_enough(self, partition: Partition, offset: int) -> None:
        if len(self.found) >= self._count_max or self._size_left <= 0:
            self.stopped_at = RecordPosition(partition.index, offset)


_WORDS: Mapping[int, JobStateName] = {LEASED: "leased", DELAYED: "delayed"}
"""What jobs are called that cannot be claimed; all others are ready, or will be dead letters."""


def _queued_job(
    partition: int, record: StoredRecord, held: _DeliveredJob, now_ms: int
) -> QueuedJob:
    is_ready = held.state == "ready"
    return QueuedJob(
        partition,
        record,
        held.state,
        held.deliveries,
        None if is_ready else max(0, held.due_ms - now_ms),
        held.worker if held.state == "leased" else "",
    )
