r"""The state of a queue: a machine that is told events, and nothing else.

    offsets of one partition (a lane)
              frontier
    ----------|----------------------
     handed    not handed out yet
     out, or
     no job    \_ fresh: ready

    unfinished   handed out, and neither acked nor ended otherwise
    finished     all others before the frontier

    fresh --deliver--> LEASED --ack--> finished
                        |  ^ \--nack--> DELAYED --time--> GIVEN ---+
                   time |  | extend, ack, nack: late               |
                        v  |                                       |
                       EXPIRED ------------------------------------+--deliver--> LEASED
                        \------ handed out too often --> BURYING <-/
                                                          \--> finished, as a dead letter

1. `apply` alone changes what is durable; live and in replay it is the same. What a replay meets
   that it cannot apply is damage.
2. Time changes nothing durable. `advance` sorts jobs by whether their time has come, and may be
   called as often as one likes: a lease that ran out needs no event.
3. The number of deliveries of a job never falls. Of its receipts, that of the last delivery counts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from millstream.broker.queues.events import (
    DeadLettersIntended,
    DeadLettersMoved,
    FirstDeliveries,
    JobOffsets,
    JobsAcked,
    JobsDelivered,
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
"""Deadlines of jobs that are finished are kept up to this, and as many as there are jobs."""

ENDED_OTHERWISE = 0
"""In place of the delivery by which a job was acked: it was not."""


class QueueStateMachine:
    """All that is known of the jobs of one queue."""

    def __init__(self, *, ended_max: int) -> None:
        self.lanes: dict[int, PartitionJobs] = {}
        self.boot_id = ""
        """The boot whose clock the deadlines are of."""
        self.generation = 0
        """Receipts of another one do not count."""
        self.acked = self.dead = self.delivered = self.removed = 0
        self.kinds = [0, 0, 0, 0, 0]
        """How many jobs are of each kind."""
        self.ended: dict[tuple[int, int], int] = {}
        """Delivery that acked a job, if not its first, or `ENDED_OTHERWISE`. Oldest first."""
        self.intent: DeadLettersIntended | None = None
        """Jobs that are about to be dead letters."""
        self.returned: deque[DueJob] = deque()
        """Jobs that can be claimed again, by when they came back; some may count no more."""
        self.doomed: deque[DueJob] = deque()
        """Jobs that came back and were handed out too often; some may count no more."""
        self.expired = 0
        """How many leases ran out; since the state was made, and only counted by `advance`."""
        self._ended_max = ended_max
        self._deadlines: list[tuple[int, int, list[FirstDeliveries], JobOffsets]] = []
        self._order = 0
        self._appliers: dict[type, Callable[[Any], None]] = {
            NodeBooted: self._started,
            PartitionAdded: self._began,
            JobsDelivered: self._delivered,
            JobsAcked: self._acked,
            JobsReturned: self._returned,
            LeasesExtended: self._extended,
            DeadLettersIntended: self._burying,
            DeadLettersMoved: self._buried,
            JobsRemoved: self._removed,
            PartitionTruncated: self._cut,
            ReceiptsInvalidated: self._renewed,
        }

    # What is durable.

    def apply(self, event: QueueEvent) -> None:
        """Take note of what happened; raises `CorruptData` where it cannot have happened."""
        try:
            self._appliers[type(event)](event)
        except (KeyError, ValueError, IndexError, OverflowError) as error:
            raise CorruptData(f"{type(event).__name__} cannot have happened: {error!r}") from error

    @property
    def unfinished(self) -> int:
        """How many jobs were handed out and are not done."""
        return sum(self.kinds)

    def _started(self, event: NodeBooted) -> None:
        self.boot_id = event.boot_id
        for lane in self.lanes.values():
            for job in lane.jobs.values():
                job.due_ms = event.now_ms + job.length_ms
        self.sort_deadlines()

    def _began(self, event: PartitionAdded) -> None:
        if event.partition in self.lanes:
            raise ValueError(f"partition {event.partition} had begun")
        self.lanes[event.partition] = PartitionJobs(event.offset, event.offset)

    def _delivered(self, event: JobsDelivered) -> None:
        due_ms, lease_ms = event.due_ms, event.lease_ms
        for fresh in event.fresh:
            lane = self.lanes[fresh.partition]
            if fresh.end < lane.frontier:
                raise ValueError(f"frontier {lane.frontier} cannot go back to {fresh.end}")
            jobs = lane.jobs
            offsets = offsets_of(fresh.runs)
            for offset in offsets:
                jobs[offset] = UnfinishedJob(1, LEASED, due_ms, lease_ms)
            lane.frontier = fresh.end
            self.delivered += len(offsets)
            self.kinds[LEASED] += len(offsets)
            self.removed += fresh.removed
        for partition, offsets in event.again:
            jobs = self.lanes[partition].jobs
            self.delivered += len(offsets)
            for offset in offsets:
                job = jobs[offset]
                job.deliveries += 1
                self._set(job, LEASED, due_ms, lease_ms)
        if event.again or any(fresh.runs for fresh in event.fresh):
            self._add_deadline(due_ms, event.fresh, event.again)

    def _acked(self, event: JobsAcked) -> None:
        kinds = self.kinds
        for partition, offsets in event.jobs:
            jobs = self.lanes[partition].jobs
            for offset in offsets:
                job = jobs.pop(offset)
                kinds[job.kind] -= 1
                if job.deliveries > 1:
                    self._remember(partition, offset, job.deliveries)
            self.acked += len(offsets)

    def _returned(self, event: JobsReturned) -> None:
        for _, job in self._each(event.jobs):
            self._set(job, DELAYED, event.due_ms, event.delay_ms)
        self._add_deadline(event.due_ms, [], event.jobs)

    def _extended(self, event: LeasesExtended) -> None:
        for _, job in self._each(event.jobs):
            self._set(job, LEASED, event.due_ms, event.lease_ms)
        self._add_deadline(event.due_ms, [], event.jobs)

    def _burying(self, event: DeadLettersIntended) -> None:
        if self.intent is not None:
            raise ValueError("another burial is under way")
        self.intent = event
        for jobs in (event.expired, event.nacked):
            for _, job in self._each(jobs):
                self._set(job, DEAD_LETTERING, job.due_ms, job.length_ms)

    def _buried(self, event: DeadLettersMoved) -> None:
        self.intent = None
        self.dead += self._end(event.dead)
        self.removed += self._end(event.removed)
        if event.kept:
            self._returned(JobsReturned(event.due_ms, event.delay_ms, event.kept))

    def _removed(self, event: JobsRemoved) -> None:
        self.removed += self._end(event.jobs)

    def _cut(self, event: PartitionTruncated) -> None:
        lane = self.lanes[event.partition]
        lost = [offset for offset in lane.jobs if offset >= event.end]
        self.removed += self._end([(event.partition, lost)])
        lane.frontier = event.end
        lane.forgotten = min(lane.forgotten, event.end)
        for place in [at for at in self.ended if at[0] == event.partition and at[1] >= event.end]:
            del self.ended[place]

    def _renewed(self, event: ReceiptsInvalidated) -> None:
        self.generation = event.generation

    def _end(self, jobs: JobOffsets) -> int:
        """Let jobs be finished in another way than by an ack; returns how many."""
        ended = 0
        for (partition, offset), job in self._each(jobs):
            del self.lanes[partition].jobs[offset]
            self.kinds[job.kind] -= 1
            self._remember(partition, offset, ENDED_OTHERWISE)
            ended += 1
        return ended

    def _each(self, jobs: JobOffsets) -> Iterator[tuple[tuple[int, int], UnfinishedJob]]:
        for partition, offsets in jobs:
            lane = self.lanes[partition]
            for offset in offsets:
                yield (partition, offset), lane.jobs[offset]

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
            lane = self.lanes[oldest[0]]
            lane.forgotten = max(lane.forgotten, oldest[1] + 1)

    # Time.

    def advance(self, now_ms: int, deliveries_max: int) -> None:
        """Sort out the jobs whose time has come: they can be claimed again, or are doomed."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            due_ms, _, fresh, jobs = heapq.heappop(self._deadlines)
            for one in fresh:
                self._come_back(one.partition, offsets_of(one.runs), due_ms, deliveries_max)
            for partition, offsets in jobs:
                self._come_back(partition, offsets, due_ms, deliveries_max)

    def _come_back(
        self, partition: int, offsets: list[int], due_ms: int, deliveries_max: int
    ) -> None:
        jobs = self.lanes[partition].jobs
        for offset in offsets:
            job = jobs.get(offset)
            if job is None or job.due_ms != due_ms or job.kind not in TIMED:
                continue
            self.expired += job.kind == LEASED
            self._set(job, EXPIRED if job.kind == LEASED else RETURNED, due_ms, job.length_ms)
            job.came_back = due = DueJob(partition, offset, job, due_ms)
            (self.doomed if job.deliveries >= deliveries_max else self.returned).append(due)

    def limit(self, deliveries_max: int) -> None:
        """Go by another number of deliveries: some jobs that came back may be doomed, or saved."""
        both = [due for due in (*self.returned, *self.doomed) if self.is_due(due)]
        both.sort(key=lambda due: due.due_ms)
        self.returned = deque(due for due in both if due.job.deliveries < deliveries_max)
        self.doomed = deque(due for due in both if due.job.deliveries >= deliveries_max)

    @property
    def next_due_ms(self) -> int | None:
        """When time may change something next."""
        return self._deadlines[0][0] if self._deadlines else None

    def is_due(self, due: DueJob) -> bool:
        """Whether nothing happened to a job since its time came."""
        job, lane = due.job, self.lanes.get(due.partition)
        return (
            job.kind in REDELIVERABLE
            and job.came_back is due
            and lane is not None
            and lane.jobs.get(due.offset) is job
        )

    def _add_deadline(self, due_ms: int, fresh: list[FirstDeliveries], jobs: JobOffsets) -> None:
        self._order += 1
        heapq.heappush(self._deadlines, (due_ms, self._order, fresh, jobs))
        if len(self._deadlines) > DEADLINES_SLACK + 2 * self.unfinished:
            self.sort_deadlines()

    def sort_deadlines(self) -> None:
        """Make the deadlines anew from the jobs that there are, and forget those of others."""
        grouped: dict[int, dict[int, list[int]]] = {}
        for partition, lane in self.lanes.items():
            for offset, job in lane.jobs.items():
                if job.kind in TIMED:
                    grouped.setdefault(job.due_ms, {}).setdefault(partition, []).append(offset)
        self._order += 1
        self._deadlines = [
            (due_ms, self._order, [], list(jobs.items())) for due_ms, jobs in grouped.items()
        ]
        heapq.heapify(self._deadlines)
