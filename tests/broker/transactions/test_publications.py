"""Publications: many producers, one commit, applied once; order of durable writes; timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from millstream.broker.transactions import transaction_store
from millstream.broker.transactions.publication import (
    NO_SEQUENCE,
    PUBLISHER_LENGTH_MAX,
    TRANSACTIONS_MAX,
    ProposedTransaction,
    PublicationProposal,
    PublicationResult,
)
from millstream.broker.transactions.publication_record import encode_publication_key
from millstream.broker.transactions.transaction import TransactionProducer, TransactionState
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    BatchTooLarge,
    ConcurrentTransaction,
    DiskFull,
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidRequest,
    InvalidTransactionState,
    LogOffline,
    MillstreamError,
    ProducerFenced,
    Stopping,
    UnknownFormat,
)
from tests.in_loop import in_loop

from .transaction_fakes import Mark, Node, turns

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
WHERE = [("t", 0), ("u", 0)]
NEW, REPEATED = PublicationResult(False, 0), PublicationResult(True, 0)
"""What is answered to sequence 0."""


async def a_node(**config: int) -> Node:
    node = Node(BrokerConfig(**config))
    await node.transactions.start()
    return node


async def a_task(node: Node, name: str, *, has_begun: bool = True) -> ProposedTransaction:
    """Return a producer that has written to two partitions, or is about to."""
    producer = await node.transactions.init_producer(name, MINUTE_MS)
    if has_begun:
        await node.transactions.add_partitions(name, *producer, WHERE)
    return ProposedTransaction(name, producer)


async def tasks(node: Node, *names: str) -> tuple[ProposedTransaction, ...]:
    return tuple([await a_task(node, name) for name in names])


async def publish(
    node: Node, chosen: Iterable[ProposedTransaction], sequence: int = 0, **kind: Any
) -> Any:
    kind.setdefault("prefix", "q/")
    proposal = PublicationProposal(publisher="q", sequence=sequence, chosen=tuple(chosen), **kind)
    return await node.transactions.publish(proposal)


def begin(work: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


def state_of(node: Node, name: str) -> TransactionState:
    return node.transactions.describe(name).state


def states(node: Node) -> dict[str, TransactionState]:
    return {found.transactional_id: found.state for found in node.transactions.all()}


def marks(node: Node) -> dict[int, bool]:
    """Return how each producer's transaction ended: once, and the same in all partitions."""
    found = [node.topics.partition(*where).marks() for where in WHERE]
    one, other = ({mark.producer.id: mark.is_commit for mark in partition} for partition in found)
    assert one == other
    assert all(len(partition) == len(one) for partition in found)
    return one


# Applied once, and together.


@in_loop
async def test_all_chosen_transactions_are_committed_by_one_put() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1", "q/2")
    node.state_log.is_held = True
    publishing = begin(publish(node, chosen))
    await turns()
    assert node.state_log.waiting == 1
    assert marks(node) == {}, "no marker before the decisions are durable"
    node.state_log.let_go(1)
    assert await publishing == NEW
    assert marks(node) == {one.producer.id: True for one in chosen}
    assert set(states(node).values()) == {TransactionState.COMPLETE_COMMIT}


@pytest.mark.parametrize("sequence", [0, 6, 7])
@in_loop
async def test_a_sequence_that_was_published_is_answered_as_done_and_commits_nothing(
    sequence: int,
) -> None:
    node = await a_node()
    assert await publish(node, await tasks(node, "q/0"), 7) == PublicationResult(False, 7)
    again = await tasks(node, "q/0", "q/1", "elsewhere")
    assert await publish(node, again, sequence) == PublicationResult(True, 7)
    assert states(node) == dict.fromkeys(
        ("q/0", "q/1", "elsewhere"), TransactionState.COMPLETE_ABORT
    )
    assert [mark.is_commit for mark in node.topics.partition("t", 0).marks()] == [True] + 3 * [
        False
    ]
    assert node.transactions.publications.published == 1
    assert node.transactions.publications.repeated == 1


