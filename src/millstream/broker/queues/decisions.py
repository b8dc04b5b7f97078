"""What a queue decides on requests: looks at its state, and returns the event that follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from millstream.broker.queues.events import (
    JobOffsets,
    JobsAcked,
    JobsRemoved,
    JobsReturned,
    LeasesExtended,
    QueueEvent,
    group_jobs,
)
from millstream.broker.queues.jobs import DEAD_LETTERING, RECEIPT_VALID, RETURNED, DueJob
from millstream.broker.queues.receipts import Delivery
from millstream.broker.queues.state import QueueStateMachine


class QueueDecision(NamedTuple):
    """What became of a request about deliveries."""

    event: QueueEvent | None
    """What has to be applied; nothing, where it changes nothing."""
    done: int
    """For how many deliveries it was done, or had been."""
    stale: list[int]
    """Which of them, by their places in the request, count no more."""


def ack(state: QueueStateMachine, deliveries: Sequence[Delivery | None]) -> QueueDecision:
    """Let jobs be done. Repeating what succeeded is fine."""
    jobs, stale = _sort(state, deliveries, may_be_acked=True)
    return QueueDecision(JobsAcked(jobs) if jobs else None, len(deliveries) - len(stale), stale)


def nack(
    state: QueueStateMachine, deliveries: Sequence[Delivery | None], *, now_ms: int, delay_ms: int
) -> QueueDecision:
    """Give jobs back, for others to have once `delay_ms` have passed."""
    jobs, stale = _sort(state, deliveries)
    event = JobsReturned(now_ms + delay_ms, delay_ms, jobs) if jobs else None
    return QueueDecision(event, len(deliveries) - len(stale), stale)


def extend(
    state: QueueStateMachine, deliveries: Sequence[Delivery | None], *, now_ms: int, lease_ms: int
) -> QueueDecision:
    """Let leases last `lease_ms` from now."""
    jobs, stale = _sort(state, deliveries)
    event = LeasesExtended(now_ms + lease_ms, lease_ms, jobs) if jobs else None
    return QueueDecision(event, len(deliveries) - len(stale), stale)


def was_acked(state: QueueStateMachine, delivery: Delivery) -> bool:
    """Whether a job is done by an ack of this very delivery.

    A job that ended by an ack of its first delivery needs no memory. Where it may have ended in a
    way that is forgotten, the answer is no.
    """
    lane = state.lanes.get(delivery.partition)
    offset = delivery.offset
    if lane is None or offset >= lane.frontier or offset in lane.jobs:
        return False
    by = state.ended.get((delivery.partition, offset))
    if by is not None:
        return by == delivery.number
    return delivery.number == 1 and offset >= lane.forgotten


def _sort(
    state: QueueStateMachine, deliveries: Sequence[Delivery | None], *, may_be_acked: bool = False
) -> tuple[JobOffsets, list[int]]:
    """Return the jobs of the deliveries that are the newest of theirs, and which are stale.

    A delivery that comes twice counts once.
    """
    lanes = state.lanes
    found: dict[int, dict[int, None]] = {}
    stale: list[int] = []
    for place, delivery in enumerate(deliveries):
        if delivery is not None:
            partition, offset, number = delivery
            lane = lanes.get(partition)
            job = lane.jobs.get(offset) if lane is not None else None
            if job is not None:
                if job.deliveries == number and job.kind in RECEIPT_VALID:
                    found.setdefault(partition, {})[offset] = None
                    continue
            elif may_be_acked and was_acked(state, delivery):
                continue
        stale.append(place)
    return [(partition, list(offsets)) for partition, offsets in found.items()], stale


def claimable(state: QueueStateMachine, limit: int, sick: Collection[int] = ()) -> list[DueJob]:
    """Return the jobs that came back and go out next, in their order.

    What lies in a partition of `sick` stays where it is.
    """
    returned = state.returned
    while returned and not state.is_due(returned[0]):
        returned.popleft()
    found: list[DueJob] = []
    for due in returned:
        if len(found) == limit:
            break
        if due.partition not in sick and state.is_due(due):
            found.append(due)
    return found


def exhausted_jobs(state: QueueStateMachine, limit: int) -> list[DueJob]:
    """Return jobs that came back and were handed out too often, oldest first."""
    while state.doomed and not state.is_due(state.doomed[0]):
        state.doomed.popleft()
    return [due for due in islice(state.doomed, limit) if state.is_due(due)]


def drop_deleted_jobs(
    state: QueueStateMachine, gone: Mapping[int, Sequence[int]]
) -> JobsRemoved | None:
    """Let unfinished jobs go whose records were deleted; those that are being buried may stay."""
    pairs = [
        (partition, offset)
        for partition, offsets in gone.items()
        for offset in offsets
        if state.lanes[partition].jobs[offset].kind != DEAD_LETTERING
    ]
    return JobsRemoved(group_jobs(pairs)) if pairs else None


def is_returned_by_worker(due: DueJob) -> bool:
    """Whether a worker gave the job back, and it was not its lease that ran out."""
    return due.job.kind == RETURNED
