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

from millstream.broker.difference import read_difference, size_of
from millstream.broker.partition import Partition
from millstream.broker.queues.jobs import DELAYED, LEASED, Unfinished
from millstream.broker.queues.queue import Queue
from millstream.broker.queues.stock import read_offsets
from millstream.config import MIB
from millstream.records.record import StoredRecord

State: TypeAlias = Literal["ready", "leased", "delayed"]

BYTES_MAX = 4 * MIB
"""What is read of a topic for one page."""

JOBS_AT_ONCE = 5_000
"""Jobs that are sorted before others have their turn: about a millisecond."""


class Place(NamedTuple):
    """A place in a topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class LookedAt(NamedTuple):
    """A job, as it was a moment ago."""

    partition: int
    record: StoredRecord
    state: State
    deliveries: int
    ready_in_ms: int | None
    """When its lease or its delay is over; `None` where it can be claimed."""
    worker: str
    """Who has it, if it said so since the node was started."""


class Page(NamedTuple):
    """Some jobs, by partition and offset."""

    jobs: list[LookedAt]
    next: Place | None
    """The last that was looked at; `None` where there is no more."""


class _Held(NamedTuple):
    """A job that was handed out, as it was when it was found."""

    offset: int
    state: State
    deliveries: int
    due_ms: int
    worker: str


async def look(queue: Queue, *, state: State | None, after: Place | None, limit: int) -> Page:
    """Return jobs of a queue that are not done, of one state or of all, behind a place.

    A page ends early where so much was read that more must wait.
    """
    start = after or Place(0, -1)
    looking = _Looking(queue, state, count_max=limit + 1)
    for partition in queue.topic.partitions[start.partition :]:
        first = start.offset + 1 if partition.index == start.partition else 0
        await looking.look_at(partition, first)
        if looking.stopped_at is not None:
            break
    found = looking.found
    if len(found) > limit:
        last = found[limit - 1]
        return Page(found[:limit], Place(last.partition, last.record.offset))
    return Page(found, looking.stopped_at)


class _Looking:
    """Gathers jobs, one partition after the other."""

    def __init__(self, queue: Queue, state: State | None, *, count_max: int) -> None:
        self.found: list[LookedAt] = []
        self.stopped_at: Place | None = None
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

    async def _held(self, jobs: Mapping[int, Unfinished], first: int) -> list[_Held]:
        """Return the first jobs that were handed out, by offset; the loop is free in between."""
        items = list(jobs.items())
        best: list[_Held] = []
        for begin in range(0, len(items), JOBS_AT_ONCE):
            piece = [
                _Held(offset, _WORDS.get(job.kind, "ready"), job.deliveries, job.due_ms, job.worker)
                for offset, job in items[begin : begin + JOBS_AT_ONCE]
                if offset >= first
            ]
            wanted = [one for one in piece if self._state in (None, one.state)]
            best = heapq.nsmallest(self._count_max - len(self.found), best + wanted)
            if len(items) > JOBS_AT_ONCE:
                await asyncio.sleep(0)
        return best

    async def _take_held(self, partition: Partition, held: list[_Held]) -> None:
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
                self.found.append(_looked_at(partition.index, record, one, now_ms))
            elif one.offset not in missing:
                break
            last = one.offset
        if last is not None and last != held[-1].offset:
            self.stopped_at = Place(partition.index, last)
        else:
            self._stop_if_enough(partition, held[-1].offset)

    # Jobs that nobody had yet.

    async def _take_fresh(self, partition: Partition, first: int) -> None:
        cursor = max(first, partition.log_start_offset)
        while cursor < partition.last_stable_offset and self.stopped_at is None:
            read = await read_difference(
                partition,
                cursor,
                limit=self._count_max - len(self.found),
                size_max=self._size_left,
            )
            self._size_left -= sum(map(size_of, read.records))
            self.found += [
                LookedAt(partition.index, record, "ready", 0, None, "") for record in read.records
            ]
            if read.next_offset == cursor:
                return
            cursor = read.next_offset
            self._stop_if_enough(partition, cursor - 1)

    def _stop_if_enough(self, partition: Partition, offset: int) -> None:
        if len(self.found) >= self._count_max or self._size_left <= 0:
            self.stopped_at = Place(partition.index, offset)


_WORDS: Mapping[int, State] = {LEASED: "leased", DELAYED: "delayed"}
"""What jobs are called that cannot be claimed; all others are ready, or will be dead letters."""


def _looked_at(partition: int, record: StoredRecord, held: _Held, now_ms: int) -> LookedAt:
    is_ready = held.state == "ready"
    return LookedAt(
        partition,
        record,
        held.state,
        held.deliveries,
        None if is_ready else max(0, held.due_ms - now_ms),
        held.worker if held.state == "leased" else "",
    )