@in_loop
async def test_an_answer_that_was_lost_is_given_again_and_nothing_happens_twice() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1")
    assert await publish(node, chosen) == NEW
    assert await publish(node, chosen) == REPEATED
    await node.restart()
    assert await publish(node, chosen) == REPEATED
    assert marks(node) == {one.producer.id: True for one in chosen}


@in_loop
async def test_a_repetition_does_not_touch_what_somebody_else_has_under_the_same_id() -> None:
    node = await a_node()
    (old,) = await tasks(node, "elsewhere")
    assert await publish(node, [old]) == NEW
    (new,) = await tasks(node, "elsewhere")
    assert await publish(node, [old]) == REPEATED
    assert await publish(node, [old], 1, is_commit=False) == PublicationResult(False, 0)
    assert node.transactions.is_ongoing(*new.producer, "t", 0)


@in_loop
async def test_sequences_rise_with_gaps_or_not_and_each_publisher_has_its_own() -> None:
    node = await a_node()
    for sequence in (3, 4, 900):
        found = await publish(node, await tasks(node, "q/0"), sequence)
        assert found == PublicationResult(False, sequence)
    other = PublicationProposal(publisher="other", sequence=0, chosen=await tasks(node, "o"))
    assert await node.transactions.publish(other) == NEW


@in_loop
async def test_a_publication_of_nothing_records_its_sequence() -> None:
    node = await a_node()
    assert await publish(node, [], 5) == PublicationResult(False, 5)
    await node.restart()
    assert await publish(node, [], 5) == PublicationResult(True, 5)
    assert len(node.transactions.publications) == 1


@in_loop
async def test_groups_of_a_transaction_learn_of_its_publication() -> None:
    node = await a_node()
    (task,) = await tasks(node, "q/0")
    await node.transactions.add_offsets("q/0", *task.producer, "g")
    node.groups.stage(task.producer, "g", tag=1)
    await publish(node, [task])
    assert node.groups.ended == [(1, True)]


@in_loop
async def test_two_who_publish_the_same_sequence_at_once_commit_it_once() -> None:
    node = await a_node()
    one, other = await tasks(node, "q/0/0", "q/0/1")
    found = await asyncio.gather(publish(node, [one]), publish(node, [other]))
    assert sorted(found) == [NEW, REPEATED]
    assert sorted(marks(node).values()) == [False, True]


@in_loop
async def test_publications_that_share_transactions_do_not_wait_for_each_other_for_ever() -> None:
    node = await a_node()
    chosen = await tasks(node, "b", "a", "c")
    attempts = [
        node.transactions.publish(PublicationProposal(publisher=name, sequence=0, chosen=order))
        for name, order in (("one", chosen), ("other", chosen[::-1]))
    ]
    found = await asyncio.gather(*attempts, return_exceptions=True)
    assert found[0] == NEW
    assert isinstance(found[1], ProducerFenced)


# All or none.


async def spoil_overtaken(node: Node, task: ProposedTransaction) -> None:
    await node.transactions.init_producer(task.transactional_id, MINUTE_MS)


async def spoil_timed_out(node: Node, task: ProposedTransaction) -> None:
    others = [one for one in node.transactions.all() if one.transactional_id != "q/1"]
    await node.pass_time(61)
    for one in others:  # These began again, as slower tasks would.
        await node.transactions.add_partitions(
            one.transactional_id,
            *await node.transactions.init_producer(one.transactional_id, MINUTE_MS),
            WHERE,
        )


async def spoil_ended(node: Node, task: ProposedTransaction) -> None:
    await node.transactions.end(*task[:1], *task.producer, is_commit=False, is_bumping=False)


