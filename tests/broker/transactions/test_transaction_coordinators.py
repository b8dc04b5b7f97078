"""Several transaction coordinators on one node: elected, loaded, deposed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream.broker.state.internal_partitions import InternalPartition
from millstream.broker.state.routing import index_of_transactional_id
from millstream.broker.transactions import transaction_store
from millstream.broker.transactions.marker_sender import ProducerMarker
from millstream.broker.transactions.producer_ids import ProducerIds
from millstream.broker.transactions.publication import PublicationProposal
from millstream.broker.transactions.transaction import TransactionProducer, TransactionState
from millstream.broker.transactions.transaction_coordinators import TransactionCoordinators
from millstream.broker.transactions.transaction_verifier import NO_PARTS, TransactionParts
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    CoordinatorLoading,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTransactionState,
    NotCoordinator,
    NotCoordinatorAnymore,
    NotLeader,
    ProducerFenced,
    TransactionAborted,
)
from millstream.records.topic_partition import TopicPartition
from tests.broker.state.internal_nodes import ElectedPartitions, turns
from tests.broker.transactions.transaction_fakes import FakeGroups, FakeMetadata, FakeTopics
from tests.in_loop import in_loop

COUNT = 4
WHERE = TopicPartition("t", 0)
EXPIRATION_MS = 7_200_000


class MarkersFake:
    """Partitions of several nodes, some of which refuse."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, ProducerMarker]] = []
        self.refused: dict[TopicPartition, list[Exception]] = {}
        self.held: asyncio.Event | None = None

    async def write(self, partition: TopicPartition, marker: ProducerMarker) -> None:
        if self.held is not None:
            await self.held.wait()
        if self.refused.get(partition):
            raise self.refused[partition].pop(0)
        self.written.append((partition, marker))


