"""The state machine of a queue."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.queues.decisions import (
    ack,
    even_shares,
    exhausted_jobs,
    extend,
    nack,
    release,
    returned_jobs,
    was_acked,
)
from millstream.broker.queues.events import (
    BatchDamaged,
    DeadLettersIntended,
    DeadLettersMoved,
    FirstDeliveries,
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
    QueueStateSnapshot,
    ReceiptsInvalidated,
    decode_event,
    encode_event,
    group_jobs,
    offsets_of,
    runs_of,
)
from millstream.broker.queues.jobs import DELAYED, EXPIRED, LEASED
from millstream.broker.queues.receipts import RECEIPT_SIZE, Delivery, Receipts
from millstream.broker.queues.snapshot import restore_state, snapshot_of
from millstream.broker.queues.state import DEADLINES_SLACK, QueueStateMachine
from millstream.errors import CorruptData


def state_of(*events: QueueEvent, ended_max: int = 100) -> QueueStateMachine:
    state = QueueStateMachine(ended_max=ended_max)
    for event in (NodeBooted("boot-1", 0), PartitionAdded(0, 0), *events):
        state.apply(event)
    return state


def delivered(first: int, count: int, *, due_ms: int = 1000) -> JobsDelivered:
    return JobsDelivered(due_ms, 1000, [FirstDeliveries(0, [first, count], first + count, 0)], [])


def again(*offsets: int, due_ms: int = 2000) -> JobsDelivered:
    return JobsDelivered(due_ms, 1000, [], [(0, list(offsets))])


EVENTS: list[QueueEvent] = [
    NodeBooted("boot-1", 5),
    PartitionAdded(3, 7),
    JobsDelivered(10, 5, [FirstDeliveries(0, [1, 2, 5, 1], 9, 2)], [(1, [4, 5])]),
    JobsAcked([(0, [1, 2**40])]),
    JobsReturned(9, 0, [(0, [1])]),
    LeasesExtended(9, 5, [(0, [1])]),
    DeadLettersIntended(b"\0" * 16, [0, 5], [(0, [1])], []),
    DeadLettersMoved([(0, [1])], []),
    JobsRemoved([(0, [1])]),
    PartitionTruncated(0, 4),
    ReceiptsInvalidated(2**63 + 1),
    JobsReleased(9, [(0, [1])]),
    BatchDamaged(9, 0, 3, 12),
    DeadLettersIntended(b"\0" * 16, [0], [], [], [(0, [1])]),
    snapshot_of(state_of(delivered(0, 3), JobsAcked([(0, [1])]), JobsRemoved([(0, [2])]))),
    snapshot_of(state_of(delivered(0, 3), JobsReleased(0, [(0, [1])]))),
    snapshot_of(state_of(BatchDamaged(0, 0, 0, 4))),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_reads_back_as_it_was_written(event: QueueEvent) -> None:
    data = encode_event(event)
    assert decode_event(data) == event
    for size in range(1, len(data)):
        with pytest.raises(CorruptData):
            decode_event(data[:size])
    with pytest.raises(CorruptData):
        decode_event(data + b"\0")


@given(st.binary(max_size=40))
def test_noise_is_refused_or_read_but_never_crashes(noise: bytes) -> None:
    try:
        event = decode_event(b"\x01" + noise)
    except CorruptData:
        return
    assert decode_event(encode_event(event)) == event


@given(st.sets(st.integers(0, 60)).map(sorted))
def test_runs_are_the_offsets_that_they_were_made_of(offsets: list[int]) -> None:
    assert offsets_of(runs_of(offsets)) == offsets


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 100))
def test_shares_are_even_and_leave_nothing_that_someone_wants(
    wants: list[int], available: int
) -> None:
    given_out = even_shares(wants, available)
    assert sum(given_out) == min(available, sum(wants))
    assert all(got <= want for got, want in zip(given_out, wants, strict=True))
    hungry = [got for got, want in zip(given_out, wants, strict=True) if got < want]
    assert max(given_out) - min(hungry, default=max(given_out)) <= 1


# Receipts.


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_receipt_says_what_it_is_of_and_only_here(
    partition: int, offset: int, number: int
) -> None:
    receipts = Receipts(b"s" * 32, b"queue", 1)
    receipt = receipts.make(partition, offset, number)
    assert len(receipt) == RECEIPT_SIZE
    assert receipts.read(receipt) == Delivery(partition, offset, number)
    for other in (
        Receipts(b"t" * 32, b"queue", 1),
        Receipts(b"s" * 32, b"other", 1),
        Receipts(b"s" * 32, b"queue", 2),
    ):
        assert other.read(receipt) is None


def test_every_other_character_makes_another_receipt() -> None:
    receipts = Receipts(b"s" * 32, b"queue", 1)
    receipt = receipts.make(1, 2, 3)
    for place, found in enumerate(receipt):
        changed = "B" if found != "B" else "C"
        assert receipts.read(receipt[:place] + changed + receipt[place + 1 :]) is None


# Deliveries and receipts.


def test_only_the_last_delivery_of_a_job_counts() -> None:
    state = state_of(delivered(0, 1), again(0))
    assert ack(state, [Delivery(0, 0, 1)]).stale == [0]
    assert ack(state, [Delivery(0, 0, 3)]).stale == [0]
    assert ack(state, [Delivery(0, 0, 2), Delivery(0, 0, 2)]).event == JobsAcked([(0, [0])])
    for delivery in (None, Delivery(9, 0, 1), Delivery(0, 1, 1)):
        assert ack(state, [delivery]).stale == [0], "it was never delivered"


def test_a_repeated_ack_is_fine_until_it_is_forgotten_and_never_wrong() -> None:
    state = state_of(delivered(0, 5), again(0, 1, 2), ended_max=2)
    state.apply(JobsAcked([(0, [0, 1, 2, 4])]))
    state.apply(JobsRemoved([(0, [3])]))
    assert not was_acked(state, Delivery(0, 0, 2)), "forgotten: too many ended since"
    assert not was_acked(state, Delivery(0, 0, 1))
    assert not was_acked(state, Delivery(0, 1, 2)), "forgotten too"
    assert was_acked(state, Delivery(0, 2, 2))
    assert not was_acked(state, Delivery(0, 2, 1))
    assert not was_acked(state, Delivery(0, 3, 1)), "it was deleted, not done"
    assert was_acked(state, Delivery(0, 4, 1)), "needs no memory"


def test_what_is_given_back_rests_and_then_counts_for_nobody() -> None:
    state = state_of(delivered(0, 2))
    decided = nack(state, [Delivery(0, 0, 1)], now_ms=100, delay_ms=50)
    assert decided.event == JobsReturned(150, 50, [(0, [0])])
    state.apply(decided.event)
    assert state.kinds[DELAYED] == 1
    assert extend(state, [Delivery(0, 0, 1)], now_ms=100, lease_ms=50).stale == [0]
    state.advance(149, 5)
    assert returned_jobs(state, 9) == []
    state.advance(150, 5)
    assert [(due.partition, due.offset) for due in returned_jobs(state, 9)] == [(0, 0)]


def test_time_changes_nothing_that_is_durable() -> None:
    state = state_of(delivered(0, 3))
    before = snapshot_of(state)
    state.advance(10**6, 5)
    assert state.kinds[EXPIRED] == 3
    assert snapshot_of(state) == before


def test_a_lease_that_was_extended_does_not_run_out_by_its_first_deadline() -> None:
    state = state_of(delivered(0, 1), LeasesExtended(3000, 2000, [(0, [0])]))
    state.advance(2999, 5)
    assert state.kinds[LEASED] == 1
    state.advance(3000, 5)
    assert state.kinds[EXPIRED] == 1


def test_the_limit_dooms_and_saves() -> None:
    state = state_of(delivered(0, 2), again(0))
    state.advance(5000, 2)
    assert [due.offset for due in exhausted_jobs(state, 9)] == [0]
    assert [due.offset for due in returned_jobs(state, 9)] == [1]
    state.limit(1)
    assert [due.offset for due in exhausted_jobs(state, 9)] == [1, 0]
    state.limit(9)
    assert [due.offset for due in returned_jobs(state, 9)] == [1, 0]


def test_deadlines_of_what_is_done_do_not_pile_up() -> None:
    state = state_of()
    for number in range(3 * DEADLINES_SLACK):
        state.apply(delivered(number, 1, due_ms=10**9 + number))
        state.apply(JobsAcked([(0, [number])]))
    assert len(state._deadlines) <= DEADLINES_SLACK + 1
    state.apply(delivered(3 * DEADLINES_SLACK, 1, due_ms=5))
    state.advance(5, 5)
    assert state.kinds[EXPIRED] == 1


def test_another_boot_gives_each_its_full_length() -> None:
    state = state_of(delivered(0, 2), JobsReturned(500, 300, [(0, [1])]))
    state.advance(5000, 5)
    state.apply(NodeBooted("boot-2", 10))
    partition_jobs = state.partitions[0]
    assert [job.due_ms for job in partition_jobs.jobs.values()] == [1010, 310]


def test_what_was_cut_off_is_no_job_and_the_offsets_can_be_given_again() -> None:
    state = state_of(
        delivered(0, 6), again(4, 5), JobsAcked([(0, [0, 4])]), PartitionTruncated(0, 3)
    )
    partition_jobs = state.partitions[0]
    assert (partition_jobs.frontier, sorted(partition_jobs.jobs)) == (3, [1, 2])
    state.apply(delivered(3, 2))
    assert was_acked(state, Delivery(0, 4, 2)) is False
    assert sum(state.kinds) == 4


def test_a_snapshot_is_the_state() -> None:
    state = state_of(
        delivered(0, 9),
        again(0, 1),
        JobsAcked([(0, [0, 5])]),
        JobsReturned(700, 10, [(0, [2])]),
        DeadLettersIntended(b"\1" * 16, [3], group_jobs([(0, 3)]), group_jobs([(0, 4)])),
        ReceiptsInvalidated(77),
        JobsReleased(700, [(0, [8])]),
        BatchDamaged(700, 0, 9, 12),
        ended_max=3,
    )
    twin = restore_state(snapshot_of(state), ended_max=3)
    assert snapshot_of(twin) == snapshot_of(state)
    assert (twin.kinds, twin.next_due_ms) == (state.kinds, 700)
    for each in (state, twin):
        assert [(job.number, job.deliveries) for job in each.partitions[0].jobs.values()] == [
            (2, 2),
            *[(1, 1)] * 5,
            (1, 0),
            (0, 0),
        ]
        each.advance(700, 1)
        assert [due.offset for due in returned_jobs(each, 9)] == [8], "a release counts nothing"
        assert [due.offset for due in exhausted_jobs(each, 9)] == [2, 9], "nor does damage"
    for each in (state, twin):
        each.apply(DeadLettersMoved(group_jobs([(0, 3)]), group_jobs([(0, 4)])))
        each.apply(JobsRemoved([(0, [6, 7])]))
    assert snapshot_of(twin) == snapshot_of(state)
    assert state.partitions[0].forgotten > 0


def test_a_log_without_new_events_can_be_read_by_earlier_releases() -> None:
    known = [delivered(0, 3), JobsAcked([(0, [1])]), JobsReturned(9, 0, [(0, [2])])]
    snapshot = snapshot_of(state_of(*known))
    assert [encode_event(event)[0] for event in (*known, snapshot)] == [1, 1, 1, 1]
    assert len(snapshot.counters) == 4
    released = snapshot_of(state_of(delivered(0, 3), JobsReleased(0, [(0, [1])])))
    damaged = snapshot_of(state_of(BatchDamaged(0, 0, 0, 4)))
    assert [encode_event(event)[0] for event in (released, damaged)] == [2, 2]


def test_events_of_earlier_releases_are_read() -> None:
    """They had neither releases nor damaged batches."""
    stored = ["boot-1", 7, [3, 1, 9, 0], [[0, 5, 0, [2, 3, 0, 1000, 500]]], [0, 1, 2], None]
    snapshot = decode_event(b"\1" + msgspec.msgpack.encode([10, *stored]))
    assert isinstance(snapshot, QueueStateSnapshot)
    state = restore_state(snapshot, ended_max=9)
    job = state.partitions[0].jobs[2]
    assert (job.number, job.deliveries, job.is_damaged, state.damaged) == (3, 3, False, 0)
    intent = decode_event(b"\1" + msgspec.msgpack.encode([6, b"\0" * 16, [1], [[0, [2]]], []]))
    assert intent == DeadLettersIntended(b"\0" * 16, [1], [(0, [2])], [])


def test_a_release_undoes_one_delivery_and_the_number_never_falls() -> None:
    state = state_of(delivered(0, 1), again(0))
    decided = release(state, [Delivery(0, 0, 2), Delivery(0, 0, 1)], now_ms=50)
    assert (decided.event, decided.stale) == (JobsReleased(50, [(0, [0])]), [1])
    assert decided.event is not None
    state.apply(decided.event)
    state.advance(50, 2)
    assert [due.offset for due in returned_jobs(state, 9)] == [0]
    state.apply(again(0))
    job = state.partitions[0].jobs[0]
    assert (job.number, job.deliveries) == (3, 2)
    assert release(state, [Delivery(0, 0, 2)], now_ms=60).stale == [0]
    state.apply(JobsAcked([(0, [0])]))
    assert was_acked(state, Delivery(0, 0, 3))
    assert not was_acked(state, Delivery(0, 0, 2))


def test_a_damaged_batch_is_one_job_that_is_exhausted_whatever_the_limit() -> None:
    state = state_of(delivered(0, 2), BatchDamaged(10, 0, 2, 7))
    assert (state.partitions[0].frontier, state.damaged, sum(state.kinds)) == (7, 1, 3)
    state.advance(10, 1_000_000)
    assert [due.offset for due in exhausted_jobs(state, 9)] == [2]
    state.limit(1_000_000)
    assert [due.offset for due in exhausted_jobs(state, 9)] == [2]
    for impossible in (BatchDamaged(10, 0, 6, 9), BatchDamaged(10, 0, 7, 7)):
        with pytest.raises(CorruptData, match="impossible"):
            state.apply(impossible)