async def spoil_begun_again(node: Node, task: ProposedTransaction) -> None:
    await node.transactions.end(*task[:1], *task.producer, is_commit=False, is_bumping=True)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (spoil_overtaken, ProducerFenced),
        (spoil_timed_out, ProducerFenced),
        (spoil_ended, InvalidTransactionState),
        (spoil_begun_again, ProducerFenced),
    ],
)
@in_loop
async def test_one_that_cannot_be_committed_is_named_and_none_is(
    spoil: Any, error: type[MillstreamError]
) -> None:
    node = await a_node()
    names = ("q/0", "q/1", "q/2")
    chosen = await tasks(node, *names)
    await spoil(node, chosen[1])
    chosen = tuple(
        task
        if task.transactional_id == "q/1"
        else ProposedTransaction(task.transactional_id, who.producer)
        for task in chosen
        for who in [node.transactions.describe(task.transactional_id)]
    )
    puts = node.state_log.puts
    with pytest.raises(error, match="cannot commit transactional id 'q/1'"):
        await publish(node, chosen)
    await turns()
    assert node.state_log.puts == puts
    assert state_of(node, "q/0") is state_of(node, "q/2") is TransactionState.ONGOING
    assert not any(mark.is_commit for mark in node.topics.partition("t", 0).marks())
    assert await publish(node, [chosen[0], chosen[2]]) == NEW, "the sequence is still free"


@in_loop
async def test_ids_and_producers_that_are_not_known_are_refused() -> None:
    node = await a_node()
    (task,) = await tasks(node, "q/0")
    with pytest.raises(InvalidProducerMapping, match="'q/9' is unknown"):
        await publish(node, [task, ProposedTransaction("q/9", TransactionProducer(0, 0))])
    with pytest.raises(InvalidProducerMapping, match=r"'q/0': .* belongs to producer 0, got 77"):
        await publish(node, [ProposedTransaction("q/0", TransactionProducer(77, 0))])
    (empty,) = [await a_task(node, "q/1", has_begun=False)]
    with pytest.raises(InvalidTransactionState, match="cannot commit in state Empty"):
        await publish(node, [task, empty])
    assert len(node.transactions.publications) == 0
    assert node.transactions.publications._publishers == {}
    assert state_of(node, "q/0") is TransactionState.ONGOING


@in_loop
async def test_one_that_is_still_ending_is_told_to_come_again() -> None:
    node = await a_node()
    (task,) = await tasks(node, "q/0")
    held = node.topics.partition("t", 0).held = asyncio.Event()
    begin(node.transactions.end("q/0", *task.producer, is_commit=False, is_bumping=False))
    publishing = begin(publish(node, [task]))
    await node.pass_time(transaction_store.MARKERS_WAIT_SECONDS)
    with pytest.raises(ConcurrentTransaction, match="'q/0'"):
        await publishing
    held.set()


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        ({"publisher": ""}, "between 1 and 1024 characters, got 0"),
        ({"publisher": "x" * (PUBLISHER_LENGTH_MAX + 1)}, "got 1025"),
        ({"sequence": -1}, "sequence must be at least 0, got -1"),
        ({"prefix": "p/"}, "prefix 'p/' does not start with the publisher 'q'"),
        ({"chosen": (ProposedTransaction("", TransactionProducer(0, 0)),)}, "id must not be empty"),
        (
            {"chosen": 2 * (ProposedTransaction("a", TransactionProducer(0, 0)),)},
            "'a' is listed twice",
        ),
        (
            {
                "chosen": tuple(
                    ProposedTransaction(f"{n}", TransactionProducer(n, 0))
                    for n in range(TRANSACTIONS_MAX + 1)
                )
            },
            "10001 transactions, limit is 10000",
        ),
    ],
)
@in_loop
async def test_a_proposal_that_cannot_be_meant_is_refused(
    proposal: dict[str, Any], words: str
) -> None:
    node = await a_node()
    with pytest.raises(InvalidRequest, match=words):
        await node.transactions.publish(
            PublicationProposal(**{"publisher": "q", "sequence": 0, **proposal})
        )
    assert node.state_log.puts == 0


