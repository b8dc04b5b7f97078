"""The state of a transactional id after each event, in each state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.broker.transactions import state_machine
from millstream.broker.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    EPOCH_MAX,
    TransactionMetadata,
    TransactionProducer,
    TransactionState,
)
from millstream.errors import (
    ConcurrentTransaction,
    InvalidProducerMapping,
    InvalidTransactionState,
    MillstreamError,
    ProducerFenced,
)
from millstream.records.topic_partition import TopicPartition

NOW_MS = 1_000
LATER_MS = 2_000
CLOCK_MS = 77
P0 = frozenset({TopicPartition("t", 0)})
P1 = frozenset({TopicPartition("t", 1)})
FRESH = 77


def a_transaction(
    state: TransactionState, *, epoch: int = 5, **fields: object
) -> TransactionMetadata:
    """Return a transaction of producer 7 in the given state and epoch."""
    is_open = state in (
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
    )
    made = TransactionMetadata(
        transactional_id="id",
        producer=TransactionProducer(7, epoch),
        timeout_ms=60_000,
        update_ms=NOW_MS,
        state=state,
        partitions=P0 if is_open else frozenset(),
        start_ms=-1 if state is TransactionState.EMPTY else NOW_MS,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def init(
    transaction: TransactionMetadata | None,
    *,
    expected: TransactionProducer | None = None,
    timeout_ms: int = 60_000,
) -> TransactionMetadata:
    return state_machine.init(
        transaction,
        "id",
        timeout_ms=timeout_ms,
        expected=expected,
        fresh_id=FRESH if state_machine.needs_fresh_id(transaction) else None,
        now_ms=LATER_MS,
    )


def end(
    transaction: TransactionMetadata | None,
    epoch: int,
    *,
    producer_id: int = 7,
    commit: bool,
    bump: bool,
) -> TransactionMetadata:
    return state_machine.end(
        transaction,
        TransactionProducer(producer_id, epoch),
        is_commit=commit,
        is_bumping=bump,
        fresh_id=FRESH if state_machine.needs_fresh_id(transaction) else None,
        now_ms=LATER_MS,
    )


def add(
    transaction: TransactionMetadata | None, epoch: int, *, producer_id: int = 7
) -> TransactionMetadata:
    return state_machine.add(
        transaction,
        TransactionProducer(producer_id, epoch),
        partitions=P1,
        now_ms=LATER_MS,
        clock_ms=CLOCK_MS,
    )


# Initialisation.


def test_a_first_producer_gets_a_fresh_id_and_epoch_zero() -> None:
    made = init(None, timeout_ms=5)
    assert made.producer == TransactionProducer(FRESH, 0)
    assert (made.state, made.timeout_ms, made.update_ms) == (TransactionState.EMPTY, 5, LATER_MS)


def test_who_was_forgotten_gets_a_fresh_id_too() -> None:
    assert init(None, expected=TransactionProducer(7, 3)).producer == TransactionProducer(FRESH, 0)


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
)
def test_a_new_instance_takes_over_with_the_next_epoch(state: TransactionState) -> None:
    made = init(a_transaction(state), timeout_ms=9)
    assert (made.producer, made.state, made.timeout_ms) == (
        TransactionProducer(7, 6),
        TransactionState.EMPTY,
        9,
    )
    assert made.previous is None, "the old instance cannot pass for the new one"


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_a_new_instance_waits_for_the_end_of_the_transaction_before(
    state: TransactionState,
) -> None:
    with pytest.raises(ConcurrentTransaction):
        init(a_transaction(state))


def test_a_new_instance_has_the_open_transaction_aborted_in_an_epoch_of_its_own() -> None:
    aborting = init(a_transaction(TransactionState.ONGOING))
    assert (aborting.state, aborting.producer) == (
        TransactionState.PREPARE_ABORT,
        TransactionProducer(7, 6),
    )
    assert aborting.partitions == P0
    made = init(state_machine.complete(aborting, now_ms=LATER_MS))
    assert (made.state, made.producer) == (TransactionState.EMPTY, TransactionProducer(7, 7))


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
)
def test_a_client_that_goes_on_gets_the_next_epoch_and_the_same_when_it_asks_again(
    state: TransactionState,
) -> None:
    made = init(a_transaction(state), expected=TransactionProducer(7, 5))
    assert (made.producer, made.previous) == (TransactionProducer(7, 6), TransactionProducer(7, 5))
    again = init(made, expected=TransactionProducer(7, 5))
    assert again.producer == TransactionProducer(7, 6)
    assert init(again, expected=TransactionProducer(7, 5)).producer == TransactionProducer(7, 6)
    assert init(again, expected=TransactionProducer(7, 6)).producer == TransactionProducer(7, 7)


def test_a_client_that_goes_on_amid_a_transaction_has_it_aborted_and_keeps_its_place() -> None:
    aborting = init(a_transaction(TransactionState.ONGOING), expected=TransactionProducer(7, 5))
    assert aborting.state is TransactionState.PREPARE_ABORT
    made = init(
        state_machine.complete(aborting, now_ms=LATER_MS), expected=TransactionProducer(7, 5)
    )
    assert (made.state, made.producer) == (TransactionState.EMPTY, TransactionProducer(7, 6))


def test_a_client_whose_end_was_not_answered_may_go_on_with_what_it_had() -> None:
    ended = state_machine.complete(
        end(a_transaction(TransactionState.ONGOING), 5, commit=True, bump=True), now_ms=LATER_MS
    )
    assert init(ended, expected=TransactionProducer(7, 5)).producer == TransactionProducer(7, 6)


@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize(
    "expected", [TransactionProducer(7, 4), TransactionProducer(7, 6), TransactionProducer(8, 5)]
)
def test_a_client_that_was_overtaken_cannot_go_on_and_aborts_nothing(
    state: TransactionState, expected: TransactionProducer
) -> None:
    with pytest.raises(ProducerFenced, match="was replaced by producer 7 with epoch 5"):
        init(a_transaction(state), expected=expected)


def test_the_answer_that_was_lost_counts_only_until_a_transaction_begins() -> None:
    began = add(init(a_transaction(TransactionState.EMPTY), expected=TransactionProducer(7, 5)), 6)
    with pytest.raises(ProducerFenced):
        init(began, expected=TransactionProducer(7, 5))


# Adding partitions.


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
)
def test_the_first_partition_begins_a_transaction(state: TransactionState) -> None:
    made = add(a_transaction(state, previous=TransactionProducer(7, 4)), 5)
    assert (made.state, made.partitions, made.start_ms) == (TransactionState.ONGOING, P1, LATER_MS)
    assert made.previous is None


def test_partitions_and_groups_gather_in_the_open_transaction() -> None:
    made = add(a_transaction(TransactionState.ONGOING), 5)
    assert (made.partitions, made.start_ms) == (P0 | P1, NOW_MS)
    made = state_machine.add(
        made, made.producer, groups=frozenset({"g"}), now_ms=LATER_MS, clock_ms=CLOCK_MS
    )
    assert (made.partitions, made.groups) == (P0 | P1, {"g"})


@pytest.mark.parametrize(
    "state", [TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT]
)
def test_adding_nothing_new_changes_nothing(state: TransactionState) -> None:
    transaction = a_transaction(state)
    same = state_machine.add(
        transaction,
        TransactionProducer(7, 5),
        partitions=transaction.partitions,
        now_ms=LATER_MS,
        clock_ms=CLOCK_MS,
    )
    assert same is transaction


@pytest.mark.parametrize("state", list(TransactionState))
@pytest.mark.parametrize("bump", [False, True])
def test_only_the_present_producer_may_speak(state: TransactionState, bump: bool) -> None:
    transaction = a_transaction(state)
    for epoch in (4, 6, -1, EPOCH_MAX):
        with pytest.raises(ProducerFenced):
            add(transaction, epoch)
        with pytest.raises(ProducerFenced):
            end(transaction, epoch, commit=False, bump=bump)
    with pytest.raises(InvalidProducerMapping, match="belongs to producer 7, got 8"):
        add(transaction, 5, producer_id=8)
    with pytest.raises(InvalidProducerMapping):
        end(transaction, 5, producer_id=8, commit=True, bump=bump)


@pytest.mark.parametrize("bump", [False, True])
def test_who_is_not_known_may_do_nothing(bump: bool) -> None:
    with pytest.raises(InvalidProducerMapping, match="is unknown"):
        add(None, 5)
    with pytest.raises(InvalidProducerMapping, match="is unknown"):
        end(None, 5, commit=False, bump=bump)


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_nothing_is_added_while_the_transaction_before_is_ending(state: TransactionState) -> None:
    with pytest.raises(ConcurrentTransaction):
        add(a_transaction(state), 5)


# Ends by clients that keep their epoch.

OK = None
INVALID = InvalidTransactionState
BUSY = ConcurrentTransaction

KEEPING = {
    # state: (result of an abort, result of a commit)
    TransactionState.EMPTY: (INVALID, INVALID),
    TransactionState.PREPARE_COMMIT: (INVALID, BUSY),
    TransactionState.PREPARE_ABORT: (BUSY, INVALID),
    TransactionState.COMPLETE_COMMIT: (INVALID, OK),
    TransactionState.COMPLETE_ABORT: (OK, INVALID),
}


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("state", KEEPING)
def test_an_end_without_an_open_transaction_only_repeats(
    state: TransactionState, commit: bool
) -> None:
    transaction = a_transaction(state)
    if error := KEEPING[state][commit]:
        with pytest.raises(error):
            end(transaction, 5, commit=commit, bump=False)
    else:
        assert end(transaction, 5, commit=commit, bump=False) is transaction


@pytest.mark.parametrize("commit", [False, True])
def test_an_end_decides_and_the_epoch_stays(commit: bool) -> None:
    decided = end(a_transaction(TransactionState.ONGOING), 5, commit=commit, bump=False)
    assert decided.state is (
        TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    )
    assert (decided.producer, decided.partitions) == (TransactionProducer(7, 5), P0)
    ended = state_machine.complete(decided, now_ms=LATER_MS)
    assert ended.state is (
        TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    )
    assert (ended.producer, ended.partitions) == (TransactionProducer(7, 5), frozenset())


# Ends by clients that get a new epoch each time.

FENCED = ProducerFenced
BUMPED = "bumped"

BUMPING = {
    # state: (abort, commit), each as (result of a retry, result for the current producer)
    TransactionState.EMPTY: ((FENCED, BUMPED), (FENCED, INVALID)),
    TransactionState.PREPARE_COMMIT: ((INVALID, BUSY), (BUSY, BUSY)),
    TransactionState.PREPARE_ABORT: ((BUSY, BUSY), (INVALID, BUSY)),
    TransactionState.COMPLETE_COMMIT: ((INVALID, BUMPED), (OK, INVALID)),
    TransactionState.COMPLETE_ABORT: ((OK, BUMPED), (INVALID, INVALID)),
}


@pytest.mark.parametrize("is_present", [False, True], ids=["again", "present"])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("state", BUMPING)
def test_an_end_sent_again_is_told_from_the_end_of_the_next(
    state: TransactionState, commit: bool, is_present: bool
) -> None:
    transaction = a_transaction(state, previous=TransactionProducer(7, 4))
    expected = BUMPING[state][commit][is_present]
    epoch = 5 if is_present else 4
    if expected is OK:
        assert end(transaction, epoch, commit=commit, bump=True) is transaction
    elif expected is BUMPED:
        made = end(transaction, epoch, commit=commit, bump=True)
        assert (made.state, made.producer) == (
            TransactionState.COMPLETE_ABORT,
            TransactionProducer(7, 6),
        )
        assert made.previous == TransactionProducer(7, 5)
        assert end(made, epoch, commit=False, bump=True) is made
    else:
        assert isinstance(expected, type)
        with pytest.raises(expected):
            end(transaction, epoch, commit=commit, bump=True)


@pytest.mark.parametrize("commit", [False, True])
def test_a_bumping_end_marks_and_answers_with_the_next_epoch(commit: bool) -> None:
    decided = end(a_transaction(TransactionState.ONGOING), 5, commit=commit, bump=True)
    assert decided.is_ending
    assert decided.is_commit is commit
    assert decided.producer == decided.successor == TransactionProducer(7, 6)
    assert state_machine.complete(decided, now_ms=LATER_MS).producer == TransactionProducer(7, 6)


def test_who_was_answered_early_is_told_to_wait_and_not_that_it_is_fenced() -> None:
    decided = end(a_transaction(TransactionState.ONGOING), 5, commit=True, bump=True)
    with pytest.raises(ConcurrentTransaction):
        add(decided, 6)
    with pytest.raises(ProducerFenced):
        add(decided, 5)


def test_a_late_end_cannot_touch_the_next_transaction() -> None:
    ended = state_machine.complete(
        end(a_transaction(TransactionState.ONGOING), 5, commit=True, bump=True), now_ms=LATER_MS
    )
    next_one = add(ended, 6)
    for commit in (False, True):
        with pytest.raises(ProducerFenced):
            end(next_one, 5, commit=commit, bump=True)


# Timeouts.


def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced() -> None:
    aborting = state_machine.time_out(a_transaction(TransactionState.ONGOING), now_ms=LATER_MS)
    assert (aborting.state, aborting.producer) == (
        TransactionState.PREPARE_ABORT,
        TransactionProducer(7, 6),
    )
    ended = state_machine.complete(aborting, now_ms=LATER_MS)
    for transaction in (aborting, ended):
        with pytest.raises(ProducerFenced):
            add(transaction, 5)
        with pytest.raises(InvalidTransactionState):
            end(transaction, 5, commit=True, bump=True)
        for commit in (False, True):
            with pytest.raises(ProducerFenced):
                end(transaction, 5, commit=commit, bump=False)
    with pytest.raises(ConcurrentTransaction):
        end(aborting, 5, commit=False, bump=True)


def test_after_a_timeout_the_same_producer_may_go_on() -> None:
    aborting = state_machine.time_out(a_transaction(TransactionState.ONGOING), now_ms=LATER_MS)
    ended = state_machine.complete(aborting, now_ms=LATER_MS)
    assert end(ended, 5, commit=False, bump=True).successor == TransactionProducer(7, 6)
    assert init(ended, expected=TransactionProducer(7, 5)).producer == TransactionProducer(7, 6)
    next_one = add(ended, 6)
    with pytest.raises(ProducerFenced):
        end(next_one, 5, commit=False, bump=True)


def test_after_a_timeout_another_producer_fences_the_first() -> None:
    aborting = state_machine.time_out(a_transaction(TransactionState.ONGOING), now_ms=LATER_MS)
    taken = init(state_machine.complete(aborting, now_ms=LATER_MS))
    assert taken.producer == TransactionProducer(7, 7)
    with pytest.raises(ProducerFenced):
        end(taken, 5, commit=False, bump=True)
    with pytest.raises(ProducerFenced):
        init(taken, expected=TransactionProducer(7, 5))


# Epoch exhaustion.


def test_the_last_epoch_of_a_client_ends_with_a_fresh_id() -> None:
    decided = end(
        a_transaction(TransactionState.ONGOING, epoch=CLIENT_EPOCH_MAX),
        CLIENT_EPOCH_MAX,
        commit=True,
        bump=True,
    )
    assert decided.producer == TransactionProducer(7, EPOCH_MAX), (
        "its markers still speak for the old id"
    )
    assert decided.successor == TransactionProducer(FRESH, 0)
    with pytest.raises(ConcurrentTransaction):
        add(decided, 0, producer_id=FRESH)
    ended = state_machine.complete(decided, now_ms=LATER_MS)
    assert (ended.producer, ended.next_producer_id) == (TransactionProducer(FRESH, 0), None)
    assert end(ended, CLIENT_EPOCH_MAX, commit=True, bump=True) is ended
    assert add(ended, 0, producer_id=FRESH).is_ongoing


@pytest.mark.parametrize("epoch", [CLIENT_EPOCH_MAX, EPOCH_MAX])
@pytest.mark.parametrize("expected", [False, True])
def test_a_new_instance_after_the_last_epoch_gets_a_fresh_id(epoch: int, expected: bool) -> None:
    present = TransactionProducer(7, epoch)
    made = init(
        a_transaction(TransactionState.COMPLETE_ABORT, epoch=epoch),
        expected=present if expected else None,
    )
    assert made.producer == TransactionProducer(FRESH, 0)
    if expected:
        assert init(made, expected=present).producer == TransactionProducer(FRESH, 0)


def test_fencing_always_has_an_epoch_left_which_no_client_can_use() -> None:
    ongoing = a_transaction(TransactionState.ONGOING, epoch=CLIENT_EPOCH_MAX)
    ended = state_machine.complete(
        state_machine.time_out(ongoing, now_ms=LATER_MS), now_ms=LATER_MS
    )
    assert ended.producer == TransactionProducer(7, EPOCH_MAX)
    with pytest.raises(ProducerFenced):
        add(ended, EPOCH_MAX)
    for epoch in (CLIENT_EPOCH_MAX, EPOCH_MAX):
        with pytest.raises(ProducerFenced):
            end(ended, epoch, commit=False, bump=True)
    assert init(
        ended, expected=TransactionProducer(7, CLIENT_EPOCH_MAX)
    ).producer == TransactionProducer(FRESH, 0)


def test_a_client_that_goes_on_amid_its_last_epoch_gets_a_fresh_id() -> None:
    present = TransactionProducer(7, CLIENT_EPOCH_MAX)
    aborting = init(
        a_transaction(TransactionState.ONGOING, epoch=CLIENT_EPOCH_MAX), expected=present
    )
    made = init(state_machine.complete(aborting, now_ms=LATER_MS), expected=present)
    assert made.producer == TransactionProducer(FRESH, 0)


@pytest.mark.parametrize("state", list(TransactionState))
def test_every_refusal_leaves_the_value_as_it_was(state: TransactionState) -> None:
    transaction = a_transaction(state)
    before = replace(transaction)
    for attempt in (
        lambda: add(transaction, 4),
        lambda: end(transaction, 4, commit=True, bump=True),
        lambda: init(transaction, expected=TransactionProducer(7, 4)),
    ):
        with pytest.raises(MillstreamError):
            attempt()
    assert transaction == before


# Publishing.


def publish(
    transaction: TransactionMetadata | None, epoch: int, *, producer_id: int = 7
) -> TransactionMetadata:
    return state_machine.publish(
        transaction, TransactionProducer(producer_id, epoch), now_ms=LATER_MS
    )


def test_a_publication_commits_in_an_epoch_of_its_own_and_leaves_nobody_to_go_on() -> None:
    decided = publish(a_transaction(TransactionState.ONGOING), 5)
    assert (decided.state, decided.producer) == (
        TransactionState.PREPARE_COMMIT,
        TransactionProducer(7, 6),
    )
    assert (decided.partitions, decided.previous, decided.update_ms) == (P0, None, LATER_MS)
    done = state_machine.complete(decided, now_ms=LATER_MS)
    for bump in (False, True):
        for commit in (False, True):
            with pytest.raises(ProducerFenced):
                end(done, 5, commit=commit, bump=bump)
    with pytest.raises(ProducerFenced):
        init(done, expected=TransactionProducer(7, 5))
    with pytest.raises(ProducerFenced):
        add(done, 5)
    assert init(done).producer == TransactionProducer(7, 7)


@pytest.mark.parametrize(
    "state",
    [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT],
)
def test_only_what_is_open_is_published(state: TransactionState) -> None:
    with pytest.raises(InvalidTransactionState, match=f"cannot commit in state {state.value}"):
        publish(a_transaction(state), 5)


def test_only_what_the_present_producer_has_open_is_published() -> None:
    for epoch in (4, 6):
        with pytest.raises(ProducerFenced):
            publish(a_transaction(TransactionState.ONGOING), epoch)
    with pytest.raises(InvalidProducerMapping):
        publish(a_transaction(TransactionState.ONGOING), 5, producer_id=8)
    with pytest.raises(InvalidProducerMapping):
        publish(None, 5)
    for state in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
        with pytest.raises(ConcurrentTransaction):
            publish(a_transaction(state), 5)
    with pytest.raises(ProducerFenced):
        publish(state_machine.time_out(a_transaction(TransactionState.ONGOING), now_ms=LATER_MS), 5)


def test_what_is_abandoned_is_aborted_and_nobody_goes_on() -> None:
    aborting = state_machine.abandon(a_transaction(TransactionState.ONGOING), now_ms=LATER_MS)
    assert (aborting.state, aborting.producer) == (
        TransactionState.PREPARE_ABORT,
        TransactionProducer(7, 6),
    )
    assert (aborting.partitions, aborting.previous) == (P0, None)


def test_who_has_not_begun_is_fenced_when_abandoned() -> None:
    fenced = state_machine.abandon(a_transaction(TransactionState.EMPTY), now_ms=LATER_MS)
    assert (fenced.state, fenced.producer) == (
        TransactionState.COMPLETE_ABORT,
        TransactionProducer(7, 6),
    )
    with pytest.raises(ProducerFenced):
        add(fenced, 5)


@pytest.mark.parametrize(
    "state",
    [
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    ],
)
def test_what_has_ended_is_not_abandoned_again(state: TransactionState) -> None:
    transaction = a_transaction(state)
    assert state_machine.abandon(transaction, now_ms=LATER_MS) is transaction


@pytest.mark.parametrize("state", [TransactionState.EMPTY, TransactionState.ONGOING])
def test_publishing_and_abandoning_have_an_epoch_left_after_the_last_of_a_client(
    state: TransactionState,
) -> None:
    last = a_transaction(state, epoch=CLIENT_EPOCH_MAX)
    ended = [state_machine.abandon(last, now_ms=LATER_MS)]
    if state is TransactionState.ONGOING:
        ended.append(publish(last, CLIENT_EPOCH_MAX))
    for found in ended:
        assert found.producer == TransactionProducer(7, EPOCH_MAX)
        done = state_machine.complete(found, now_ms=LATER_MS) if found.is_ending else found
        assert init(done).producer == TransactionProducer(FRESH, 0)
