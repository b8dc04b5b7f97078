"""Browsing the jobs of a queue, without claiming or deciding anything.

    offsets of one partition
    ----------|----------------
     delivered  never delivered: new, and ready

Unfinished jobs are in memory, and only their records are read; new jobs are read from the topic.
Changes made while records are read may be visible or not.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_page import read_page, size_of
from millstream.broker.queues.jobs import DELAYED, LEASED, UnfinishedJob
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.read_ahead import read_offsets
from millstream.config.schema import MIB
from millstream.errors import DamagedRecords
from millstream.records.record import StoredRecord

JobStateName: TypeAlias = Literal["ready", "leased", "delayed"]

BYTES_MAX = 4 * MIB
"""Bytes of the topic that are read for one page."""

JOBS_PER_TURN = 5_000
"""Jobs sorted before the loop serves others: about a millisecond."""


class RecordPosition(NamedTuple):
    """A position in a topic."""

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
    """Remaining time of its lease or delay; `None` if it can be claimed."""
    worker: str
    """The worker that has it, if it gave its name since the node was started."""


class JobPage(NamedTuple):
    """Some jobs, ordered by partition and offset."""

    jobs: list[QueuedJob]
    next: RecordPosition | None
    """The last position that was examined; `None` at the end."""


class _DeliveredJob(NamedTuple):
    """An unfinished job, as it was when it was found."""

    offset: int
    state: JobStateName
    deliveries: int
    due_ms: int
    worker: str


async def browse_jobs(
    queue: WorkQueue, *, state: JobStateName | None, after: RecordPosition | None, limit: int
) -> JobPage:
    """Return unfinished and new jobs after a position, of one state or of all.

    A page has fewer than `limit` jobs if it would have to read too much.
    """
    await queue.store.usable()
    start = after or RecordPosition(0, -1)
    browser = _JobBrowser(queue, state, count_max=limit + 1)
    for partition in queue.store.partitions[start.partition :]:
        first = start.offset + 1 if partition.index == start.partition else 0
        await browser.add_partition(partition, first)
        if browser.stopped_at is not None:
            break
    jobs = browser.jobs
    if len(jobs) > limit:
        last = jobs[limit - 1]
        return JobPage(jobs[:limit], RecordPosition(last.partition, last.record.offset))
    return JobPage(jobs, browser.stopped_at)


class _JobBrowser:
    """Collects jobs, one partition after the other."""

    def __init__(self, queue: WorkQueue, state: JobStateName | None, *, count_max: int) -> None:
        self.jobs: list[QueuedJob] = []
        self.stopped_at: RecordPosition | None = None
        """The last position examined, once there are enough jobs or bytes."""
        self._queue = queue
        self._state = state
        self._count_max = count_max
        self._size_left = BYTES_MAX

    async def add_partition(self, partition: ReadablePartition, first: int) -> None:
        """Add the jobs of a partition from the offset `first` on."""
        partition_jobs = self._queue.store.state.partitions.get(partition.index)
        if partition_jobs is None or not partition.is_open:
            return
        frontier = partition_jobs.frontier
        await self._add_unfinished(partition, await self._unfinished(partition_jobs.jobs, first))
        if self.stopped_at is None and self._state in (None, "ready"):
            await self._add_new(partition, max(frontier, first))

    # Unfinished jobs.

    async def _unfinished(
        self, jobs: Mapping[int, UnfinishedJob], first: int
    ) -> list[_DeliveredJob]:
        """Return the first unfinished jobs by offset; the loop serves others in between."""
        items = list(jobs.items())
        best: list[_DeliveredJob] = []
        for begin in range(0, len(items), JOBS_PER_TURN):
            chunk = [
                _DeliveredJob(
                    offset,
                    _STATE_NAMES.get(job.kind, "ready"),
                    job.deliveries,
                    job.due_ms,
                    job.worker,
                )
                for offset, job in items[begin : begin + JOBS_PER_TURN]
                if offset >= first
            ]
            wanted = [job for job in chunk if self._state in (None, job.state)]
            best = heapq.nsmallest(self._count_max - len(self.jobs), best + wanted)
            if len(items) > JOBS_PER_TURN:
                await asyncio.sleep(0)
        return best

    async def _add_unfinished(
        self, partition: ReadablePartition, unfinished: list[_DeliveredJob]
    ) -> None:
        if not unfinished:
            return
        read = await read_offsets(
            partition, [job.offset for job in unfinished], size_max=self._size_left
        )
        self._size_left -= read.size
        missing = {*read.missing, *read.damaged}
        last = None
        now_ms = self._queue.store.now_ms()
        for job in unfinished:
            record = read.records.get(job.offset)
            if record is not None:
                self.jobs.append(_queued_job(partition.index, record, job, now_ms))
            elif job.offset not in missing:
                break
            last = job.offset
        if last is not None and last != unfinished[-1].offset:
            self.stopped_at = RecordPosition(partition.index, last)
        else:
            self._stop_if_enough(partition, unfinished[-1].offset)

    # New jobs.

    async def _add_new(self, partition: ReadablePartition, first: int) -> None:
        cursor = max(first, partition.log_start_offset)
        while cursor < partition.last_stable_offset and self.stopped_at is None:
            try:
                read = await read_page(
                    partition,
                    cursor,
                    limit=self._count_max - len(self.jobs),
                    size_max=self._size_left,
                )
            except DamagedRecords as damage:  # Not a job, as a claim will find out.
                cursor = damage.to_offset + 1
                continue
            self._size_left -= sum(map(size_of, read.records))
            self.jobs += [
                QueuedJob(partition.index, record, "ready", 0, None, "") for record in read.records
            ]
            if read.next_offset == cursor:
                return
            cursor = read.next_offset
            self._stop_if_enough(partition, cursor - 1)

    def _stop_if_enough(self, partition: ReadablePartition, offset: int) -> None:
        if len(self.jobs) >= self._count_max or self._size_left <= 0:
            self.stopped_at = RecordPosition(partition.index, offset)


_STATE_NAMES: Mapping[int, JobStateName] = {LEASED: "leased", DELAYED: "delayed"}
"""Names of the states that cannot be claimed; all others are ready, or will be dead letters."""


def _queued_job(partition: int, record: StoredRecord, job: _DeliveredJob, now_ms: int) -> QueuedJob:
    is_ready = job.state == "ready"
    return QueuedJob(
        partition,
        record,
        job.state,
        job.deliveries,
        None if is_ready else max(0, job.due_ms - now_ms),
        job.worker if job.state == "leased" else "",
    )