@in_loop
async def test_a_publication_of_many_transactions_is_one_put() -> None:
    node = await a_node()
    chosen = await tasks(node, *(f"q/{number}" for number in range(500)))
    puts = node.state_log.puts
    node.state_log.is_held = True
    publishing = begin(publish(node, chosen))
    while not node.state_log.waiting:
        await turns()
    assert node.state_log.puts == puts + 1
    node.state_log.is_held = False
    node.state_log.let_go()
    assert await publishing == NEW
    assert marks(node) == {one.producer.id: True for one in chosen}


@in_loop
async def test_a_publication_that_is_too_large_to_be_stored_changes_nothing() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1")
    node.state_log.error = BatchTooLarge("2 entries have 9 bytes, limit of one put is 8")
    with pytest.raises(BatchTooLarge):
        await publish(node, chosen)
    node.state_log.error = None
    assert await publish(node, chosen) == NEW


# Transactions that were not chosen, and abandoned ones.


@in_loop
async def test_others_under_the_prefix_are_aborted_and_fenced_and_nobody_else() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0/1", "elsewhere")
    left, stranger = await tasks(node, "q/0/0", "qq/0")
    idle = await a_task(node, "q/1/0", has_begun=False)
    assert await publish(node, chosen) == NEW
    assert states(node) == {
        "q/0/0": TransactionState.COMPLETE_ABORT,
        "q/0/1": TransactionState.COMPLETE_COMMIT,
        "q/1/0": TransactionState.COMPLETE_ABORT,
        "elsewhere": TransactionState.COMPLETE_COMMIT,
        "qq/0": TransactionState.ONGOING,
    }
    assert marks(node) == {
        **{one.producer.id: True for one in chosen},
        left.producer.id: False,
    }
    for task in (*chosen, left, idle):
        await assert_fenced(node, task)
    assert node.transactions.is_ongoing(*stranger.producer, "t", 0)


async def assert_fenced(node: Node, task: ProposedTransaction) -> None:
    """Check that every request of a task fails once a publication has ended its transaction."""
    name, producer = task
    assert not node.transactions.is_ongoing(*producer, "t", 0)
    for attempt in (
        lambda: node.transactions.add_partitions(name, *producer, [("t", 0)]),
        lambda: node.transactions.add_offsets(name, *producer, "g"),
        lambda: node.transactions.end(name, *producer, is_commit=True, is_bumping=True),
        lambda: node.transactions.end(name, *producer, is_commit=True, is_bumping=False),
        lambda: node.transactions.end(name, *producer, is_commit=False, is_bumping=True),
        lambda: node.transactions.end(name, *producer, is_commit=False, is_bumping=False),
        lambda: node.transactions.init_producer(name, MINUTE_MS, *producer),
    ):
        with pytest.raises(ProducerFenced):
            await attempt()
    for may_add in (False, True):
        with pytest.raises(InvalidProducerEpoch):
            await node.transactions.ensure_partitions(name, *producer, [("t", 0)], may_add=may_add)


@in_loop
async def test_a_task_of_the_next_publication_takes_over_the_id_and_the_old_one_stays_out() -> None:
    node = await a_node()
    (old,) = await tasks(node, "q/0")
    await publish(node, [old], 0)
    (new,) = await tasks(node, "q/0")
    await assert_fenced(node, old)
    with pytest.raises(ProducerFenced):
        await publish(node, [old], 1)
    assert await publish(node, [new], 1) == PublicationResult(False, 1)


@in_loop
async def test_without_a_prefix_others_are_left_alone() -> None:
    node = await a_node()
    chosen, left = await tasks(node, "q/0", "q/1")
    assert await publish(node, [chosen], prefix="") == NEW
    assert node.transactions.is_ongoing(*left.producer, "t", 0)


