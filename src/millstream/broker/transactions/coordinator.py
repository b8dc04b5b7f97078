"""The coordinator of all transactional ids of a lone node.

The life of a transaction, and what is durable when:

    init, add ───► value durable ────► answered
    end ─────────► decision durable ─► markers to all partitions and groups ─► answered
                        │
                        └─ a crash from here on ends in the same outcome
    publish ─────► many decisions durable at once, and so on (see `publishing.py`)

Kafka answers an end when the decision is durable, and refuses the next request until the markers
are written; its clients then wait for 20 to 100 ms before they ask again. Here the answer waits for
the markers, as does any other request of the id that comes meanwhile: it takes one more sync. Where
it takes longer than a second, all get the answer that Kafka would give.

Requests of one id are served one after the other, in the order in which they came; those of
different ids at the same time. What was begun is done to the end, also when its client goes away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

from millstream.broker.groups.group import check_group_id
from millstream.broker.state.state_log import StateLog
from millstream.broker.transactions import state_machine as machine
from millstream.broker.transactions.marker_writer import MarkedGroups, MarkedTopics, MarkerWriter
from millstream.broker.transactions.producer_ids import ProducerIds
from millstream.broker.transactions.publication import PublicationProposal, PublicationResult
from millstream.broker.transactions.publications import PublicationClock, Publications
from millstream.broker.transactions.transaction import TransactionMetadata, TransactionProducer
from millstream.broker.transactions.transaction_publisher import TransactionPublisher
from millstream.broker.transactions.transaction_slot import TransactionSlot
from millstream.broker.transactions.transaction_store import TransactionStore
from millstream.clock import Clock, Timers
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidProducerMapping,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)
from millstream.records.topic_partition import TopicPartition

T = TypeVar("T")

GROUPS_MAX = 1_000
"""Groups in one transaction: each is written again with every change of it."""

NO_PRODUCER = -1
"""As an id or an epoch: none."""


class TransactionCoordinator:
    """All transactional ids. Lives on one event loop; `start` it there before its first request."""

    def __init__(
        self,
        state_log: StateLog,
        topics: MarkedTopics,
        groups: MarkedGroups,
        producer_ids: ProducerIds,
        *,
        clock: Clock,
        steady: PublicationClock,
        timers: Timers,
        config: BrokerConfig,
    ) -> None:
        self._topics = topics
        self._producer_ids = producer_ids
        self._clock = clock
        self._timeout_ms_max = config.transaction_timeout_ms_max
        self.publications = Publications(steady, expiration_ms=config.publication_expiration_ms)
        """Who has published what, to look at."""
        self._ledger = TransactionStore(
            state_log,
            MarkerWriter(topics, groups, timers),
            self.publications,
            clock=clock,
            timers=timers,
            expiration_ms=config.transactional_id_expiration_ms,
        )
        self._publishing = TransactionPublisher(self._ledger, clock)

    def start(self) -> None:
        """Take up what the state log holds; what was being ended goes on in the background."""
        self._ledger.start()

    async def close(self) -> None:
        """Finish what was begun, except markers: they are written after the next start.

        Close this before the topics, the groups and the state log.
        """
        await self._ledger.close()

    # What clients ask for.

    async def init_producer(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = NO_PRODUCER,
    ) -> TransactionProducer:
        """Return who the client is from now on; older producers of its id fail from now on.

        Without a transactional id, it is a producer that nobody knows. `producer_id` and
        `producer_epoch` are what a client was that goes on after an error (KIP-360).
        """
        if (producer_id == NO_PRODUCER) != (producer_epoch == NO_PRODUCER):
            raise InvalidRequest(
                f"producer id is {producer_id} and epoch {producer_epoch}: both or none are needed"
            )
        if transactional_id is None:
            return TransactionProducer(await self._producer_ids.take(), 0)
        _check_id(transactional_id)
        if not 0 < timeout_ms <= self._timeout_ms_max:
            raise InvalidTransactionTimeout(
                f"timeout is {timeout_ms} ms, allowed is 1 to {self._timeout_ms_max}"
            )
        is_known = producer_id != NO_PRODUCER
        expected = TransactionProducer(producer_id, producer_epoch) if is_known else None
        return await self._ledger.do(self._init_producer(transactional_id, timeout_ms, expected))

    async def _init_producer(
        self, transactional_id: str, timeout_ms: int, expected: TransactionProducer | None
    ) -> TransactionProducer:
        async with self._ledger.turn(self._ledger.slot_for(transactional_id)) as slot:
            while True:
                fresh_id = await self._fresh_id(slot)
                transaction = machine.init(
                    slot.transaction,
                    transactional_id,
                    timeout_ms=timeout_ms,
                    expected=expected,
                    fresh_id=fresh_id,
                    now_ms=self._clock.wall_ms(),
                )
                await self._ledger.store(slot, transaction)
                if not transaction.is_ending:
                    return transaction.producer
                await self._ledger.settle(slot)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[tuple[str, int]],
    ) -> None:
        """Make partitions part of the transaction, and begin one where none is open.

        Raises `UnknownTopic`, and adds nothing, where one of them does not exist.
        """
        added = frozenset(TopicPartition(*where) for where in partitions)
        for where in added:
            self._topics.partition(where.topic, where.partition)
        producer = TransactionProducer(producer_id, producer_epoch)
        await self._ledger.do(self._add(transactional_id, producer, partitions=added))

    async def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
    ) -> None:
        """Make a group's offsets part of the transaction, and begin one where none is open."""
        groups = frozenset({check_group_id(group_id)})
        producer = TransactionProducer(producer_id, producer_epoch)
        await self._ledger.do(self._add(transactional_id, producer, groups=groups))

    async def _add(
        self,
        transactional_id: str,
        producer: TransactionProducer,
        *,
        partitions: frozenset[TopicPartition] = frozenset(),
        groups: frozenset[str] = frozenset(),
    ) -> None:
        async with self._turn(transactional_id) as slot:
            await self._add_in_turn(slot, producer, partitions, groups)

    async def _add_in_turn(
        self,
        slot: TransactionSlot,
        producer: TransactionProducer,
        partitions: frozenset[TopicPartition],
        groups: frozenset[str],
    ) -> None:
        transaction = machine.add(
            slot.transaction,
            producer,
            partitions=partitions,
            groups=groups,
            now_ms=self._clock.wall_ms(),
        )
        if (count := len(transaction.groups)) > GROUPS_MAX:
            raise InvalidRequest(f"{count} groups in one transaction, limit is {GROUPS_MAX}")
        await self._ledger.store(slot, transaction)

    async def stage_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
        stage: Callable[[], Awaitable[T]],
        *,
        may_add: bool,
        is_abortable: bool = False,
    ) -> T:
        """Have `stage` put offsets of a group aside until the transaction ends; return its result.

        The transaction does not end meanwhile. Where the group is not part of it yet, `may_add`
        makes it so (KIP-890); otherwise that is an error, as `ensure_partitions` tells.
        """
        groups = frozenset({check_group_id(group_id)})
        producer = TransactionProducer(producer_id, producer_epoch)

        async def work() -> T:
            async with self._turn(transactional_id) as slot:
                if not (machine.check(slot.transaction, producer).groups >= groups or may_add):
                    raise _not_part(f"group {group_id!r}", is_abortable=is_abortable)
                await self._add_in_turn(slot, producer, frozenset(), groups)
                return await stage()

        return await self._ledger.do(work())

    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        is_bumping: bool,
    ) -> TransactionProducer:
        """Commit or abort; return who the client is from now on. `is_bumping`: a new epoch."""
        producer = TransactionProducer(producer_id, producer_epoch)

        async def work() -> TransactionProducer:
            async with self._turn(transactional_id) as slot:
                fresh_id = await self._fresh_id(slot) if is_bumping else None
                transaction = machine.end(
                    slot.transaction,
                    producer,
                    is_commit=is_commit,
                    is_bumping=is_bumping,
                    fresh_id=fresh_id,
                    now_ms=self._clock.wall_ms(),
                )
                await self._ledger.store(slot, transaction)
            await self._ledger.settle(slot)
            return transaction.successor

        return await self._ledger.do(work())

    async def publish(self, proposal: PublicationProposal) -> PublicationResult:
        """Commit transactions of many producers, all or none, and once for each sequence.

        Durable when it is answered. Where the sequence was published before, the chosen ones are
        aborted instead, and the answer says so. Raises, and changes nothing, where one of the
        chosen cannot be committed: it is not open, or its producer was overtaken.
        """
        proposal.check()
        return await self._ledger.do(self._publishing.publish(proposal))

    # What the produce path asks for.

    def is_ongoing(self, producer_id: int, producer_epoch: int, topic: str, partition: int) -> bool:
        """Tell whether a batch of this producer may go to this partition, without waiting.

        Ask for every transactional batch, in the turn of the loop in which it is appended: that is
        what keeps an overtaken producer out of partitions that its successor did not write to.
        """
        slot = self._ledger.ongoing.get(producer_id)
        return slot is not None and slot.has(producer_epoch, (topic, partition))

    async def ensure_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[tuple[str, int]],
        *,
        may_add: bool,
        is_abortable: bool = False,
    ) -> None:
        """Return when `is_ongoing` holds for all of `partitions`, or held for a moment.

        Someone else may have ended the transaction before the caller has its turn of the loop,
        so ask again there.

        `may_add` adds what is missing (KIP-890, Produce 12 and later). Otherwise that is an error:
        `TransactionAborted` for clients that answer it with an abort (`is_abortable`, Produce 11),
        `InvalidTransactionState` for older ones. Where a request names no transactional id, that
        of the producer's open transaction counts.
        """
        producer = TransactionProducer(producer_id, producer_epoch)
        try:
            if transactional_id is None:
                transactional_id = self._id_of(producer_id)
            elif may_add:
                await self.add_partitions(transactional_id, *producer, partitions)
                return
            missing = await self.missing_partitions(transactional_id, *producer, partitions)
        except ProducerFenced as error:
            raise InvalidProducerEpoch(str(error)) from error  # What producers expect here.
        if missing:
            topic, partition = min(missing)
            raise _not_part(f"partition {topic}-{partition}", is_abortable=is_abortable)

    async def missing_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[tuple[str, int]],
    ) -> set[tuple[str, int]]:
        """Return which of `partitions` are not part of the producer's open transaction."""
        async with self._turn(transactional_id) as slot:
            transaction = machine.check(
                slot.transaction, TransactionProducer(producer_id, producer_epoch)
            )
            return {where for where in partitions if where not in transaction.partitions}

    # What people ask for.

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return what is known of an id; while it is ending, with the partitions that are left."""
        slot = self._ledger.slots.get(_check_id(transactional_id))
        if slot is None or slot.transaction is None:
            raise UnknownTransaction(f"transactional id {transactional_id!r} is not known")
        if slot.transaction.is_ending:
            return replace(slot.transaction, partitions=frozenset(slot.unmarked))
        return slot.transaction

    def all(self) -> list[TransactionMetadata]:
        """Return all ids that are known, with the transaction that each has or had."""
        slots = self._ledger.slots.values()
        return [slot.transaction for slot in slots if slot.transaction is not None]

    def _turn(self, transactional_id: str) -> AbstractAsyncContextManager[TransactionSlot]:
        return self._ledger.turn(self._ledger.slot(_check_id(transactional_id)))

    def _id_of(self, producer_id: int) -> str:
        slot = self._ledger.ongoing.get(producer_id)
        if slot is None:
            raise InvalidProducerMapping(f"producer {producer_id} has no transaction open")
        return slot.transactional_id

    async def _fresh_id(self, slot: TransactionSlot) -> int | None:
        if machine.needs_fresh_id(slot.transaction):
            return await self._producer_ids.take()
        return None


def _check_id(transactional_id: str) -> str:
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty")
    return transactional_id


def _not_part(what: str, *, is_abortable: bool) -> InvalidTransactionState | TransactionAborted:
    kind = TransactionAborted if is_abortable else InvalidTransactionState
    return kind(f"{what} is not part of the transaction")