class VerifierFake:
    """The coordinators of other nodes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, TransactionProducer, TransactionParts, bool]] = []
        self.missing = NO_PARTS
        self.error: Exception | None = None

    async def verify(
        self,
        transactional_id: str,
        producer: TransactionProducer,
        parts: TransactionParts,
        *,
        may_add: bool,
    ) -> TransactionParts:
        self.asked.append((transactional_id, producer, parts, may_add))
        if self.error is not None:
            raise self.error
        return self.missing


class TransactionsNode:
    def __init__(self) -> None:
        self.partitions = ElectedPartitions(count=COUNT)
        self.markers = MarkersFake()
        self.verifier = VerifierFake()
        self.groups = FakeGroups()
        self.transactions = TransactionCoordinators(
            self.partitions.context(),
            FakeTopics(("t", 0), ("t", 1)),
            self.groups,
            ProducerIds(FakeMetadata()),  # type: ignore[arg-type]
            config=BrokerConfig(publication_expiration_ms=EXPIRATION_MS),
            retention_clock=None,
            markers=self.markers,
            verifier=self.verifier,
        )

    async def begin(self, transactional_id: str) -> TransactionProducer:
        producer = await self.transactions.init_producer(transactional_id, 60_000)
        await self.transactions.of(transactional_id).add_partitions(
            transactional_id, *producer, [WHERE]
        )
        return producer

    def end(self, transactional_id: str, producer: TransactionProducer) -> Any:
        return self.transactions.of(transactional_id).end(
            transactional_id, *producer, is_commit=True, is_bumping=False
        )

    async def pass_time(self, seconds: float) -> None:
        steps = max(1, min(40, int(seconds)))
        for _ in range(steps):
            self.partitions.timers.advance(seconds / steps)
            await turns()


@asynccontextmanager
async def a_node() -> AsyncIterator[TransactionsNode]:
    node = TransactionsNode()
    await node.transactions.open()
    try:
        yield node
    finally:
        await node.transactions.close()
        await node.partitions.store.close()


def partition_of(transactional_id: str) -> InternalPartition:
    number = index_of_transactional_id(transactional_id, COUNT)
    return InternalPartition("transactions", number)


IDS = [f"id-{number}" for number in range(20)]
A = IDS[0]
B = next(name for name in IDS if partition_of(name) != partition_of(A))


@in_loop
async def test_an_id_that_another_node_coordinates_is_refused() -> None:
    async with a_node() as node:
        with pytest.raises(NotCoordinator):
            await node.transactions.init_producer(A, 60_000)
        producer = await node.transactions.init_producer(None, 60_000)
        assert producer == (0, 0), "a producer without an id needs no coordinator"


@in_loop
async def test_a_decision_is_carried_out_by_the_next_coordinator_with_its_epoch() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A), epoch=3)
        producer = await node.begin(A)
        node.markers.held = asyncio.Event()
        ending = asyncio.create_task(node.end(A, producer))
        await turns()
        node.partitions.depose(partition_of(A))
        with pytest.raises(NotCoordinatorAnymore):
            await ending
        assert node.markers.written == []
        node.markers.held = None
        await node.partitions.take(partition_of(A), epoch=5)
        assert node.markers.written == [(WHERE, ProducerMarker(*producer, 5, True))]
        assert await node.end(A, producer) == producer, "and a repeated request is answered"


@in_loop
async def test_the_next_coordinator_counts_the_timeout_from_the_start() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        producer = await node.transactions.init_producer(A, 600_000)
        await node.transactions.of(A).add_partitions(A, *producer, [WHERE])
        for epoch in range(2, 6):
            await node.pass_time(120)
            await node.partitions.lose(partition_of(A))
            await node.partitions.take(partition_of(A), epoch=epoch)
        assert node.transactions.of(A).describe(A).state is TransactionState.ONGOING
        # The clock is stored every 10 s: what each of the four did not store is added.
        await node.pass_time(165)
        assert node.transactions.of(A).describe(A).state is TransactionState.COMPLETE_ABORT


@in_loop
async def test_a_transaction_that_is_open_for_long_is_reported_with_its_partitions() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        producer = await node.transactions.init_producer(A, 600_000)
        await node.transactions.of(A).add_partitions(A, *producer, [WHERE, ("t", 1)])
        await node.pass_time(59)
        assert list(node.transactions.held_back()) == []
        await node.pass_time(2)
        (said,) = node.transactions.held_back()
        assert said == (
            f"transactional id '{A}' (producer {producer.id}) has been open for 61 s, and holds"
            " back readers of committed records of t-0 and 1 other partitions"
        )


@in_loop
async def test_transactions_are_renewed_by_the_coordinator_of_their_publisher() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        await node.begin(f"{A}/0/0")
        assert node.transactions.renew(A, f"{A}/", 600_000) == 1
        with pytest.raises(NotCoordinator):
            node.transactions.renew(B, f"{B}/", 600_000)
        for prefix in ("", "other/"):
            with pytest.raises(InvalidRequest, match="does not start with the publisher"):
                node.transactions.renew(A, prefix, 600_000)


@in_loop
async def test_ids_are_refused_until_they_are_loaded() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        producer = await node.begin(A)
        await node.partitions.lose(partition_of(A))
        node.partitions.opening = asyncio.Event()
        await node.partitions.take(partition_of(A), epoch=2)
        with pytest.raises(CoordinatorLoading):
            node.transactions.of(A).describe(A)
        with pytest.raises(CoordinatorLoading):
            node.transactions.listed()
        with pytest.raises(CoordinatorLoading):
            await node.transactions.ensure_partitions(A, *producer, [WHERE], may_add=True)
        with pytest.raises(CoordinatorLoading):
            node.transactions.publishers()
        assert node.verifier.asked == [], "this node is the coordinator, although it is loading"
        node.partitions.opening.set()
        await turns()
        assert node.transactions.of(A).describe(A).state is TransactionState.ONGOING
        assert node.transactions.is_ongoing(*producer, *WHERE)


@in_loop
async def test_two_coordinators_have_their_own_ids_side_by_side() -> None:
    async with a_node() as node:
        node.partitions.elect(partition_of(A))
        await node.partitions.take(partition_of(B))
        one, other = await node.begin(A), await node.begin(B)
        assert one.id != other.id
        assert node.transactions.is_ongoing(*one, *WHERE)
        assert node.transactions.is_ongoing(*other, *WHERE)
        assert {each.transactional_id for each in node.transactions.listed()} == {A, B}
        assert node.transactions.greatest_producer_id == other.id
        node.partitions.depose(partition_of(A))
        assert not node.transactions.is_ongoing(*one, *WHERE)
        assert node.transactions.is_ongoing(*other, *WHERE)
        await node.end(B, other)


@in_loop
async def test_a_batch_needs_the_id_of_its_transaction() -> None:
    async with a_node() as node:
        node.partitions.elect(partition_of(A))
        await node.partitions.take(partition_of(B))
        one = await node.begin(A)
        assert node.transactions.is_ongoing(*one, *WHERE, transactional_id=A)
        assert not node.transactions.is_ongoing(*one, *WHERE, transactional_id=B)
        assert not node.transactions.is_verified(A, one.id), "this node coordinates it"


@in_loop
async def test_what_another_node_has_said_holds_for_one_id_only() -> None:
    async with a_node() as node:
        node.partitions.depose(partition_of(A))
        assert not node.transactions.is_verified(A, 5)
        await node.transactions.ensure_partitions(A, 5, 0, [WHERE], may_add=True)
        assert node.transactions.is_verified(A, 5)
        assert not node.transactions.is_verified(B, 5)
        assert not node.transactions.is_verified(A, 6)
        assert not node.transactions.is_verified(None, 5)


@in_loop
async def test_a_deposed_coordinator_decides_nothing() -> None:
    async with a_node() as node:
        partition = partition_of(A)
        await node.partitions.take(partition)
        producer = await node.begin(A)
        late = node.transactions.of(A)
        log = node.partitions.logs.pop(partition)
        end = log.end_offset
        node.partitions.depose(partition)
        for attempt in (
            lambda: late.end(A, *producer, is_commit=True, is_bumping=False),
            lambda: late.init_producer(A, 60_000),
            lambda: late.add_partitions(A, *producer, [("t", 1)]),
            lambda: late.missing_partitions(A, *producer, [WHERE]),
            lambda: late.publish(PublicationProposal(publisher="p", sequence=0)),
        ):
            with pytest.raises((NotCoordinator, NotCoordinatorAnymore)):
                await attempt()
        with pytest.raises(NotCoordinator):
            late.describe(A)
        await node.pass_time(120)  # Its timeout would have aborted the transaction.
        assert log.end_offset == end
        assert node.markers.written == []


@in_loop
async def test_a_decision_in_flight_is_no_success_although_it_reaches_the_replicas_later() -> None:
    async with a_node() as node:
        partition = partition_of(A)
        await node.partitions.take(partition)
        producer = await node.begin(A)
        log = node.partitions.logs.pop(partition)
        log.is_held = True
        ending = asyncio.create_task(node.end(A, producer))
        await turns()
        node.partitions.depose(partition)
        log.let_go()
        with pytest.raises(NotCoordinatorAnymore):
            await ending
        assert node.markers.written == []
        await node.partitions.take(partition, epoch=2)
        assert [marker.is_commit for _, marker in node.markers.written] == [True]


@in_loop
async def test_a_marker_goes_to_the_new_leader_of_its_partition() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        producer = await node.begin(A)
        await node.transactions.of(A).add_partitions(A, *producer, [("t", 1)])
        node.markers.refused[WHERE] = [NotLeader("node 2 leads it", leader=2)]
        ending = asyncio.create_task(node.end(A, producer))
        await turns()
        assert [partition for partition, _ in node.markers.written] == [("t", 1)]
        await node.pass_time(1)
        assert [partition for partition, _ in node.markers.written] == [("t", 1), WHERE]
        assert await ending == producer


# Questions of partitions and groups to coordinators of other nodes.


@in_loop
async def test_a_partition_asks_the_coordinator_of_another_node() -> None:
    async with a_node() as node:
        node.partitions.depose(partition_of(A))
        assert node.transactions.is_elsewhere(A)
        assert not node.transactions.is_elsewhere(None)
        ensure = node.transactions.ensure_partitions
        await ensure(A, 5, 0, [WHERE], may_add=True)
        parts = TransactionParts(frozenset({WHERE}))
        assert node.verifier.asked == [(A, (5, 0), parts, True)]
        node.verifier.missing = parts
        with pytest.raises(InvalidTransactionState, match="partition t-0"):
            await ensure(A, 5, 0, [WHERE], may_add=False)
        with pytest.raises(TransactionAborted, match="partition t-0"):
            await ensure(A, 5, 0, [WHERE], may_add=False, is_abortable=True)
        node.verifier.error = ProducerFenced("a newer one took over")
        with pytest.raises(InvalidProducerEpoch):
            await ensure(A, 5, 0, [WHERE], may_add=True)


@in_loop
async def test_a_group_asks_the_coordinator_of_another_node_before_it_stages() -> None:
    async with a_node() as node:
        staged: list[str] = []

        async def stage(verify: Any) -> str:
            assert verify is not None
            await verify()
            staged.append("g")
            return "done"

        arguments = (A, 5, 0, "g", stage)
        assert await node.transactions.stage_offsets(*arguments, may_add=True) == "done"
        parts = TransactionParts(groups=frozenset({"g"}))
        assert node.verifier.asked == [(A, (5, 0), parts, True)]
        node.verifier.missing = parts
        with pytest.raises(InvalidTransactionState, match="group 'g'"):
            await node.transactions.stage_offsets(*arguments, may_add=False)
        assert staged == ["g"]


@in_loop
async def test_a_coordinator_answers_what_other_nodes_ask() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        producer = await node.begin(A)
        coordinator = node.transactions.of(A)
        other = TopicPartition("t", 1)
        parts = TransactionParts(frozenset({WHERE, other}), frozenset({"g"}))
        missing = await coordinator.verify(A, producer, parts, may_add=False)
        assert missing == TransactionParts(frozenset({other}), frozenset({"g"}))
        assert await coordinator.verify(A, producer, parts, may_add=True) == NO_PARTS
        assert await coordinator.verify(A, producer, parts, may_add=False) == NO_PARTS
        with pytest.raises(ProducerFenced):
            await coordinator.verify(A, producer._replace(epoch=-1), parts, may_add=False)


# Publications.


@in_loop
async def test_a_publication_is_one_decision_of_one_coordinator() -> None:
    async with a_node() as node:
        node.partitions.elect_all("transactions")
        await turns()
        tasks = [f"spark-query/x/{task}/0" for task in range(5)]
        producers = [await node.begin(task) for task in tasks]
        result = await node.transactions.publish(
            PublicationProposal(
                publisher="spark-query/x",
                sequence=0,
                chosen=tuple(zip(tasks, producers, strict=True)),  # type: ignore[arg-type]
                prefix="spark-query/x/",
            )
        )
        assert not result.is_repeated
        assert [marker.is_commit for _, marker in node.markers.written] == [True] * 5
        assert [publisher.name for _, publisher in node.transactions.publishers()] == [
            "spark-query/x"
        ]


@in_loop
async def test_a_publication_over_several_coordinators_is_refused_before_anything_is_done() -> None:
    async with a_node() as node:
        node.partitions.elect_all("transactions")
        await turns()
        producer = await node.begin(B)
        chosen: Any = ((B, producer),)
        with pytest.raises(InvalidRequest, match="has another coordinator than publisher"):
            await node.transactions.publish(
                PublicationProposal(publisher=A, sequence=0, chosen=chosen)
            )
        assert node.transactions.of(B).describe(B).state is TransactionState.ONGOING
        assert node.transactions.publishers() == []


@in_loop
async def test_the_age_of_a_publication_does_not_jump_when_the_coordinator_moves() -> None:
    async with a_node() as node:
        partition = partition_of("p")
        await node.partitions.take(partition)
        await node.transactions.publish(PublicationProposal(publisher="p", sequence=4))

        def age_ms() -> int:
            ((publications, publisher),) = node.transactions.publishers()
            return publications.age_ms(publisher)

        await node.pass_time(transaction_store.SWEEP_SECONDS + 60)
        before = age_ms()
        assert before == pytest.approx((transaction_store.SWEEP_SECONDS + 60) * 1000, abs=1000)
        node.partitions.depose(partition)
        await node.pass_time(10 * EXPIRATION_MS / 1000)  # Another node leads, or none.
        await node.partitions.take(partition, epoch=2)
        assert transaction_store.SWEEP_SECONDS * 1000 - 1000 <= age_ms() <= before
        repeated = await node.transactions.publish(PublicationProposal(publisher="p", sequence=4))
        assert repeated.is_repeated
        await node.pass_time(EXPIRATION_MS / 1000 + 1)
        assert node.transactions.publishers() == []


@in_loop
async def test_times_that_a_lone_node_has_stored_are_not_older_than_they_were() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of("p"))
        for name, update_ms in (("p", 1_700_000_000_000), ("p/1", 1_700_000_500_000)):
            log = node.transactions.of("p")._store._state_log
            key = b"\xffpublication:" + name.encode()
            value = b'{"version":1,"sequence":1,"update_ms":%d}' % update_ms
            await log.put([(key, value)])
        await node.partitions.take(partition_of("p"), epoch=2)
        ages = {known.name: all_.age_ms(known) for all_, known in node.transactions.publishers()}
        assert ages == {"p": 500_000, "p/1": 0}