@in_loop
async def test_a_task_that_begins_while_another_request_is_answered_is_aborted_too() -> None:
    node = await a_node()
    (chosen,) = await tasks(node, "q/0")
    late = await a_task(node, "q/1", has_begun=False)
    node.state_log.is_held = True
    beginning = begin(node.transactions.add_partitions("q/1", *late.producer, WHERE))
    publishing = begin(publish(node, [chosen]))
    await turns()
    node.state_log.is_held = False
    node.state_log.let_go()
    await beginning
    assert await publishing == NEW
    assert state_of(node, "q/1") is TransactionState.COMPLETE_ABORT


@in_loop
async def test_leftovers_that_cannot_be_aborted_take_nothing_back() -> None:
    node = await a_node()
    chosen, left = await tasks(node, "q/0", "q/1")
    node.state_log.is_held = True
    publishing = begin(publish(node, [chosen]))
    await turns()
    node.state_log.let_go()
    await turns()
    node.state_log.error = DiskFull("no room")
    node.state_log.let_go()
    assert await publishing == NEW
    assert state_of(node, "q/1") is TransactionState.ONGOING
    node.state_log.error, node.state_log.is_held = None, False
    await node.pass_time(61)
    assert state_of(node, "q/1") is TransactionState.COMPLETE_ABORT, "its own time ends it"
    assert left.producer.id in marks(node)


@in_loop
async def test_giving_up_aborts_everything_and_records_nothing() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "elsewhere")
    left, stranger = await tasks(node, "q/1", "other")
    assert await publish(node, chosen, is_commit=False) == PublicationResult(False, NO_SEQUENCE)
    for task in (*chosen, left):
        assert state_of(node, task.transactional_id) is TransactionState.COMPLETE_ABORT
        await assert_fenced(node, task)
    assert node.transactions.is_ongoing(*stranger.producer, "t", 0)
    assert await publish(node, await tasks(node, "q/0")) == NEW, "it can be tried again"


@in_loop
async def test_giving_up_what_was_published_says_so() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    await publish(node, chosen)
    assert await publish(node, chosen, is_commit=False) == REPEATED
    assert state_of(node, "q/0") is TransactionState.COMPLETE_COMMIT
    assert node.transactions.publications.repeated == 0


@in_loop
async def test_giving_up_fails_where_it_cannot_be_stored_and_can_be_asked_for_again() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    node.state_log.error = DiskFull("no room")
    with pytest.raises(DiskFull):
        await publish(node, chosen, is_commit=False)
    assert state_of(node, "q/0") is TransactionState.ONGOING
    node.state_log.error = None
    await publish(node, chosen, is_commit=False)
    assert state_of(node, "q/0") is TransactionState.COMPLETE_ABORT


# Final publications.


@pytest.mark.parametrize("is_commit", [True, False])
@in_loop
async def test_a_final_publication_leaves_no_ids_behind_but_can_be_asked_about(
    is_commit: bool,
) -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    await tasks(node, "q/1", "stays")
    await a_task(node, "q/2", has_begun=False)
    await publish(node, chosen, is_commit=is_commit, is_final=True)
    assert list(states(node)) == ["stays"]
    key = encode_publication_key("q")
    assert set(node.state_log.entries) == ({b"stays", key} if is_commit else {b"stays"})
    assert await publish(node, chosen, is_final=True, is_commit=False) == PublicationResult(
        is_commit, 0 if is_commit else NO_SEQUENCE
    )
    with pytest.raises(InvalidProducerMapping):
        await node.transactions.add_partitions("q/0", *chosen[0].producer, WHERE)


@in_loop
async def test_ids_whose_markers_take_long_are_forgotten_when_they_are_written() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    held = node.topics.partition("t", 0).held = asyncio.Event()
    publishing = begin(publish(node, chosen, is_final=True))
    await node.pass_time(transaction_store.MARKERS_WAIT_SECONDS)
    assert await publishing == NEW, "it is decided, and so true"
    assert state_of(node, "q/0") is TransactionState.PREPARE_COMMIT
    held.set()
    await turns()
    assert states(node) == {}
    assert set(node.state_log.entries) == {encode_publication_key("q")}
    assert marks(node) == {chosen[0].producer.id: True}


