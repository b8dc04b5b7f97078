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
    Acked,
    Began,
    Buried,
    Burying,
    Cut,
    Delivered,
    Event,
    Extended,
    Fresh,
    Jobs,
    Removed,
    Renewed,
    Returned,
    Started,
    offsets_of,
)
from millstream.broker.queues.jobs import (
    BACK,
    BURYING,
    DELAYED,
    EXPIRED,
    GIVEN,
    LEASED,
    PENDING,
    Due,
    Lane,
    Unfinished,
)
from millstream.errors import CorruptData

DEADLINES_SPARE = 1_000
"""Deadlines of jobs that are finished are kept up to this, and as many as there are jobs."""

OTHERWISE = 0
"""In place of the delivery by which a job was acked: it was not."""


class QueueState:
    """All that is known of the jobs of one queue."""

    def __init__(self, *, ended_max: int) -> None:
        self.lanes: dict[int, Lane] = {}
        self.boot_id = ""
        """The boot whose clock the deadlines are of."""
        self.generation = 0
        """Receipts of another one do not count."""
        self.acked = self.dead = self.delivered = self.removed = 0
        self.kinds = [0, 0, 0, 0, 0]
        """How many jobs are of each kind."""
        self.ended: dict[tuple[int, int], int] = {}
        """By which delivery a job was acked, if not by its first; or `OTHERWISE`. Oldest first."""
        self.intent: Burying | None = None
        """Jobs that are about to be dead letters."""
        self.returned: deque[Due] = deque()
        """Jobs that can be claimed again, by when they came back; some may count no more."""
        self.doomed: deque[Due] = deque()
        """Jobs that came back and were handed out too often; some may count no more."""
        self.expired = 0
        """How many leases ran out; since the state was made, and only counted by `advance`."""
        self._ended_max = ended_max
        self._deadlines: list[tuple[int, int, list[Fresh], Jobs]] = []
        self._order = 0
        self._appliers: dict[type, Callable[[Any], None]] = {
            Started: self._started,
            Began: self._began,
            Delivered: self._delivered,
            Acked: self._acked,
            Returned: self._returned,
            Extended: self._extended,
            Burying: self._burying,
            Buried: self._buried,
            Removed: self._removed,
            Cut: self._cut,
            Renewed: self._renewed,
        }

    # What is durable.

    def apply(self, event: Event) -> None:
        """Take note of what happened; raises `CorruptData` where it cannot have happened."""
        try:
            self._appliers[type(event)](event)
        except (KeyError, ValueError, IndexError, OverflowError) as error:
            raise CorruptData(f"{type(event).__name__} cannot have happened: {error!r}") from error

    @property
    def unfinished(self) -> int:
        """How many jobs were handed out and are not done."""
        return sum(self.kinds)

    def _started(self, event: Started) -> None:
        self.boot_id = event.boot_id
        for lane in self.lanes.values():
            for job in lane.jobs.values():
                job.due_ms = event.now_ms + job.length_ms
        self.sort_deadlines()

    def _began(self, event: Began) -> None:
        if event.partition in self.lanes:
            raise ValueError(f"partition {event.partition} had begun")
        self.lanes[event.partition] = Lane(event.offset, event.offset)

    def _delivered(self, event: Delivered) -> None:
        due_ms, lease_ms = event.due_ms, event.lease_ms
        for fresh in event.fresh:
            lane = self.lanes[fresh.partition]
            if fresh.end < lane.frontier:
                raise ValueError(f"frontier {lane.frontier} cannot go back to {fresh.end}")
            jobs = lane.jobs
            offsets = offsets_of(fresh.runs)
            for offset in offsets:
                jobs[offset] = Unfinished(1, LEASED, due_ms, lease_ms)
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

    def _acked(self, event: Acked) -> None:
        kinds = self.kinds
        for partition, offsets in event.jobs:
            jobs = self.lanes[partition].jobs
            for offset in offsets:
                job = jobs.pop(offset)
                kinds[job.kind] -= 1
                if job.deliveries > 1:
                    self._remember(partition, offset, job.deliveries)
            self.acked += len(offsets)

    def _returned(self, event: Returned) -> None:
        for _, job in self._each(event.jobs):
            self._set(job, DELAYED, event.due_ms, event.delay_ms)
        self._add_deadline(event.due_ms, [], event.jobs)

    def _extended(self, event: Extended) -> None:
        for _, job in self._each(event.jobs):
            self._set(job, LEASED, event.due_ms, event.lease_ms)
        self._add_deadline(event.due_ms, [], event.jobs)

    def _burying(self, event: Burying) -> None:
        if self.intent is not None:
            raise ValueError("another burial is under way")
        self.intent = event
        for jobs in (event.expired, event.nacked):
            for _, job in self._each(jobs):
                self._set(job, BURYING, job.due_ms, job.length_ms)

    def _buried(self, event: Buried) -> None:
        self.intent = None
        self.dead += self._end(event.dead)
        self.removed += self._end(event.removed)
        if event.kept:
            self._returned(Returned(event.due_ms, event.delay_ms, event.kept))

    def _removed(self, event: Removed) -> None:
        self.removed += self._end(event.jobs)

    def _cut(self, event: Cut) -> None:
        lane = self.lanes[event.partition]
        lost = [offset for offset in lane.jobs if offset >= event.end]
        self.removed += self._end([(event.partition, lost)])
        lane.frontier = event.end
        lane.forgotten = min(lane.forgotten, event.end)
        for place in [at for at in self.ended if at[0] == event.partition and at[1] >= event.end]:
            del self.ended[place]

    def _renewed(self, event: Renewed) -> None:
        self.generation = event.generation

    def _end(self, jobs: Jobs) -> int:
        """Let jobs be finished in another way than by an ack; returns how many."""
        ended = 0
        for (partition, offset), job in self._each(jobs):
            del self.lanes[partition].jobs[offset]
            self.kinds[job.kind] -= 1
            self._remember(partition, offset, OTHERWISE)
            ended += 1
        return ended

    def _each(self, jobs: Jobs) -> Iterator[tuple[tuple[int, int], Unfinished]]:
        for partition, offsets in jobs:
            lane = self.lanes[partition]
            for offset in offsets:
                yield (partition, offset), lane.jobs[offset]

    def _set(self, job: Unfinished, kind: int, due_ms: int, length_ms: int) -> None:
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
            if job is None or job.due_ms != due_ms or job.kind not in PENDING:
                continue
            self.expired += job.kind == LEASED
            self._set(job, EXPIRED if job.kind == LEASED else GIVEN, due_ms, job.length_ms)
            job.came_back = due = Due(partition, offset, job, due_ms)
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

    def is_due(self, due: Due) -> bool:
        """Whether nothing happened to a job since its time came."""
        job, lane = due.job, self.lanes.get(due.partition)
        return (
            job.kind in BACK
            and job.came_back is due
            and lane is not None
            and lane.jobs.get(due.offset) is job
        )

    def _add_deadline(self, due_ms: int, fresh: list[Fresh], jobs: Jobs) -> None:
        self._order += 1
        heapq.heappush(self._deadlines, (due_ms, self._order, fresh, jobs))
        if len(self._deadlines) > DEADLINES_SPARE + 2 * self.unfinished:
            self.sort_deadlines()

    def sort_deadlines(self) -> None:
        """Make the deadlines anew from the jobs that there are, and forget those of others."""
        grouped: dict[int, dict[int, list[int]]] = {}
        for partition, lane in self.lanes.items():
            for offset, job in lane.jobs.items():
                if job.kind in PENDING:
                    grouped.setdefault(job.due_ms, {}).setdefault(partition, []).append(offset)
        self._order += 1
        self._deadlines = [
            (due_ms, self._order, [], list(jobs.items())) for due_ms, jobs in grouped.items()
        ]
        heapq.heapify(self._deadlines)
