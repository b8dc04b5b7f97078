"""The transaction coordinator: order of durable writes, concurrent requests, and timeouts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.broker.transactions import coordinator, transaction_store
from millstream.broker.transactions.transaction import (
    CLIENT_EPOCH_MAX,
    TransactionProducer,
    TransactionState,
)
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    ConcurrentTransaction,
    CorruptData,
    DiskFull,
    InvalidGroup,
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    LogOffline,
    ProducerFenced,
    Stopping,
    TransactionAborted,
    UnknownTopic,
    UnknownTransaction,
)
from tests.in_loop import in_loop

from .transaction_fakes import Data, Mark, Node, turns

MINUTE_MS = 60_000


async def a_node(**config: int) -> Node:
    node = Node(BrokerConfig(**config))
    await node.transactions.start()
    return node


async def a_producer(
    node: Node, transactional_id: str = "id", *, timeout_ms: int = MINUTE_MS
) -> TransactionProducer:
    return await node.transactions.init_producer(transactional_id, timeout_ms)


async def begun(
    node: Node, *, groups: tuple[str, ...] = (), timeout_ms: int = MINUTE_MS
) -> TransactionProducer:
    """Return a producer with an open transaction over two partitions, one of them written to."""
    producer = await a_producer(node, timeout_ms=timeout_ms)
    await node.transactions.add_partitions("id", *producer, [("t", 0), ("u", 0)])
    node.topics.partition("t", 0).append(producer)
    for group_id in groups:
        await node.transactions.add_offsets("id", *producer, group_id)
    return producer


async def end(
    node: Node, producer: TransactionProducer, *, commit: bool = True, bump: bool = True
) -> TransactionProducer:
    return await node.transactions.end("id", *producer, is_commit=commit, is_bumping=bump)


def state_of(node: Node, transactional_id: str = "id") -> TransactionState:
    return node.transactions.describe(transactional_id).state


def begin(work: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


# Producers.


@in_loop
async def test_a_producer_without_a_transactional_id_is_always_new() -> None:
    node = await a_node()
    made = [await node.transactions.init_producer(None, 0) for _ in range(3)]
    assert made == [TransactionProducer(0, 0), TransactionProducer(1, 0), TransactionProducer(2, 0)]
    assert node.state_log.puts == 0


@in_loop
async def test_a_producer_keeps_its_id_over_instances_and_starts() -> None:
    node = await a_node()
    assert await a_producer(node) == TransactionProducer(0, 0)
    assert await a_producer(node) == TransactionProducer(0, 1)
    await node.restart()
    assert await a_producer(node) == TransactionProducer(0, 2)
    assert await a_producer(node, "other") != TransactionProducer(0, 3)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
@in_loop
async def test_a_timeout_outside_the_limits_is_refused(timeout_ms: int) -> None:
    node = await a_node()
    with pytest.raises(InvalidTransactionTimeout, match=f"1 and 900000 ms, got {timeout_ms}"):
        await node.transactions.init_producer("id", timeout_ms)
    assert node.transactions.all() == []


@in_loop
async def test_an_empty_transactional_id_is_refused() -> None:
    node = await a_node()
    for attempt in (
        lambda: node.transactions.init_producer("", 1),
        lambda: node.transactions.add_partitions("", 0, 0, [("t", 0)]),
        lambda: node.transactions.add_offsets("", 0, 0, "g"),
        lambda: node.transactions.end("", 0, 0, is_commit=True, is_bumping=True),
        lambda: node.transactions.missing_partitions("", 0, 0, []),
    ):
        with pytest.raises(InvalidRequest):
            await attempt()
    with pytest.raises(InvalidRequest):
        node.transactions.describe("")


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
@in_loop
async def test_a_producer_id_without_an_epoch_is_refused(producer_id: int, epoch: int) -> None:
    node = await a_node()
    with pytest.raises(InvalidRequest, match="must be given together"):
        await node.transactions.init_producer("id", 1, producer_id, epoch)


@in_loop
async def test_a_transactional_id_that_is_not_known_is_refused_and_not_remembered() -> None:
    node = await a_node()
    for attempt in (
        lambda: node.transactions.add_partitions("id", 0, 0, [("t", 0)]),
        lambda: node.transactions.end("id", 0, 0, is_commit=True, is_bumping=False),
        lambda: node.transactions.ensure_partitions("id", 0, 0, [("t", 0)], may_add=True),
        lambda: node.transactions.ensure_partitions(None, 0, 0, [("t", 0)], may_add=True),
    ):
        with pytest.raises(InvalidProducerMapping):
            await attempt()
    with pytest.raises(UnknownTransaction):
        node.transactions.describe("id")
    assert node.transactions._store.slots == {}


@in_loop
async def test_a_producer_that_could_not_be_stored_leaves_nothing_behind() -> None:
    node = await a_node()
    node.state_log.error = DiskFull("no room")
    with pytest.raises(DiskFull):
        await a_producer(node)
    assert node.transactions._store.slots == {}
    node.state_log.error = None
    assert await a_producer(node) == TransactionProducer(1, 0)


# Order of durable writes.


@in_loop
async def test_nothing_takes_effect_before_it_is_durable() -> None:
    node = await a_node()
    node.state_log.is_held = True
    starting = begin(a_producer(node))
    await turns()
    assert not starting.done()
    assert node.transactions.all() == []
    node.state_log.let_go()
    producer = await starting

    adding = begin(node.transactions.add_partitions("id", *producer, [("t", 0)]))
    await turns()
    assert not node.transactions.is_ongoing(*producer, "t", 0)
    assert not adding.done()
    node.state_log.let_go()
    await adding
    assert node.transactions.is_ongoing(*producer, "t", 0)

    ending = begin(end(node, producer))
    await turns()
    assert node.journal() == [], "no marker before the decision is durable"
    node.state_log.let_go()
    assert await ending == TransactionProducer(0, 1)
    assert node.journal() == [Mark(TransactionProducer(0, 1), is_commit=True)]


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("bump", [False, True])
@in_loop
async def test_an_end_reaches_all_partitions_and_groups_before_it_is_answered(
    commit: bool, bump: bool
) -> None:
    node = await a_node()
    producer = await begun(node, groups=("g", "h"))
    node.groups.stage(producer, "g", tag=1)
    answer = await end(node, producer, commit=commit, bump=bump)
    assert answer == TransactionProducer(0, 1 if bump else 0)
    mark = Mark(answer, is_commit=commit)
    assert node.journal() == [Data(producer, 0), mark]
    assert node.journal("u", 0) == [mark]
    assert node.journal("t", 1) == []
    assert node.groups.finished == [(answer, frozenset({"g", "h"}), commit)]
    assert node.groups.ended == [(1, commit)]
    assert state_of(node) is (
        TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    )
    assert not node.transactions.is_ongoing(*answer, "t", 0)


@in_loop
async def test_transactions_follow_each_other_with_a_new_epoch_each() -> None:
    node = await a_node()
    producer = await a_producer(node)
    for number in range(3):
        assert producer == TransactionProducer(0, number)
        await node.transactions.ensure_partitions("id", *producer, [("t", 0)], may_add=True)
        producer = await end(node, producer, commit=number % 2 == 0)
    assert [mark.is_commit for mark in node.topics.partition("t", 0).marks()] == [True, False, True]


@in_loop
async def test_an_end_sent_again_gets_the_same_answer_and_ends_nothing_twice() -> None:
    node = await a_node()
    producer = await begun(node)
    first = await end(node, producer)
    assert await end(node, producer) == first
    with pytest.raises(InvalidTransactionState):
        await end(node, producer, commit=False)
    await node.restart()
    assert await end(node, producer) == first
    assert len(node.topics.partition("t", 0).marks()) == 1


@in_loop
async def test_the_last_epoch_is_followed_by_a_fresh_producer_id() -> None:
    node = await a_node()
    producer = await begun(node)
    stored = node.state_log.entries[b"id"]
    node.state_log.entries[b"id"] = stored.replace(b"[0,0]", b"[0,%d]" % CLIENT_EPOCH_MAX)
    await node.restart()
    last = TransactionProducer(0, CLIENT_EPOCH_MAX)
    fresh = await end(node, last)
    assert fresh.id > producer.id
    assert fresh.epoch == 0
    assert node.topics.partition("t", 0).marks() == [
        Mark(TransactionProducer(0, 2**15 - 1), is_commit=True)
    ]
    assert await end(node, last) == fresh
    await node.transactions.add_partitions("id", *fresh, [("t", 0)])
    assert node.transactions.is_ongoing(*fresh, "t", 0)
    assert not node.transactions.is_ongoing(*last, "t", 0)


# Crashes.


@pytest.mark.parametrize("commit", [False, True])
@in_loop
async def test_a_decision_that_is_durable_is_carried_out_after_a_crash(commit: bool) -> None:
    node = await a_node()
    producer = await begun(node, groups=("g",))
    node.groups.stage(producer, "g", tag=1)
    for partition in node.topics.partitions.values():
        partition.error = LogOffline("broken")
    node.groups.error = LogOffline("broken")
    ending = begin(end(node, producer, commit=commit))
    await turns()
    assert not ending.done()
    for partition in node.topics.partitions.values():
        partition.error = None
    node.groups.error = None
    await node.restart()
    assert ending.cancelled()
    assert node.journal()[-1] == Mark(TransactionProducer(0, 1), is_commit=commit)
    assert node.groups.ended == [(1, commit)]
    assert await end(node, producer, commit=commit) == TransactionProducer(0, 1)


@in_loop
async def test_a_decision_that_was_not_durable_never_was() -> None:
    node = await a_node()
    producer = await begun(node)
    node.state_log.is_held = True
    begin(end(node, producer))
    await turns()
    await node.restart(survivors=0)
    assert state_of(node) is TransactionState.ONGOING
    assert await end(node, producer, commit=False) == TransactionProducer(0, 1)
    assert node.topics.partition("t", 0).marks() == [
        Mark(TransactionProducer(0, 1), is_commit=False)
    ]


@in_loop
async def test_nobody_waits_for_complete_to_be_stored_and_a_crash_before_harms_nothing() -> None:
    node = await a_node()
    producer = await begun(node)
    node.state_log.is_held = True
    ending = begin(end(node, producer))
    await turns()
    node.state_log.let_go()
    answer = await ending
    assert node.state_log.waiting == 1
    await node.restart(survivors=0)
    mark = Mark(answer, is_commit=True)
    assert node.journal() == [Data(producer, 0), mark, mark]
    assert state_of(node) is TransactionState.COMPLETE_COMMIT


@in_loop
async def test_the_next_transaction_lets_records_in_only_behind_complete() -> None:
    """Otherwise a restart that finds the decision would also end the next transaction."""
    node = await a_node()
    producer = await begun(node)
    node.state_log.is_held = True
    ending = begin(end(node, producer))
    await turns()
    node.state_log.let_go()
    producer = await ending
    joining = begin(node.transactions.ensure_partitions("id", *producer, [("t", 0)], may_add=True))
    await turns()
    node.state_log.let_go(1)
    await turns()
    assert not joining.done()
    assert not node.transactions.is_ongoing(*producer, "t", 0)
    node.state_log.let_go()
    await joining
    await node.restart()
    assert state_of(node) is TransactionState.ONGOING


@in_loop
async def test_damage_in_the_state_is_not_passed_over() -> None:
    node = await a_node()
    node.state_log.entries[b"id"] = b"{}"
    with pytest.raises(CorruptData):
        await node.restart()


# Slow and failing markers.


@in_loop
async def test_a_partition_that_fails_is_tried_again_until_it_does_not() -> None:
    node = await a_node()
    producer = await begun(node)
    partition = node.topics.partition("u", 0)
    partition.error = DiskFull("no room")
    ending = begin(end(node, producer))
    await turns()
    assert node.journal()[-1] == Mark(TransactionProducer(0, 1), is_commit=True), (
        "others do not wait for it"
    )
    assert node.transactions.describe("id").partitions == {("u", 0)}
    assert not ending.done()
    await node.pass_time(60)
    assert partition.attempts < 20, "it is not asked all the time"
    partition.error = None
    await node.pass_time(10)
    assert partition.marks() == [Mark(TransactionProducer(0, 1), is_commit=True)]
    assert state_of(node) is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [RuntimeError("a bug"), asyncio.CancelledError()])
@in_loop
async def test_markers_are_written_again_whatever_went_wrong(error: BaseException) -> None:
    node = await a_node()
    producer = await begun(node)
    await node.transactions.add_offsets("id", *producer, "g")
    partition = node.topics.partition("u", 0)
    partition.error = node.groups.error = error
    ending = begin(end(node, producer))
    await turns()
    assert not ending.done(), "nobody is told that it has ended"
    assert state_of(node) is TransactionState.PREPARE_COMMIT
    partition.error = node.groups.error = None
    await node.pass_time(10)
    assert ending.done()
    assert partition.marks() == [Mark(TransactionProducer(0, 1), is_commit=True)]
    assert node.groups.finished == [(TransactionProducer(0, 1), frozenset({"g"}), True)]
    assert state_of(node) is TransactionState.COMPLETE_COMMIT


@in_loop
async def test_an_end_that_takes_long_is_answered_and_the_next_request_is_told_to_wait() -> None:
    node = await a_node()
    producer = await begun(node)
    node.topics.partition("t", 0).held = asyncio.Event()
    ending = begin(end(node, producer))
    await node.pass_time(transaction_store.MARKERS_WAIT_SECONDS)
    answer = await ending
    assert answer == TransactionProducer(0, 1)
    for attempt in (
        lambda: node.transactions.add_partitions("id", *answer, [("t", 0)]),
        lambda: node.transactions.add_offsets("id", *answer, "g"),
        lambda: node.transactions.init_producer("id", MINUTE_MS),
        lambda: end(node, producer),
        lambda: end(node, answer, commit=False),
    ):
        with pytest.raises(ConcurrentTransaction):
            await attempt()
    with pytest.raises(ProducerFenced):
        await node.transactions.add_partitions("id", *producer, [("t", 0)])
    node.topics.partition("t", 0).held.set()
    await turns()
    await node.transactions.add_partitions("id", *answer, [("t", 0)])


@in_loop
async def test_requests_wait_for_an_end_that_is_quick() -> None:
    node = await a_node()
    producer = await begun(node)
    held = node.topics.partition("t", 0).held = asyncio.Event()
    ending = begin(end(node, producer))
    await turns()
    again = begin(end(node, producer))
    adding = begin(node.transactions.add_partitions("id", 0, 1, [("t", 1)]))
    starting = begin(a_producer(node))
    await turns()
    assert not any(task.done() for task in (ending, again, adding, starting))
    held.set()
    assert await ending == await again == TransactionProducer(0, 1)
    await adding
    assert await starting == TransactionProducer(0, 3), (
        "one to abort what was begun, one to take over"
    )


@in_loop
async def test_a_topic_that_was_deleted_meanwhile_counts_as_done() -> None:
    node = await a_node()
    producer = await begun(node)
    del node.topics.partitions["u", 0]
    assert await end(node, producer) == TransactionProducer(0, 1)


@in_loop
async def test_a_partition_where_a_newer_epoch_wrote_has_nothing_to_end() -> None:
    node = await a_node()
    producer = await begun(node)
    node.topics.partition("u", 0).error = InvalidProducerEpoch("newest is 9")
    assert await end(node, producer) == TransactionProducer(0, 1)


@in_loop
async def test_groups_that_fail_are_tried_again() -> None:
    node = await a_node()
    producer = await begun(node, groups=("g",))
    node.groups.error = LogOffline("broken")
    ending = begin(end(node, producer))
    await turns()
    assert not ending.done()
    node.groups.error = None
    await node.pass_time(1)
    await ending
    assert node.groups.finished == [(TransactionProducer(0, 1), frozenset({"g"}), True)]


# Failed writes to the state log.


@in_loop
async def test_a_full_disk_refuses_and_the_same_request_succeeds_later() -> None:
    node = await a_node()
    producer = await begun(node)
    node.state_log.error = DiskFull("no room")
    with pytest.raises(DiskFull):
        await end(node, producer)
    assert node.transactions.is_ongoing(*producer, "t", 0)
    with pytest.raises(DiskFull):
        await node.transactions.add_partitions("id", *producer, [("t", 1)])
    node.state_log.error = None
    assert await end(node, producer) == TransactionProducer(0, 1)


@in_loop
async def test_what_may_or_may_not_be_stored_stops_its_id_until_the_next_start() -> None:
    node = await a_node()
    producer = await begun(node)
    node.state_log.is_held = True
    ending = begin(end(node, producer))
    await turns()
    survivor = node.state_log.crash(survivors=1)
    node.state_log.error = LogOffline("sync failed")
    node.state_log.let_go()
    with pytest.raises(LogOffline):
        await ending
    assert not node.transactions.is_ongoing(*producer, "t", 0)
    node.state_log.error = None
    with pytest.raises(LogOffline, match="until the node restarts"):
        await end(node, producer, commit=False)
    node.state_log = survivor
    await node.restart()
    assert await end(node, producer) == TransactionProducer(0, 1)


@in_loop
async def test_work_goes_on_when_its_client_goes_away() -> None:
    node = await a_node()
    producer = await begun(node)
    node.state_log.is_held = True
    ending = begin(end(node, producer))
    await turns()
    ending.cancel()
    await turns()
    node.state_log.is_held = False
    node.state_log.let_go()
    await turns()
    assert state_of(node) is TransactionState.COMPLETE_COMMIT
    assert await end(node, producer) == TransactionProducer(0, 1)


# New instances.


@in_loop
async def test_a_new_instance_aborts_what_the_old_one_left_and_fences_it() -> None:
    node = await a_node()
    old = await begun(node)
    new = await a_producer(node)
    assert new == TransactionProducer(0, 2)
    assert node.journal()[-1] == Mark(TransactionProducer(0, 1), is_commit=False)
    assert not node.transactions.is_ongoing(*old, "t", 0)
    for attempt in (
        lambda: node.transactions.add_partitions("id", *old, [("t", 0)]),
        lambda: node.transactions.add_offsets("id", *old, "g"),
        lambda: end(node, old),
        lambda: end(node, old, commit=False, bump=False),
        lambda: node.transactions.init_producer("id", MINUTE_MS, *old),
        lambda: stage(node, old),
    ):
        with pytest.raises(ProducerFenced):
            await attempt()
    for may_add in (False, True):
        with pytest.raises(InvalidProducerEpoch):
            await node.transactions.ensure_partitions("id", *old, [("t", 0)], may_add=may_add)


@in_loop
async def test_a_new_instance_that_cannot_wait_any_longer_is_told_to_come_again() -> None:
    node = await a_node()
    await begun(node)
    held = node.topics.partition("t", 0).held = asyncio.Event()
    starting = begin(a_producer(node))
    await node.pass_time(transaction_store.MARKERS_WAIT_SECONDS)
    with pytest.raises(ConcurrentTransaction):
        await starting
    held.set()
    await turns()
    assert await a_producer(node) == TransactionProducer(0, 2)


@in_loop
async def test_instances_that_start_at_once_get_different_epochs() -> None:
    node = await a_node()
    made = await asyncio.gather(*(a_producer(node) for _ in range(5)))
    assert sorted(made) == [TransactionProducer(0, epoch) for epoch in range(5)]


# Timeouts.


@pytest.mark.parametrize("restarts", [0, 1, 3])
@in_loop
async def test_a_transaction_that_is_open_for_too_long_is_aborted_also_after_restarts(
    restarts: int,
) -> None:
    node = await a_node()
    producer = await begun(node, timeout_ms=10 * MINUTE_MS)
    for _ in range(restarts):
        await node.pass_time(100)
        await node.restart()
    await node.pass_time(590 - 100 * restarts)
    assert state_of(node) is TransactionState.ONGOING
    await node.pass_time(11)
    assert state_of(node) is TransactionState.COMPLETE_ABORT
    assert node.journal()[-1] == Mark(TransactionProducer(0, 1), is_commit=False)
    with pytest.raises(InvalidTransactionState):
        await end(node, producer)
    assert await end(node, producer, commit=False) == TransactionProducer(0, 1)


@in_loop
async def test_after_a_restart_there_is_time_to_end_a_transaction_that_has_none_left() -> None:
    node = await a_node()
    await begun(node, timeout_ms=10 * MINUTE_MS)
    await node.pass_time(599)
    await node.restart()
    await node.pass_time(29)
    assert state_of(node) is TransactionState.ONGOING
    await node.pass_time(2)
    assert state_of(node) is TransactionState.COMPLETE_ABORT


@in_loop
async def test_a_renewed_transaction_starts_its_timeout_again_up_to_its_longest_duration() -> None:
    node = await a_node()
    await begun(node)
    for _ in range(5):
        await node.pass_time(50)
        assert node.transactions.renew("i", 300_000) == 1
        assert node.transactions.renew("other", 300_000) == 0
    assert state_of(node) is TransactionState.ONGOING
    await node.pass_time(49)
    assert node.transactions.renew("i", 300_000) == 1
    await node.pass_time(2)
    assert state_of(node) is TransactionState.COMPLETE_ABORT, "300 s are over"
    assert node.transactions.renew("i", 300_000) == 0


@in_loop
async def test_a_renewed_transaction_that_nobody_renews_any_more_is_aborted() -> None:
    node = await a_node()
    await begun(node)
    await node.pass_time(50)
    node.transactions.renew("id", 600_000)
    await node.pass_time(59)
    assert state_of(node) is TransactionState.ONGOING
    await node.pass_time(2)
    assert state_of(node) is TransactionState.COMPLETE_ABORT


@in_loop
async def test_a_renewed_transaction_survives_a_restart_if_it_is_renewed_again() -> None:
    node = await a_node()
    producer = await begun(node)
    for _ in range(4):
        await node.pass_time(25)
        node.transactions.renew("id", 600_000)
        await node.restart()
    await node.pass_time(25)
    assert await end(node, producer) == TransactionProducer(0, 1)


@pytest.mark.parametrize("duration_ms", [0, -1, 900_001])
@in_loop
async def test_a_renewal_beyond_the_limits_is_refused(duration_ms: int) -> None:
    node = await a_node()
    with pytest.raises(InvalidTransactionTimeout, match=f"1 and 900000 ms, got {duration_ms}"):
        node.transactions.renew("id", duration_ms)
    with pytest.raises(InvalidRequest):
        node.transactions.renew("", 1000)


@in_loop
async def test_an_operator_aborts_an_open_transaction_and_its_producer_may_continue() -> None:
    node = await a_node()
    producer = await begun(node)
    aborted = await node.transactions.abort("id")
    assert aborted.state is TransactionState.COMPLETE_ABORT
    assert node.journal()[-1] == Mark(TransactionProducer(0, 1), is_commit=False)
    with pytest.raises(InvalidTransactionState):
        await end(node, producer)
    assert await node.transactions.abort("id") == aborted, "there is nothing to abort"
    assert await end(node, producer, commit=False) == TransactionProducer(0, 1)
    with pytest.raises(UnknownTransaction):
        await node.transactions.abort("unknown")


@in_loop
async def test_the_wall_clock_aborts_nothing() -> None:
    node = await a_node()
    producer = await begun(node)
    for jump_ms in (10**12, -2 * 10**12):
        node.clock.jump_wall(jump_ms)
        await node.pass_time(1)
    assert await end(node, producer) == TransactionProducer(0, 1)


@in_loop
async def test_every_transaction_has_its_own_time() -> None:
    node = await a_node()
    producer = await begun(node)
    await node.pass_time(50)
    producer = await end(node, producer)
    await node.pass_time(50)
    await node.transactions.add_partitions("id", *producer, [("t", 0)])
    await node.pass_time(50)
    await node.transactions.add_partitions("id", *producer, [("t", 1)])
    assert state_of(node) is TransactionState.ONGOING
    await node.pass_time(11)
    assert state_of(node) is TransactionState.COMPLETE_ABORT, (
        "what is added later gives it no more time"
    )


@in_loop
async def test_an_abort_for_lack_of_time_waits_for_room_on_the_disk() -> None:
    node = await a_node()
    await begun(node)
    node.state_log.error = DiskFull("no room")
    await node.pass_time(100)
    assert state_of(node) is TransactionState.ONGOING
    node.state_log.error = None
    await node.pass_time(10)
    assert state_of(node) is TransactionState.COMPLETE_ABORT


@in_loop
async def test_an_end_that_came_first_wins_over_the_time() -> None:
    node = await a_node()
    producer = await begun(node)
    node.state_log.is_held = True
    ending = begin(end(node, producer))
    await turns()
    await node.pass_time(70)
    node.state_log.let_go()
    assert await ending == TransactionProducer(0, 1)
    await turns()
    node.state_log.let_go()
    await turns()
    assert node.topics.partition("t", 0).marks() == [
        Mark(TransactionProducer(0, 1), is_commit=True)
    ]


@in_loop
async def test_an_id_that_nobody_uses_is_forgotten_and_its_producer_id_never_used_again() -> None:
    node = await a_node(transactional_id_expiration_ms=100_000)
    producer = await a_producer(node)
    await a_producer(node, "used")
    await node.pass_time(60)
    used = await a_producer(node, "used")
    await node.pass_time(60)
    assert b"id" in node.state_log.entries, "looked for only now and then"
    assert (await a_producer(node, "used")).id == used.id
    await node.pass_time(90)
    assert [found.transactional_id for found in node.transactions.all()] == ["used"]
    assert list(node.state_log.entries) == [b"used"]
    with pytest.raises(InvalidProducerMapping):
        await node.transactions.add_partitions("id", *producer, [("t", 0)])
    again = await node.transactions.init_producer("id", MINUTE_MS, *producer)
    assert again.id not in (producer.id, used.id)


@in_loop
async def test_an_id_with_an_open_transaction_is_not_forgotten() -> None:
    node = await a_node(transactional_id_expiration_ms=20_000)
    producer = await begun(node)
    await node.pass_time(55)
    assert await end(node, producer) == TransactionProducer(0, 1)


@in_loop
async def test_a_jump_of_the_wall_clock_makes_no_id_forgotten_while_the_node_runs() -> None:
    node = await a_node(transactional_id_expiration_ms=100_000)
    producer = await a_producer(node)
    node.clock.jump_wall(10**9)
    await node.pass_time(100)
    assert (await a_producer(node)).id == producer.id


@in_loop
async def test_the_time_that_an_id_was_idle_before_the_start_counts() -> None:
    node = await a_node(transactional_id_expiration_ms=100_000)
    await a_producer(node)
    node.clock.advance(95)
    await node.restart()
    await node.pass_time(101)
    assert node.transactions.all() == []


@in_loop
async def test_an_id_that_cannot_be_forgotten_for_now_is_forgotten_later() -> None:
    node = await a_node(transactional_id_expiration_ms=10_000)
    await a_producer(node)
    node.state_log.error = DiskFull("no room")
    await node.pass_time(25)
    assert len(node.transactions.all()) == 1
    node.state_log.error = None
    await node.pass_time(11)
    assert node.transactions.all() == []


# The produce path.


@in_loop
async def test_a_batch_is_let_in_by_its_producer_epoch_and_partition_alone() -> None:
    node = await a_node()
    producer = await begun(node)
    ask = node.transactions.is_ongoing
    assert ask(*producer, "t", 0)
    assert not ask(*producer, "t", 1)
    assert not ask(*producer, "x", 0)
    assert not ask(producer.id, producer.epoch + 1, "t", 0)
    assert not ask(producer.id, producer.epoch - 1, "t", 0)
    assert not ask(producer.id + 1, producer.epoch, "t", 0)


@in_loop
async def test_a_batch_of_a_new_client_joins_the_transaction_with_one_write() -> None:
    node = await a_node()
    producer = await a_producer(node)
    puts = node.state_log.puts
    partitions = [("t", 0), ("t", 1), ("u", 0)]
    await node.transactions.ensure_partitions("id", *producer, partitions, may_add=True)
    assert all(node.transactions.is_ongoing(*producer, *where) for where in partitions)
    assert node.state_log.puts == puts + 1
    await node.transactions.ensure_partitions("id", *producer, [("t", 1)], may_add=True)
    assert node.state_log.puts == puts + 1


@in_loop
async def test_a_batch_of_an_older_client_must_be_announced() -> None:
    node = await a_node()
    producer = await begun(node)
    ensure = node.transactions.ensure_partitions
    await ensure("id", *producer, [("t", 0)], may_add=False)
    await ensure(None, *producer, [("t", 0)], may_add=False)
    with pytest.raises(InvalidTransactionState, match="partition t-1 is not part"):
        await ensure("id", *producer, [("t", 1)], may_add=False)
    with pytest.raises(TransactionAborted, match="partition t-1 is not part"):
        await ensure("id", *producer, [("t", 1)], may_add=False, is_abortable=True)
    with pytest.raises(InvalidTransactionState):
        await ensure(None, *producer, [("t", 1)], may_add=True)
    await end(node, producer, bump=False)
    with pytest.raises(InvalidTransactionState):
        await ensure("id", *producer, [("t", 0)], may_add=False)


@in_loop
async def test_a_partition_that_does_not_exist_is_not_added() -> None:
    node = await a_node()
    producer = await a_producer(node)
    with pytest.raises(UnknownTopic):
        await node.transactions.add_partitions("id", *producer, [("t", 0), ("t", 9)])
    assert state_of(node) is TransactionState.EMPTY


# Offsets.


async def stage(node: Node, producer: TransactionProducer, **kwargs: Any) -> str:
    async def work() -> str:
        node.groups.stage(producer, "g", tag=1)
        return "staged"

    kwargs.setdefault("may_add", True)
    return await node.transactions.stage_offsets("id", *producer, "g", work, **kwargs)


@in_loop
async def test_offsets_of_a_new_client_join_the_transaction() -> None:
    node = await a_node()
    producer = await a_producer(node)
    assert await stage(node, producer) == "staged"
    assert node.transactions.describe("id").groups == {"g"}
    await end(node, producer)
    assert node.groups.ended == [(1, True)]


@in_loop
async def test_offsets_of_an_older_client_must_be_announced() -> None:
    node = await a_node()
    producer = await a_producer(node)
    with pytest.raises(InvalidTransactionState, match="group 'g' is not part"):
        await stage(node, producer, may_add=False)
    with pytest.raises(TransactionAborted):
        await stage(node, producer, may_add=False, is_abortable=True)
    await node.transactions.add_offsets("id", *producer, "g")
    assert await stage(node, producer, may_add=False) == "staged"


@in_loop
async def test_a_transaction_does_not_end_while_offsets_are_being_staged() -> None:
    node = await a_node()
    producer = await begun(node, groups=("g",))
    staged = asyncio.Event()

    async def slowly() -> None:
        await staged.wait()
        node.groups.stage(producer, "g", tag=1)

    staging = begin(node.transactions.stage_offsets("id", *producer, "g", slowly, may_add=False))
    await turns()
    ending = begin(end(node, producer))
    await turns()
    assert state_of(node) is TransactionState.ONGOING
    staged.set()
    await staging
    await ending
    assert node.groups.ended == [(1, True)]


@in_loop
async def test_a_group_id_that_cannot_be_one_is_refused() -> None:
    node = await a_node()
    producer = await a_producer(node)
    with pytest.raises(InvalidGroup):
        await node.transactions.add_offsets("id", *producer, "")
    assert state_of(node) is TransactionState.EMPTY


@in_loop
async def test_a_transaction_has_a_limited_number_of_groups() -> None:
    node = await a_node()
    producer = await a_producer(node)
    for number in range(coordinator.GROUPS_MAX):
        await node.transactions.add_offsets("id", *producer, f"g{number}")
    with pytest.raises(InvalidRequest, match="1001 groups, limit is 1000"):
        await node.transactions.add_offsets("id", *producer, "one more")
    await node.transactions.add_offsets("id", *producer, "g0")


# Independent ids, and shutdown.


@in_loop
async def test_ids_do_not_wait_for_each_other() -> None:
    node = await a_node()
    await begun(node)
    node.topics.partition("u", 0).held = asyncio.Event()
    begin(a_producer(node))
    await turns()
    other = await a_producer(node, "other")
    await node.transactions.add_partitions("other", *other, [("t", 0)])
    await node.transactions.end("other", *other, is_commit=True, is_bumping=True)


@in_loop
async def test_closing_finishes_what_is_being_stored_and_leaves_markers_to_the_next_start() -> None:
    node = await a_node()
    producer = await begun(node)
    other = await a_producer(node, "other")
    node.topics.partition("t", 0).error = LogOffline("broken")
    ending = begin(end(node, producer))
    await turns()
    node.state_log.is_held = True
    adding = begin(node.transactions.add_partitions("other", *other, [("t", 1)]))
    await turns()
    closing = begin(node.transactions.close())
    await turns()
    assert not closing.done()
    node.state_log.is_held = False
    node.state_log.let_go()
    await closing
    await adding
    assert await ending == TransactionProducer(0, 1), "decided, and so true"
    assert node.timers.pending == 0
    with pytest.raises(Stopping):
        await a_producer(node)
    with pytest.raises(Stopping):
        await node.transactions.missing_partitions("other", *other, [])
    node.topics.partition("t", 0).error = None
    await node.restart()
    assert node.topics.partition("t", 0).marks() == [
        Mark(TransactionProducer(0, 1), is_commit=True)
    ]
    assert state_of(node, "other") is TransactionState.ONGOING


@in_loop
async def test_what_is_decided_while_closing_is_carried_out_at_the_next_start() -> None:
    node = await a_node()
    producer = await begun(node)
    node.state_log.is_held = True
    ending = begin(end(node, producer))
    await turns()
    closing = begin(node.transactions.close())
    await turns()
    node.state_log.is_held = False
    node.state_log.let_go()
    await closing
    assert await ending == TransactionProducer(0, 1)
    assert node.topics.partition("t", 0).marks() == []
    await node.restart()
    assert node.topics.partition("t", 0).marks() == [
        Mark(TransactionProducer(0, 1), is_commit=True)
    ]
