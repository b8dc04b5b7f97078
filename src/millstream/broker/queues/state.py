r"""The state of a queue: a state machine that is changed by events only.

    offsets of one partition
              frontier
    ----------|----------------------
     delivered  never delivered
     or no job
                \_ new: ready

    unfinished   delivered, and neither acked nor ended otherwise
    finished     all others before the frontier

    new --deliver--> LEASED --ack--> finished
                      |  ^ \--nack--> DELAYED --time--> RETURNED --+
                 time |  | late extend, ack or nack                |
                      v  |                                         |
                     EXPIRED --------------------------------------+--deliver--> LEASED
                      \------ delivered too often --> DEAD_LETTERING <-/
                                                       \--> finished, as a dead letter

    A release is a nack that undoes the delivery. A damaged batch is a job that is RETURNED without
    a delivery, and becomes a dead letter.

1. `apply` alone changes what is durable, and does the same live and in replay. An event that cannot
   be applied in a replay is damage.
2. Time changes nothing durable. `advance` sorts jobs by whether their deadline has passed, and may
   be called at any time: a lease that runs out needs no event.
3. The number of a job's newest delivery never falls, and only the receipt of that delivery is
   valid. The count of its deliveries falls by one with each release of a valid receipt, and
   in no other way.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from millstream.broker.queues.events import (
    BatchDamaged,
    DeadLettersIntended,
    DeadLettersMoved,
    FirstDeliveries,
    JobOffsets,
    JobsAcked,
    JobsDelivered,
    JobsReleased,
    JobsRemoved,
    JobsReturned,
    LeasesExtended,
    NodeBooted,
    PartitionAdded,
    PartitionTruncated,
    QueueEvent,
    ReceiptsInvalidated,
    offsets_of,
)
from millstream.broker.queues.jobs import (
    DEAD_LETTERING,
    DELAYED,
    EXPIRED,
    LEASED,
    REDELIVERABLE,
    RETURNED,
    TIMED,
    DueJob,
    PartitionJobs,
    UnfinishedJob,
)
from millstream.errors import CorruptData

DEADLINES_SLACK = 1_000
"""Deadlines of finished jobs are removed when there are more than this, and twice the jobs."""

RELEASES_MAX = 1_000_000_000
"""Further releases of a job count as deliveries: the number of a delivery has 32 bits."""

ENDED_OTHERWISE = 0
"""Stands for the acked delivery of a job that ended without an ack."""


class QueueStateMachine:
    """The jobs of one queue that are not finished, and what has to be remembered of the others."""

    def __init__(self, *, ended_max: int) -> None:
        self.partitions: dict[int, PartitionJobs] = {}
        self.boot_id = ""
        """The boot whose monotonic clock the deadlines refer to."""
        self.generation = 0
        """Part of the receipts: those of another generation are not valid."""
        self.acked = self.dead = self.delivered = self.removed = self.damaged = 0
        self.kinds = [0, 0, 0, 0, 0]
        """Number of jobs of each kind."""
        self.ended: dict[tuple[int, int], int] = {}
        """The delivery by which a job was acked, if not its first, or `ENDED_OTHERWISE`. Oldest
        first.
        """
        self.intent: DeadLettersIntended | None = None
        """Jobs that are being moved to the dead-letter topic."""
        self.returned: deque[DueJob] = deque()
        """Jobs that can be claimed again, in the order in which they came back. Some may be
        outdated: see `is_due`.
        """
        self.exhausted: deque[DueJob] = deque()
        """Jobs that came back after their last permitted delivery, or are damaged. Some may be
        outdated: see `is_due`.
        """
        self.expired = 0
        """Leases that ran out since the state was created; not durable, counted by `advance`
        alone.
        """
        self._ended_max = ended_max
        self._deadlines: list[tuple[int, int, list[FirstDeliveries], JobOffsets]] = []
        self._order = 0
        self._appliers: dict[type, Callable[[Any], None]] = {
            NodeBooted: self._apply_boot,
            PartitionAdded: self._add_partition,
            JobsDelivered: self._deliver,
            JobsAcked: self._ack,
            JobsReturned: self._return,
            LeasesExtended: self._extend,
            DeadLettersIntended: self._intend_dead_letters,
            DeadLettersMoved: self._move_dead_letters,
            JobsRemoved: self._remove,
            PartitionTruncated: self._truncate,
            ReceiptsInvalidated: self._invalidate_receipts,
            JobsReleased: self._release,
            BatchDamaged: self._skip_damaged,
        }

    # Durable state.

    def apply(self, event: QueueEvent) -> None:
        """Apply an event; raises `CorruptData` if it is impossible in this state."""
        try:
            self._appliers[type(event)](event)
        except (KeyError, ValueError, IndexError, OverflowError) as error:
            raise CorruptData(
                f"{type(event).__name__} is impossible in this state: {error!r}"
            ) from error

    @property
    def unfinished(self) -> int:
        """Number of jobs that were delivered and are not finished."""
        return sum(self.kinds)

    def job(self, partition: int, offset: int) -> UnfinishedJob | None:
        """Return an unfinished job; `None` if it was never delivered, or is finished."""
        partition_jobs = self.partitions.get(partition)
        return None if partition_jobs is None else partition_jobs.jobs.get(offset)

    def _apply_boot(self, event: NodeBooted) -> None:
        self.boot_id = event.boot_id
        for partition_jobs in self.partitions.values():
            for job in partition_jobs.jobs.values():
                job.due_ms = event.now_ms + job.length_ms
        self.sort_deadlines()

    def _add_partition(self, event: PartitionAdded) -> None:
        if event.partition in self.partitions:
            raise ValueError(f"partition {event.partition} was added before")
        self.partitions[event.partition] = PartitionJobs(event.offset, event.offset)

    def _deliver(self, event: JobsDelivered) -> None:
        due_ms, lease_ms = event.due_ms, event.lease_ms
        for fresh in event.fresh:
            partition_jobs = self.partitions[fresh.partition]
            if fresh.end < partition_jobs.frontier:
                raise ValueError(
                    f"frontier {partition_jobs.frontier} cannot move back to {fresh.end}"
                )
            jobs = partition_jobs.jobs
            offsets = offsets_of(fresh.runs)
            for offset in offsets:
                jobs[offset] = UnfinishedJob(1, LEASED, due_ms, lease_ms)
            partition_jobs.frontier = fresh.end
            self.delivered += len(offsets)
            self.kinds[LEASED] += len(offsets)
            self.removed += fresh.removed
        for partition, offsets in event.again:
            jobs = self.partitions[partition].jobs
            self.delivered += len(offsets)
            for offset in offsets:
                job = jobs[offset]
                job.number += 1
                job.deliveries += 1
                self._set(job, LEASED, due_ms, lease_ms)
        if event.again or any(fresh.runs for fresh in event.fresh):
            self._add_deadline(due_ms, event.fresh, event.again)

    def _ack(self, event: JobsAcked) -> None:
        kinds = self.kinds
        for partition, offsets in event.jobs:
            jobs = self.partitions[partition].jobs
            for offset in offsets:
                job = jobs.pop(offset)
                kinds[job.kind] -= 1
                if job.number > 1:
                    self._remember(partition, offset, job.number)
            self.acked += len(offsets)

    def _return(self, event: JobsReturned) -> None:
        for _, job in self._each(event.jobs):
            self._set(job, DELAYED, event.due_ms, event.delay_ms)
        self._add_deadline(event.due_ms, [], event.jobs)

    def _release(self, event: JobsReleased) -> None:
        for _, job in self._each(event.jobs):
            job.deliveries -= job.number - job.deliveries < RELEASES_MAX
        self._return(JobsReturned(event.now_ms, 0, event.jobs))

    def _skip_damaged(self, event: BatchDamaged) -> None:
        partition_jobs = self.partitions[event.partition]
        if not partition_jobs.frontier <= event.offset < event.end:
            raise ValueError(f"frontier {partition_jobs.frontier} cannot move over {event}")
        partition_jobs.jobs[event.offset] = UnfinishedJob(0, DELAYED, event.now_ms, 0)
        partition_jobs.frontier = event.end
        self.kinds[DELAYED] += 1
        self.damaged += 1
        self._add_deadline(event.now_ms, [], [(event.partition, [event.offset])])

    def _extend(self, event: LeasesExtended) -> None:
        for _, job in self._each(event.jobs):
            self._set(job, LEASED, event.due_ms, event.lease_ms)
        self._add_deadline(event.due_ms, [], event.jobs)

    def _intend_dead_letters(self, event: DeadLettersIntended) -> None:
        if self.intent is not None:
            raise ValueError("jobs are being moved to the dead-letter topic already")
        self.intent = event
        for jobs in (event.expired, event.nacked, event.damaged):
            for _, job in self._each(jobs):
                self._set(job, DEAD_LETTERING, job.due_ms, job.length_ms)

    def _move_dead_letters(self, event: DeadLettersMoved) -> None:
        self.intent = None
        self.dead += self._end(event.dead)
        self.removed += self._end(event.removed)
        if event.kept:
            self._return(JobsReturned(event.due_ms, event.delay_ms, event.kept))

    def _remove(self, event: JobsRemoved) -> None:
        self.removed += self._end(event.jobs)

    def _truncate(self, event: PartitionTruncated) -> None:
        partition_jobs = self.partitions[event.partition]
        lost = [offset for offset in partition_jobs.jobs if offset >= event.end]
        self.removed += self._end([(event.partition, lost)])
        partition_jobs.frontier = event.end
        partition_jobs.forgotten = min(partition_jobs.forgotten, event.end)
        for position in [p for p in self.ended if p[0] == event.partition and p[1] >= event.end]:
            del self.ended[position]

    def _invalidate_receipts(self, event: ReceiptsInvalidated) -> None:
        self.generation = event.generation

    def _end(self, jobs: JobOffsets) -> int:
        """Finish jobs in another way than by an ack; returns how many."""
        ended = 0
        for (partition, offset), job in self._each(jobs):
            del self.partitions[partition].jobs[offset]
            self.kinds[job.kind] -= 1
            self._remember(partition, offset, ENDED_OTHERWISE)
            ended += 1
        return ended

    def _each(self, jobs: JobOffsets) -> Iterator[tuple[tuple[int, int], UnfinishedJob]]:
        for partition, offsets in jobs:
            partition_jobs = self.partitions[partition]
            for offset in offsets:
                yield (partition, offset), partition_jobs.jobs[offset]

    def _set(self, job: UnfinishedJob, kind: int, due_ms: int, length_ms: int) -> None:
        self.kinds[job.kind] -= 1
        self.kinds[kind] += 1
        job.kind = kind
        job.due_ms = due_ms
        job.length_ms = length_ms

    def _remember(self, partition: int, offset: int, delivery: int) -> None:
        self.ended[partition, offset] = delivery
        if len(self.ended) > self._ended_max:
            oldest = next(iter(self.ended))
            del self.ended[oldest]
            partition_jobs = self.partitions[oldest[0]]
            partition_jobs.forgotten = max(partition_jobs.forgotten, oldest[1] + 1)

    # Time.

    def advance(self, now_ms: int, deliveries_max: int) -> None:
        """Handle the deadlines up to `now_ms`: jobs become claimable again, or are exhausted."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            due_ms, _, fresh, jobs = heapq.heappop(self._deadlines)
            for first in fresh:
                self._come_back(first.partition, offsets_of(first.runs), due_ms, deliveries_max)
            for partition, offsets in jobs:
                self._come_back(partition, offsets, due_ms, deliveries_max)

    def _come_back(
        self, partition: int, offsets: list[int], due_ms: int, deliveries_max: int
    ) -> None:
        jobs = self.partitions[partition].jobs
        for offset in offsets:
            job = jobs.get(offset)
            if job is None or job.due_ms != due_ms or job.kind not in TIMED:
                continue
            self.expired += job.kind == LEASED
            self._set(job, EXPIRED if job.kind == LEASED else RETURNED, due_ms, job.length_ms)
            job.came_back = due = DueJob(partition, offset, job, due_ms)
            is_exhausted = job.is_damaged or job.deliveries >= deliveries_max
            (self.exhausted if is_exhausted else self.returned).append(due)

    def limit(self, deliveries_max: int) -> None:
        """Sort the jobs that came back again: the limit changed, or some turned out damaged."""
        both = [due for due in (*self.returned, *self.exhausted) if self.is_due(due)]
        both.sort(key=lambda due: due.due_ms)
        self.returned, self.exhausted = deque(), deque()
        for due in both:
            is_exhausted = due.job.is_damaged or due.job.deliveries >= deliveries_max
            (self.exhausted if is_exhausted else self.returned).append(due)

    @property
    def next_due_ms(self) -> int | None:
        """The earliest deadline."""
        return self._deadlines[0][0] if self._deadlines else None

    def is_due(self, due: DueJob) -> bool:
        """Return whether nothing happened to a job since it came back."""
        job = due.job
        return (
            job.kind in REDELIVERABLE
            and job.came_back is due
            and self.job(due.partition, due.offset) is job
        )

    def _add_deadline(self, due_ms: int, fresh: list[FirstDeliveries], jobs: JobOffsets) -> None:
        self._order += 1
        heapq.heappush(self._deadlines, (due_ms, self._order, fresh, jobs))
        if len(self._deadlines) > DEADLINES_SLACK + 2 * self.unfinished:
            self.sort_deadlines()

    def sort_deadlines(self) -> None:
        """Rebuild the deadlines from the unfinished jobs."""
        grouped: dict[int, dict[int, list[int]]] = {}
        for partition, partition_jobs in self.partitions.items():
            for offset, job in partition_jobs.jobs.items():
                if job.kind in TIMED:
                    grouped.setdefault(job.due_ms, {}).setdefault(partition, []).append(offset)
        self._order += 1
        self._deadlines = [
            (due_ms, self._order, [], list(jobs.items())) for due_ms, jobs in grouped.items()
        ]
        heapq.heapify(self._deadlines)