@in_loop
async def test_an_id_that_somebody_came_back_for_stays() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    held = node.topics.partition("t", 0).held = asyncio.Event()
    publishing = begin(publish(node, chosen, is_final=True))
    await turns()
    coming = begin(a_task(node, "q/0"))
    await turns()
    held.set()
    assert await publishing == NEW
    again = await coming
    assert again.producer.id == chosen[0].producer.id
    assert node.transactions.is_ongoing(*again.producer, "t", 0)
    assert await publish(node, [again], 1) == PublicationResult(False, 1)
    assert state_of(node, "q/0") is TransactionState.COMPLETE_COMMIT, (
        "and is not forgotten later by mistake"
    )


@in_loop
async def test_ids_that_cannot_be_forgotten_change_nothing_in_the_answer() -> None:
    node = await a_node(transactional_id_expiration_ms=100_000)
    chosen = await tasks(node, "q/0")
    node.state_log.is_held = True
    publishing = begin(publish(node, chosen, is_final=True))
    await turns()
    node.state_log.let_go()
    await turns()
    node.state_log.error = DiskFull("no room")
    node.state_log.let_go()
    await turns()
    node.state_log.let_go()
    assert await publishing == NEW
    assert state_of(node, "q/0") is TransactionState.COMPLETE_COMMIT
    node.state_log.error, node.state_log.is_held = None, False
    await node.pass_time(201)
    assert states(node) == {}


# Crashes and failures.


@pytest.mark.parametrize("survivors", [0, 1])
@in_loop
async def test_a_crash_leaves_all_or_none(survivors: int) -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1", "q/2")
    node.state_log.is_held = True
    begin(publish(node, chosen))
    await turns()
    await node.restart(survivors)
    if survivors:
        assert marks(node) == {one.producer.id: True for one in chosen}
        assert await publish(node, chosen) == REPEATED
    else:
        assert marks(node) == {}
        assert set(states(node).values()) == {TransactionState.ONGOING}
        assert await publish(node, chosen) == NEW
    assert marks(node) == {one.producer.id: True for one in chosen}


@in_loop
async def test_markers_that_a_crash_prevented_are_written_after_it() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1")
    for partition in node.topics.partitions.values():
        partition.error = LogOffline("broken")
    begin(publish(node, chosen))
    await turns()
    for partition in node.topics.partitions.values():
        partition.error = None
    await node.restart()
    assert marks(node) == {one.producer.id: True for one in chosen}
    assert await publish(node, chosen) == REPEATED


@in_loop
async def test_a_repetition_waits_for_the_markers_of_the_first() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    held = node.topics.partition("t", 0).held = asyncio.Event()
    first, second = begin(publish(node, chosen)), begin(publish(node, chosen))
    await turns()
    assert not first.done()
    assert not second.done()
    held.set()
    assert (await first, await second) == (NEW, REPEATED)


@in_loop
async def test_a_full_disk_refuses_and_the_same_publication_succeeds_later() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1")
    node.state_log.error = DiskFull("no room")
    with pytest.raises(DiskFull):
        await publish(node, chosen)
    assert all(node.transactions.is_ongoing(*one.producer, "t", 0) for one in chosen)
    node.state_log.error = None
    assert await publish(node, chosen) == NEW


@pytest.mark.parametrize("survivors", [0, 1])
@in_loop
async def test_what_may_or_may_not_be_stored_stops_all_of_it_until_the_next_start(
    survivors: int,
) -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1")
    node.state_log.is_held = True
    publishing = begin(publish(node, chosen))
    await turns()
    found = node.state_log.crash(survivors)
    node.state_log.error = LogOffline("sync failed")
    node.state_log.let_go()
    with pytest.raises(LogOffline):
        await publishing
    node.state_log.error, node.state_log.is_held = None, False
    for attempt in (
        lambda: publish(node, chosen),
        lambda: publish(node, [], 9),
        lambda: publish(node, chosen, is_commit=False),
        lambda: node.transactions.end(
            "q/0", *chosen[0].producer, is_commit=False, is_bumping=False
        ),
    ):
        with pytest.raises(LogOffline, match="until the node restarts"):
            await attempt()
    assert not any(node.transactions.is_ongoing(*one.producer, "t", 0) for one in chosen)
    node.state_log = found
    await node.restart()
    assert await publish(node, chosen) == (REPEATED if survivors else NEW)
    assert marks(node) == {one.producer.id: True for one in chosen}


