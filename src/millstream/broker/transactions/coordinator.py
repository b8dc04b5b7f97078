"""Transaction coordinator: the transactional ids of one internal partition.

A lone node has one for all ids, the nodes of a cluster one for each internal partition that they
lead (`transaction_coordinators.py`).

The life of a transaction, and what is durable when:

    init, add ───► value durable ────► response
    end ─────────► decision durable ─► markers to all partitions and groups ─► response
                        │
                        └─ a crash from here on leads to the same outcome
    publish ─────► many decisions durable at once, and so on (see `transaction_publisher.py`)

Kafka responds to an end when the decision is durable, and rejects the next request until the
markers are written; its clients then wait for 20 to 100 ms before they retry. Here the response
waits for the markers, as does any other request of the id in the meantime: that takes one more
sync. If it takes longer than a second, all get the response that Kafka would give.

Requests of one id are processed one after the other, in the order in which they arrived; those of
different ids concurrently. A request that was started is completed even if its client disconnects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

from millstream.broker.groups.group import check_group_id
from millstream.broker.state.internal_partitions import LONE_EPOCH
from millstream.broker.state.state_log import StateLog
from millstream.broker.transactions import state_machine
from millstream.broker.transactions.marker_sender import LocalMarkers, MarkedTopics, MarkerSender
from millstream.broker.transactions.marker_writer import MarkedGroups, MarkerWriter
from millstream.broker.transactions.producer_ids import ProducerIds
from millstream.broker.transactions.publication import PublicationProposal, PublicationResult
from millstream.broker.transactions.publications import PublicationClock, Publications
from millstream.broker.transactions.transaction import TransactionMetadata, TransactionProducer
from millstream.broker.transactions.transaction_publisher import TransactionPublisher
from millstream.broker.transactions.transaction_slot import TransactionSlot
from millstream.broker.transactions.transaction_store import TransactionStore
from millstream.broker.transactions.transaction_verifier import (
    NO_PARTS,
    TransactionParts,
    ensure_partitions,
    not_part,
)
from millstream.clock import Clock, Timers
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    InvalidProducerMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    MillstreamError,
    UnknownTransaction,
)
from millstream.records.topic_partition import TopicPartition

T = TypeVar("T")

GROUPS_MAX = 1_000
"""Groups in one transaction: all are written again with every change of it."""

NO_PRODUCER = -1
"""Means no producer id, or no epoch."""


class TransactionCoordinator:
    """Coordinates transactional ids. One event loop owns it; call `start` first."""

    def __init__(
        self,
        state_log: StateLog,
        topics: MarkedTopics,
        groups: MarkedGroups,
        producer_ids: ProducerIds,
        *,
        clock: Clock,
        retention_clock: PublicationClock,
        timers: Timers,
        config: BrokerConfig,
        markers: MarkerSender | None = None,
        epoch: int = LONE_EPOCH,
    ) -> None:
        """Make the coordinator; `markers` if other nodes lead partitions too."""
        self._topics = topics
        self._producer_ids = producer_ids
        self._clock = clock
        self._timeout_ms_max = config.transaction_timeout_ms_max
        self.publications = Publications(
            retention_clock, expiration_ms=config.publication_expiration_ms
        )
        """The last publication of each publisher."""
        self._store = TransactionStore(
            state_log,
            MarkerWriter(markers or LocalMarkers(topics), groups, timers, coordinator_epoch=epoch),
            self.publications,
            clock=clock,
            timers=timers,
            expiration_ms=config.transactional_id_expiration_ms,
        )
        self._publisher = TransactionPublisher(self._store, clock)

    async def start(self) -> None:
        """Load the state log; transactions that were ending continue in the background.

        Other work of the event loop runs in between. Serve no request before this returns.
        """
        await self._store.start()

    def depose(self, error: MillstreamError) -> None:
        """Refuse requests, and stop writing markers: this node is not the coordinator any more.

        Requests that wait for the log fail with it.
        """
        self._store.depose(error)

    async def close(self) -> None:
        """Complete what was started, except for markers: they are written after the next start.

        Close this before the topics, the groups and the state log.
        """
        await self._store.close()

    # Requests of clients.

    async def init_producer(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = NO_PRODUCER,
    ) -> TransactionProducer:
        """Return the client's new producer id and epoch, and fence older producers of its id.

        Without a transactional id, the client is an idempotent producer and nothing is stored.
        `producer_id` and `producer_epoch` are the previous ones of a client that continues after an
        error (KIP-360).
        """
        if (producer_id == NO_PRODUCER) != (producer_epoch == NO_PRODUCER):
            raise InvalidRequest(
                "producer id and epoch must be given together,"
                f" got {producer_id} and {producer_epoch}"
            )
        if transactional_id is None:
            return TransactionProducer(await self._producer_ids.take(), 0)
        _check_id(transactional_id)
        if not 0 < timeout_ms <= self._timeout_ms_max:
            raise InvalidTransactionTimeout(
                f"timeout must be between 1 and {self._timeout_ms_max} ms, got {timeout_ms}"
            )
        is_known = producer_id != NO_PRODUCER
        expected = TransactionProducer(producer_id, producer_epoch) if is_known else None
        return await self._store.run(self._init_producer(transactional_id, timeout_ms, expected))

    async def _init_producer(
        self, transactional_id: str, timeout_ms: int, expected: TransactionProducer | None
    ) -> TransactionProducer:
        async with self._store.lock(self._store.slot_for(transactional_id)) as slot:
            while True:
                fresh_id = await self._fresh_id(slot)
                transaction = state_machine.init(
                    slot.transaction,
                    transactional_id,
                    timeout_ms=timeout_ms,
                    expected=expected,
                    fresh_id=fresh_id,
                    now_ms=self._clock.wall_ms(),
                )
                await self._store.save(slot, transaction)
                if not transaction.is_ending:
                    return transaction.producer
                await self._store.settle(slot)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[tuple[str, int]],
    ) -> None:
        """Add partitions to the transaction, and begin one if none is open.

        Raises `UnknownTopic`, and adds nothing, if one of them does not exist.
        """
        added = frozenset(TopicPartition(*partition) for partition in partitions)
        for partition in added:
            self._topics.partition(partition.topic, partition.partition)
        producer = TransactionProducer(producer_id, producer_epoch)
        await self._store.run(self._add(transactional_id, producer, TransactionParts(added)))

    async def add_offsets(
        self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
    ) -> None:
        """Add a group's offsets to the transaction, and begin one if none is open."""
        parts = TransactionParts(groups=frozenset({check_group_id(group_id)}))
        producer = TransactionProducer(producer_id, producer_epoch)
        await self._store.run(self._add(transactional_id, producer, parts))

    async def _add(
        self, transactional_id: str, producer: TransactionProducer, parts: TransactionParts
    ) -> None:
        async with self._turn(transactional_id) as slot:
            await self._add_locked(slot, producer, parts)

    async def _add_locked(
        self, slot: TransactionSlot, producer: TransactionProducer, parts: TransactionParts
    ) -> None:
        transaction = state_machine.add(
            slot.transaction,
            producer,
            partitions=parts.partitions,
            groups=parts.groups,
            now_ms=self._clock.wall_ms(),
            clock_ms=self.publications.now_ms(),
        )
        if (count := len(transaction.groups)) > GROUPS_MAX:
            raise InvalidRequest(f"transaction has {count} groups, limit is {GROUPS_MAX}")
        await self._store.save(slot, transaction)

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
        """Call `stage` to set a group's offsets aside until the transaction ends.

        Returns the result of `stage`. The transaction does not end in the meantime. If the group is
        not part of it yet, `may_add` adds it (KIP-890); otherwise that is an error, see
        `TransactionCoordinators.ensure_partitions`.
        """
        groups = frozenset({check_group_id(group_id)})
        producer = TransactionProducer(producer_id, producer_epoch)

        async def work() -> T:
            async with self._turn(transactional_id) as slot:
                if not (
                    state_machine.check(slot.transaction, producer).groups >= groups or may_add
                ):
                    raise not_part(f"group {group_id!r}", is_abortable=is_abortable)
                await self._add_locked(slot, producer, TransactionParts(groups=groups))
                return await stage()

        return await self._store.run(work())

    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        is_bumping: bool,
    ) -> TransactionProducer:
        """Commit or abort; return the client's producer id and epoch from now on.

        With `is_bumping` the client gets a new epoch.
        """
        producer = TransactionProducer(producer_id, producer_epoch)

        async def work() -> TransactionProducer:
            async with self._turn(transactional_id) as slot:
                fresh_id = await self._fresh_id(slot) if is_bumping else None
                transaction = state_machine.end(
                    slot.transaction,
                    producer,
                    is_commit=is_commit,
                    is_bumping=is_bumping,
                    fresh_id=fresh_id,
                    now_ms=self._clock.wall_ms(),
                )
                await self._store.save(slot, transaction)
            await self._store.settle(slot)
            return transaction.successor

        return await self._store.run(work())

    async def publish(self, proposal: PublicationProposal) -> PublicationResult:
        """Commit transactions of many producers, all or none, once for each sequence.

        Durable when this returns. If the sequence was published before, the chosen transactions are
        aborted instead, and the result says so. Raises, and changes nothing, if one of them cannot
        be committed: it is not open, or its producer was fenced.
        """
        proposal.check()
        return await self._store.run(self._publisher.publish(proposal))

    def renew(self, prefix: str, duration_ms_max: int) -> int:
        """Let open transactions whose id begins with `prefix` start their timeout again.

        Returns their number. No transaction stays open for longer than `duration_ms_max` in all,
        which must not be above the limit of the node. Nothing is stored: after a start of the
        coordinator, clients have time to renew again.
        """
        self._store.check_led()
        if not prefix:
            raise InvalidRequest("prefix must not be empty")
        if not 0 < duration_ms_max <= self._timeout_ms_max:
            raise InvalidTransactionTimeout(
                f"duration must be between 1 and {self._timeout_ms_max} ms, got {duration_ms_max}"
            )
        return self._store.renew(prefix, duration_ms_max)

    async def abort(self, transactional_id: str) -> TransactionMetadata:
        """Abort the open transaction of an id at the request of an operator; return its end.

        Its producer is fenced, and may continue as after a timeout. An id whose transaction is
        ending or has ended is returned as it is.
        """
        self.describe(transactional_id)

        async def work() -> TransactionMetadata:
            async with self._turn(transactional_id) as slot:
                if slot.transaction is not None and slot.transaction.is_ongoing:
                    now_ms = self._clock.wall_ms()
                    await self._store.save(
                        slot, state_machine.time_out(slot.transaction, now_ms=now_ms)
                    )
            await self._store.settle(slot)
            return self.describe(transactional_id)

        return await self._store.run(work())

    # Requests of the produce path.

    @property
    def greatest_producer_id(self) -> int:
        """The greatest producer id of all transactional ids; -1 if there is none."""
        transactions = (slot.transaction for slot in self._store.slots.values())
        ids = (
            max(transaction.producer.id, transaction.next_producer_id or 0)
            for transaction in transactions
            if transaction is not None
        )
        return max(ids, default=-1)

    def is_ongoing(self, producer_id: int, producer_epoch: int, topic: str, partition: int) -> bool:
        """Return, without waiting, whether a partition is part of the producer's transaction."""
        slot = self._store.ongoing.get(producer_id)
        return slot is not None and slot.has(producer_epoch, (topic, partition))

    async def verify(
        self,
        transactional_id: str,
        producer: TransactionProducer,
        parts: TransactionParts,
        *,
        may_add: bool,
    ) -> TransactionParts:
        """Return those of `parts` that are not part of the producer's open transaction.

        With `may_add`, they are added to it (KIP-890), and none is returned.
        """
        if may_add:
            for partition in parts.partitions:
                self._topics.partition(*partition)
            await self._store.run(self._add(transactional_id, producer, parts))
            return NO_PARTS
        async with self._turn(transactional_id) as slot:
            transaction = state_machine.check(slot.transaction, producer)
            return TransactionParts(
                parts.partitions - transaction.partitions, parts.groups - transaction.groups
            )

    async def ensure_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[tuple[str, int]],
        *,
        may_add: bool,
        is_abortable: bool = False,
    ) -> None:
        """Return when `is_ongoing` is true for all of `partitions`, or was for a moment.

        The transaction may be ended before the caller gets its turn of the event loop, so check
        again there. Without a transactional id, that of the producer's open transaction is used.
        """
        if transactional_id is None:
            transactional_id, may_add = self.id_of(producer_id), False
            if transactional_id is None:
                raise InvalidProducerMapping(f"producer {producer_id} has no open transaction")
        await ensure_partitions(
            self,
            transactional_id,
            TransactionProducer(producer_id, producer_epoch),
            partitions,
            may_add=may_add,
            is_abortable=is_abortable,
        )

    async def missing_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[tuple[str, int]],
    ) -> set[tuple[str, int]]:
        """Return the `partitions` that are not part of the producer's open transaction."""
        parts = TransactionParts(frozenset(TopicPartition(*each) for each in partitions))
        producer = TransactionProducer(producer_id, producer_epoch)
        missing = await self.verify(transactional_id, producer, parts, may_add=False)
        return set(missing.partitions)

    # Inspection.

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Return the state of an id; while it is ending, with the partitions without a marker."""
        self._store.check_led()
        slot = self._store.slots.get(_check_id(transactional_id))
        if slot is None or slot.transaction is None:
            raise UnknownTransaction(f"transactional id {transactional_id[:300]!r} is unknown")
        if slot.transaction.is_ending:
            return replace(slot.transaction, partitions=frozenset(slot.unmarked))
        return slot.transaction

    def age_ms(self, transaction: TransactionMetadata) -> int:
        """Return how long ago a transaction began, at least."""
        return self._store.age_ms(transaction)

    def ongoing(self) -> list[TransactionMetadata]:
        """Return all open transactions."""
        slots = self._store.ongoing.values()
        return [slot.transaction for slot in slots if slot.transaction is not None]

    def all(self) -> list[TransactionMetadata]:
        """Return all known ids, each with its open or last transaction."""
        slots = self._store.slots.values()
        return [slot.transaction for slot in slots if slot.transaction is not None]

    def _turn(self, transactional_id: str) -> AbstractAsyncContextManager[TransactionSlot]:
        return self._store.lock(self._store.slot(_check_id(transactional_id)))

    def id_of(self, producer_id: int) -> str | None:
        """Return the transactional id of a producer's open transaction, if it is one of these."""
        slot = self._store.ongoing.get(producer_id)
        return None if slot is None else slot.transactional_id

    async def _fresh_id(self, slot: TransactionSlot) -> int | None:
        if state_machine.needs_fresh_id(slot.transaction):
            return await self._producer_ids.take()
        return None


def _check_id(transactional_id: str) -> str:
    if not transactional_id:
        raise InvalidRequest("transactional id must not be empty")
    return transactional_id
