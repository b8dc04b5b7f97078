"""Decisions of a queue: each looks at the state and returns the event that follows from a request.

Nothing here does I/O, reads a clock or changes what is durable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from millstream.broker.queues.events import (
    FirstDeliveries,
    JobOffsets,
    JobPosition,
    JobsAcked,
    JobsDelivered,
    JobsReleased,
    JobsRemoved,
    JobsReturned,
    LeasesExtended,
    QueueEvent,
    group_jobs,
    runs_of,
)
from millstream.broker.queues.fresh_jobs import FreshJobs, TakenJobs
from millstream.broker.queues.jobs import (
    DEAD_LETTERING,
    EXPIRED,
    RECEIPT_VALID,
    RETURNED,
    DueJob,
)
from millstream.broker.queues.receipts import Delivery
from millstream.broker.queues.state import QueueStateMachine
from millstream.errors import MillstreamError
from millstream.records.record import StoredRecord


class QueueDecision(NamedTuple):
    """The outcome of a request about deliveries."""

    event: QueueEvent | None
    """The event to apply; `None` if nothing changes."""
    done: int
    """Number of deliveries for which the request succeeded, now or before."""
    stale: list[int]
    """Indexes, within the request, of the deliveries that are not valid any more."""


def ack(state: QueueStateMachine, deliveries: Sequence[Delivery | None]) -> QueueDecision:
    """Finish jobs. Repeating an ack that succeeded succeeds."""
    jobs, stale = _sort(state, deliveries, may_be_acked=True)
    return QueueDecision(JobsAcked(jobs) if jobs else None, len(deliveries) - len(stale), stale)


def nack(
    state: QueueStateMachine, deliveries: Sequence[Delivery | None], *, now_ms: int, delay_ms: int
) -> QueueDecision:
    """Return jobs, claimable again after `delay_ms`."""
    jobs, stale = _sort(state, deliveries)
    event = JobsReturned(now_ms + delay_ms, delay_ms, jobs) if jobs else None
    return QueueDecision(event, len(deliveries) - len(stale), stale)


def release(
    state: QueueStateMachine, deliveries: Sequence[Delivery | None], *, now_ms: int
) -> QueueDecision:
    """Return jobs that were not tried: they are claimable, and the delivery does not count."""
    jobs, stale = _sort(state, deliveries)
    event = JobsReleased(now_ms, jobs) if jobs else None
    return QueueDecision(event, len(deliveries) - len(stale), stale)


def extend(
    state: QueueStateMachine, deliveries: Sequence[Delivery | None], *, now_ms: int, lease_ms: int
) -> QueueDecision:
    """Let leases end `lease_ms` from now."""
    jobs, stale = _sort(state, deliveries)
    event = LeasesExtended(now_ms + lease_ms, lease_ms, jobs) if jobs else None
    return QueueDecision(event, len(deliveries) - len(stale), stale)


def was_acked(state: QueueStateMachine, delivery: Delivery) -> bool:
    """Return whether a job was finished by an ack of this delivery.

    A job that was acked at its first delivery is not remembered: it is finished and has no entry in
    `ended`. If the job may have ended in a way that was forgotten, the answer is False.
    """
    partition_jobs = state.partitions.get(delivery.partition)
    offset = delivery.offset
    if partition_jobs is None or offset >= partition_jobs.frontier or offset in partition_jobs.jobs:
        return False
    acked_by = state.ended.get((delivery.partition, offset))
    if acked_by is not None:
        return acked_by == delivery.number
    return delivery.number == 1 and offset >= partition_jobs.forgotten


def _sort(
    state: QueueStateMachine, deliveries: Sequence[Delivery | None], *, may_be_acked: bool = False
) -> tuple[JobOffsets, list[int]]:
    """Return the jobs whose newest delivery is in `deliveries`, and the indexes of stale ones.

    A delivery that occurs twice counts once.
    """
    jobs: dict[int, dict[int, None]] = {}
    stale: list[int] = []
    for index, delivery in enumerate(deliveries):
        if delivery is not None:
            partition, offset, number = delivery
            job = state.job(partition, offset)
            if job is not None:
                if job.number == number and job.kind in RECEIPT_VALID:
                    jobs.setdefault(partition, {})[offset] = None
                    continue
            elif may_be_acked and was_acked(state, delivery):
                continue
        stale.append(index)
    return [(partition, list(offsets)) for partition, offsets in jobs.items()], stale


class AvailableJobs(NamedTuple):
    """Jobs whose records were read: a claim may get them."""

    returned: Mapping[JobPosition, StoredRecord]
    fresh: Sequence[tuple[int, FreshJobs]]
    """New jobs by partition, in the order in which the partitions are used."""
    unreadable: Mapping[int, MillstreamError]
    """Partitions that cannot be read, and why."""


class ClaimDecision(NamedTuple):
    """The jobs that a claim gets."""

    jobs: list[tuple[int, StoredRecord, int, int]]
    """Partition, record, number of the delivery, and how many deliveries count with it."""
    event: JobsDelivered | None
    """`None` if there are no jobs."""
    returned: list[JobPosition]
    """The jobs among them that were delivered before."""
    fresh: list[tuple[FreshJobs, TakenJobs]]
    """Where the others were taken from."""


def decide_claim(
    state: QueueStateMachine,
    available: AvailableJobs,
    n: int,
    *,
    now_ms: int,
    lease_ms: int,
    unfinished_max: int,
) -> ClaimDecision:
    """Choose up to `n` jobs for a claim: returned jobs first, then new ones."""
    jobs: list[tuple[int, StoredRecord, int, int]] = []
    returned: list[JobPosition] = []
    for due in returned_jobs(state, n, available.unreadable):
        position = due.partition, due.offset
        # A job that came back after the reading has no record yet; the next pass reads it.
        if (record := available.returned.get(position)) is not None:
            jobs.append((due.partition, record, due.job.number + 1, due.job.deliveries + 1))
            returned.append(position)
    # A returned job is unfinished already. Only a new one adds to the unfinished jobs.
    room = min(n - len(jobs), unfinished_max - state.unfinished)
    fresh: list[tuple[FreshJobs, TakenJobs]] = []
    deliveries: list[FirstDeliveries] = []
    for index, fresh_jobs in available.fresh:
        if room <= 0:
            break
        if fresh_jobs.count:
            taken = fresh_jobs.peek(room)
            room -= len(taken.records)
            runs = runs_of([record.offset for record in taken.records])
            deliveries.append(FirstDeliveries(index, runs, taken.end, taken.removed))
            fresh.append((fresh_jobs, taken))
            jobs += [(index, record, 1, 1) for record in taken.records]
    event = None
    if jobs:
        event = JobsDelivered(now_ms + lease_ms, lease_ms, deliveries, group_jobs(returned))
    return ClaimDecision(jobs, event, returned, fresh)


def even_shares(wanted: Sequence[int], available: int) -> list[int]:
    """Divide `available` evenly: no share is larger than wanted, nor than one that wants more.

    The remainder goes to those that came first.
    """
    shares = [0] * len(wanted)
    smallest_first = sorted(range(len(wanted)), key=lambda index: (wanted[index], -index))
    for done, index in enumerate(smallest_first):
        shares[index] = min(wanted[index], available // (len(wanted) - done))
        available -= shares[index]
    return shares


def returned_jobs(
    state: QueueStateMachine, limit: int, except_partitions: Collection[int] = ()
) -> list[DueJob]:
    """Return the returned jobs that are delivered next, in their order."""
    returned = state.returned
    while returned and not state.is_due(returned[0]):
        returned.popleft()
    jobs: list[DueJob] = []
    for due in returned:
        if len(jobs) == limit:
            break
        if due.partition not in except_partitions and state.is_due(due):
            jobs.append(due)
    return jobs


def exhausted_jobs(state: QueueStateMachine, limit: int) -> list[DueJob]:
    """Return jobs that came back after their last permitted delivery or are damaged."""
    while state.exhausted and not state.is_due(state.exhausted[0]):
        state.exhausted.popleft()
    return [due for due in islice(state.exhausted, limit) if state.is_due(due)]


def drop_deleted_jobs(
    state: QueueStateMachine, deleted: Mapping[int, Sequence[int]]
) -> JobsRemoved | None:
    """Remove unfinished jobs whose records were deleted.

    Those that are being moved to the dead-letter topic stay: their record may be there already.
    """
    positions = [
        (partition, offset)
        for partition, offsets in deleted.items()
        for offset in offsets
        if (job := state.job(partition, offset)) is not None and job.kind != DEAD_LETTERING
    ]
    return JobsRemoved(group_jobs(positions)) if positions else None


def is_returned_by_worker(due: DueJob) -> bool:
    """Return whether a worker returned the job, rather than letting its lease run out."""
    return due.job.kind == RETURNED and not due.job.is_damaged


def is_expired(due: DueJob) -> bool:
    """Return whether the lease of a job ran out."""
    return due.job.kind == EXPIRED and not due.job.is_damaged
