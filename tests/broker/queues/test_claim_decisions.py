"""Which jobs a claim gets, decided without a disk, a loop or a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.broker.queues.decisions import AvailableJobs, ClaimDecision, decide_claim
from millstream.broker.queues.events import FirstDeliveries, JobsDelivered, PartitionAdded
from millstream.broker.queues.fresh_jobs import FreshJobs, JobChunk
from millstream.broker.queues.state import QueueStateMachine
from millstream.errors import MillstreamError, StorageFailed
from millstream.records.record import StoredRecord

PARTITIONS = 2


def record(offset: int) -> StoredRecord:
    return StoredRecord(offset=offset, timestamp_ms=0, key=None, value=b"job")


def new_jobs(*offsets: int, start: int = 0, end: int, removed: int = 0) -> FreshJobs:
    """Jobs that were read from `start` on; the deleted ones were before the first of them."""
    jobs = FreshJobs(start)
    jobs.add(JobChunk([record(offset) for offset in offsets], {0: removed}, end))
    return jobs


def state_with_returned_jobs(*offsets: int) -> QueueStateMachine:
    """A state in which these jobs of partition 0 were delivered once and came back."""
    state = QueueStateMachine(ended_max=10)
    for index in range(PARTITIONS):
        state.apply(PartitionAdded(index, 0))
    for offset in offsets:
        first = FirstDeliveries(0, [offset, 1], offset + 1, 0)
        state.apply(JobsDelivered(10, 10, [first], []))
    state.advance(20, deliveries_max=5)
    return state


def decide(
    state: QueueStateMachine,
    n: int,
    *,
    returned: Sequence[int] = (),
    fresh: Sequence[tuple[int, FreshJobs]] = (),
    unreadable: Mapping[int, MillstreamError] | None = None,
    unfinished_max: int = 100,
) -> ClaimDecision:
    available = AvailableJobs(
        {(0, offset): record(offset) for offset in returned}, fresh, unreadable or {}
    )
    return decide_claim(state, available, n, now_ms=20, lease_ms=30, unfinished_max=unfinished_max)


def positions(decided: ClaimDecision) -> list[tuple[int, int, int]]:
    return [(index, job.offset, number) for index, job, number, _ in decided.jobs]


def test_returned_jobs_come_before_new_ones() -> None:
    state = state_with_returned_jobs(0, 1)
    decided = decide(state, 3, returned=[0, 1], fresh=[(1, new_jobs(4, 5, end=6))])
    assert positions(decided) == [(0, 0, 2), (0, 1, 2), (1, 4, 1)]
    assert decided.event == JobsDelivered(50, 30, [FirstDeliveries(1, [4, 1], 5, 0)], [(0, [0, 1])])


def test_deciding_changes_nothing_until_the_event_is_applied() -> None:
    state, fresh = state_with_returned_jobs(0), new_jobs(4, 5, end=6)
    first = decide(state, 3, returned=[0], fresh=[(1, fresh)])
    assert decide(state, 3, returned=[0], fresh=[(1, fresh)]) == first
    assert first.event is not None
    state.apply(first.event)
    for jobs, taken in first.fresh:
        jobs.drop(taken)
    assert decide(state, 3, returned=[0], fresh=[(1, fresh)]).event is None


def test_a_returned_job_that_was_not_read_is_left_for_the_next_claim() -> None:
    assert positions(decide(state_with_returned_jobs(0, 1), 2, returned=[1])) == [(0, 1, 2)]


def test_jobs_of_an_unreadable_partition_are_not_delivered() -> None:
    state = state_with_returned_jobs(0)
    assert not decide(state, 1, returned=[0], unreadable={0: StorageFailed("gone")}).jobs


def test_too_many_unfinished_jobs_keep_new_ones_back_but_not_returned_ones() -> None:
    state, fresh = state_with_returned_jobs(0), [(1, new_jobs(4, 5, end=6))]
    assert positions(decide(state, 3, returned=[0], fresh=fresh, unfinished_max=1)) == [(0, 0, 2)]
    decided = decide(state, 3, returned=[0], fresh=fresh, unfinished_max=2)
    assert positions(decided) == [(0, 0, 2), (1, 4, 1)]


def test_deleted_jobs_are_counted_once_when_the_frontier_passes_them() -> None:
    fresh = new_jobs(3, 4, end=8, removed=3)
    first = fresh.peek(1)
    assert (first.end, first.removed) == (4, 3)
    fresh.drop(first)
    fresh.add(JobChunk([], {0: 2}, 10))
    last = fresh.peek(5)
    assert ([job.offset for job in last.records], last.end, last.removed) == ([4], 10, 2)
    fresh.drop(last)
    assert fresh.peek(0) == ([], 10, 0)