@in_loop
async def test_a_publication_goes_on_when_its_client_goes_away() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    node.state_log.is_held = True
    publishing = begin(publish(node, chosen))
    await turns()
    publishing.cancel()
    node.state_log.is_held = False
    node.state_log.let_go()
    await turns()
    assert state_of(node, "q/0") is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("is_final", [False, True])
@in_loop
async def test_a_publication_that_is_decided_while_closing_is_answered_and_carried_out_later(
    is_final: bool,
) -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0")
    node.state_log.is_held = True
    publishing = begin(publish(node, chosen, is_final=is_final))
    await turns()
    closing = begin(node.transactions.close())
    await turns()
    node.state_log.is_held = False
    node.state_log.let_go()
    await closing
    assert await publishing == NEW
    with pytest.raises(Stopping):
        await publish(node, chosen)
    await node.restart()
    assert marks(node) == {chosen[0].producer.id: True}


@in_loop
async def test_a_publication_that_came_first_wins_over_the_time_of_its_transactions() -> None:
    node = await a_node()
    chosen = await tasks(node, "q/0", "q/1")
    node.state_log.is_held = True
    publishing = begin(publish(node, chosen))
    await turns()
    await node.pass_time(70)
    node.state_log.is_held = False
    node.state_log.let_go()
    assert await publishing == NEW
    await turns()
    assert marks(node) == {one.producer.id: True for one in chosen}


@in_loop
async def test_what_a_newer_release_published_is_not_passed_over() -> None:
    node = await a_node()
    key = encode_publication_key("q")
    node.state_log.entries[key] = b'{"version":2}'
    with pytest.raises(UnknownFormat, match="publisher 'q' has version 2, expected 1"):
        await node.restart()


# Timeouts.


@in_loop
async def test_a_publisher_that_was_idle_for_long_is_forgotten() -> None:
    node = await a_node(publication_expiration_ms=100_000)
    await publish(node, [], 5)
    await node.pass_time(60)
    await node.restart()
    await node.pass_time(39)
    assert await publish(node, [], 5) == PublicationResult(True, 5)
    await node.pass_time(161)
    assert node.state_log.entries == {}
    assert len(node.transactions.publications) == 0
    assert await publish(node, [], 5) == PublicationResult(False, 5), "as the setting says"


@in_loop
async def test_no_wall_clock_makes_a_publisher_forgotten() -> None:
    node = await a_node()
    await publish(node, [], 5)
    for jump_ms in (1_000 * DAY_MS, -3_000 * DAY_MS):
        node.clock.jump_wall(jump_ms)
        await node.restart()
        await node.pass_time(transaction_store.SWEEP_SECONDS + 1)
        assert await publish(node, [], 5) == PublicationResult(True, 5)


@in_loop
async def test_a_publisher_that_cannot_be_forgotten_for_now_is_forgotten_later() -> None:
    node = await a_node(publication_expiration_ms=10_000)
    await publish(node, [], 5)
    node.state_log.error = DiskFull("no room")
    await node.pass_time(25)
    assert len(node.transactions.publications) == 1
    node.state_log.error = None
    await node.pass_time(11)
    assert len(node.transactions.publications) == 0


@in_loop
async def test_marks_carry_an_epoch_above_that_of_the_records() -> None:
    node = await a_node()
    (task,) = await tasks(node, "q/0")
    await publish(node, [task])
    assert node.topics.partition("t", 0).marks() == [
        Mark(TransactionProducer(task.producer.id, 1), True)
    ]
