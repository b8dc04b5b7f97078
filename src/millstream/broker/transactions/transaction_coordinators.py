"""All transactional ids that this node coordinates, and the way to those of other nodes.

A request about one id goes to `of(transactional_id)`, the coordinator of its internal partition.
What partitions and groups of this node ask about transactions comes here, because the coordinator
may be another node. See `state/routing.py` for which one it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import TypeVar

from millstream.broker.state.coordinators import CoordinatorContext, Coordinators
from millstream.broker.state.internal_partitions import TRANSACTIONS
from millstream.broker.state.routing import index_of_transactional_id, publisher_part
from millstream.broker.state.state_clock import StateClock
from millstream.broker.state.state_log import StateLog
from millstream.broker.transactions.coordinator import TransactionCoordinator
from millstream.broker.transactions.marker_sender import MarkedTopics, MarkerSender
from millstream.broker.transactions.marker_writer import MarkedGroups
from millstream.broker.transactions.producer_ids import ProducerIds
from millstream.broker.transactions.publication import PublicationProposal, PublicationResult
from millstream.broker.transactions.publications import (
    PublicationClock,
    Publications,
    Publisher,
)
from millstream.broker.transactions.stored_dates import stored_dates
from millstream.broker.transactions.transaction import TransactionMetadata, TransactionProducer
from millstream.broker.transactions.transaction_verifier import (
    TransactionParts,
    TransactionVerifier,
    ensure_partitions,
    not_part,
)
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    InvalidProducerMapping,
    InvalidRequest,
)

T = TypeVar("T")

HELD_BACK_MS = 60_000
"""How long a transaction is open before it is reported: the default timeout of Kafka's clients."""

VERIFIED_MAX = 10_000
"""Producers whose transactional ids are remembered. One that is forgotten is verified again."""

Verify = Callable[[], Awaitable[None]]
"""Returns if a transaction is open, or raises."""


class TransactionCoordinators:
    """The transaction coordinators of a node. Owned by one event loop."""

    def __init__(
        self,
        context: CoordinatorContext,
        topics: MarkedTopics,
        groups: MarkedGroups,
        producer_ids: ProducerIds,
        *,
        config: BrokerConfig,
        retention_clock: PublicationClock | None,
        markers: MarkerSender | None = None,
        verifier: TransactionVerifier | None = None,
    ) -> None:
        """Make them.

        `retention_clock` is that of a lone node; without one, the age of publications is counted in
        their internal partition. `markers` and `verifier` reach other nodes.
        """
        self._topics = topics
        self._groups = groups
        self._producer_ids = producer_ids
        self._config = config
        self._clock = context.clock
        self._retention_clock = retention_clock
        self._timers = context.timers
        self._markers = markers
        self._verifier = verifier
        self._verified: dict[int, str] = {}
        """Transactional ids of producers, of which other nodes have said that they belong together;
        the oldest first."""
        self.coordinators = Coordinators(
            TRANSACTIONS, context, self._make, index_of=index_of_transactional_id
        )
        self.of = self.coordinators.of
        """Returns the coordinator of an id; raises if that is not this node."""

    async def open(self) -> None:
        """Load the ids that this node coordinates, now and after each election."""
        await self.coordinators.open()

    async def close(self) -> None:
        """Complete what was started, except for markers: they are written after the next start.

        Close this before the topics and the groups.
        """
        await self.coordinators.close()

    def _make(self, state: StateLog, epoch: int) -> TransactionCoordinator:
        return TransactionCoordinator(
            state,
            self._topics,
            self._groups,
            self._producer_ids,
            clock=self._clock,
            retention_clock=self._retention_clock
            or StateClock(state, self._clock, stored_dates(state.entries)),
            timers=self._timers,
            config=self._config,
            markers=self._markers,
            epoch=epoch,
        )

    # Requests of clients.

    async def init_producer(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> TransactionProducer:
        """Return the client's new producer id and epoch. See `TransactionCoordinator`.

        Without a transactional id, any node answers.
        """
        if transactional_id is None:
            if (producer_id < 0) != (producer_epoch < 0):
                raise InvalidRequest(
                    "producer id and epoch must be given together,"
                    f" got {producer_id} and {producer_epoch}"
                )
            return TransactionProducer(await self._producer_ids.take(), 0)
        coordinator = self.of(transactional_id)
        return await coordinator.init_producer(
            transactional_id, timeout_ms, producer_id, producer_epoch
        )

    async def publish(self, proposal: PublicationProposal) -> PublicationResult:
        """Commit transactions of many producers, all or none, once for each sequence.

        See `TransactionCoordinator`. In a cluster, their ids must be those of the publisher's
        tasks, so that one coordinator decides about all of them.
        """
        proposal.check()
        coordinator = self.of(proposal.publisher)
        expected = self.coordinators.index_of(proposal.publisher)
        for transactional_id, _ in proposal.chosen if self.coordinators.count > 1 else ():
            if self.coordinators.index_of(transactional_id) != expected:
                raise InvalidRequest(
                    f"transactional id {transactional_id!r} has another coordinator than publisher"
                    f" {proposal.publisher!r}; it must be"
                    f" {publisher_part(proposal.publisher)!r} followed by numbers, each after a"
                    " slash"
                )
        return await coordinator.publish(proposal)

    def renew(self, publisher: str, prefix: str, duration_ms_max: int) -> int:
        """Start the timeouts of open transactions below a prefix again.

        See `TransactionCoordinator`. As in a publication, the prefix begins with the publisher,
        whose coordinator decides.
        """
        if not publisher or not prefix.startswith(publisher):
            raise InvalidRequest(
                f"prefix {prefix!r} does not start with the publisher {publisher!r}"
            )
        return self.of(publisher).renew(prefix, duration_ms_max)

    # Requests of partitions and groups.

    def is_ongoing(
        self,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        transactional_id: str | None = None,
    ) -> bool:
        """Return, without waiting, whether a batch of this producer may be appended here.

        With a transactional id, the transaction has to be one of that id: a client proves its right
        to the id, and could name the producer of another one.

        Call this for every transactional batch, in the turn of the event loop in which it is
        appended: that keeps a fenced producer out of partitions that its successor did not write
        to. It is false if another node coordinates the transaction.
        """
        return any(
            coordinator.is_ongoing(producer_id, producer_epoch, topic, partition)
            and transactional_id in (None, coordinator.id_of(producer_id))
            for coordinator in self.coordinators.ready()
        )

    def is_verified(self, transactional_id: str | None, producer_id: int) -> bool:
        """Return whether another node has said that a producer is that of an id it coordinates."""
        return transactional_id is not None and self._verified.get(producer_id) == transactional_id

    def is_elsewhere(self, transactional_id: str | None) -> bool:
        """Return whether another node coordinates an id."""
        return (
            self._verifier is not None
            and transactional_id is not None
            and not self.coordinators.is_here(transactional_id)
        )

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
        """Return when all of `partitions` are part of the producer's open transaction.

        If this node coordinates it, it may be ended before the caller gets its turn of the event
        loop, so check `is_ongoing` again there. If not, the partition tells by its markers (see
        `expected_marker_offset` of `PartitionAppender.append`). Without a transactional id, that of
        the producer's open transaction is used. See `transaction_verifier.ensure_partitions`.
        """
        if transactional_id is None:
            transactional_id, may_add = self._id_of(producer_id), False
        await ensure_partitions(
            self._verifier_of(transactional_id),
            transactional_id,
            TransactionProducer(producer_id, producer_epoch),
            partitions,
            may_add=may_add,
            is_abortable=is_abortable,
        )
        if self.is_elsewhere(transactional_id):
            self._verified.pop(producer_id, None)
            self._verified[producer_id] = transactional_id
            if len(self._verified) > VERIFIED_MAX:
                del self._verified[next(iter(self._verified))]

    async def stage_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
        stage: Callable[[Verify | None], Awaitable[T]],
        *,
        may_add: bool,
        is_abortable: bool = False,
    ) -> T:
        """Call `stage` to set a group's offsets aside until the transaction ends.

        See `TransactionCoordinator`. If another node coordinates the transaction, it may end at any
        time: then `stage` gets a function that verifies it.
        """
        if not self.is_elsewhere(transactional_id):
            return await self.of(transactional_id).stage_offsets(
                transactional_id,
                producer_id,
                producer_epoch,
                group_id,
                lambda: stage(None),
                may_add=may_add,
                is_abortable=is_abortable,
            )
        producer = TransactionProducer(producer_id, producer_epoch)
        parts = TransactionParts(groups=frozenset({group_id}))

        async def verify() -> None:
            verifier = self._verifier_of(transactional_id)
            missing = await verifier.verify(transactional_id, producer, parts, may_add=may_add)
            if missing.groups:
                raise not_part(f"group {group_id!r}", is_abortable=is_abortable)

        return await stage(verify)

    def _verifier_of(self, transactional_id: str) -> TransactionVerifier:
        if self._verifier is not None and self.is_elsewhere(transactional_id):
            return self._verifier
        return self.of(transactional_id)

    def _id_of(self, producer_id: int) -> str:
        for coordinator in self.coordinators.ready():
            if (transactional_id := coordinator.id_of(producer_id)) is not None:
                return transactional_id
        raise InvalidProducerMapping(f"producer {producer_id} has no open transaction")

    # All ids.

    @property
    def greatest_producer_id(self) -> int:
        """The greatest producer id of all transactional ids of this node; -1 if there is none."""
        loaded = self.coordinators.ready()
        return max((coordinator.greatest_producer_id for coordinator in loaded), default=-1)

    def listed(self, *, open_longer_than_ms: int = -1) -> list[TransactionMetadata]:
        """List the ids of this node; raises `CoordinatorLoading` if some are not loaded.

        With a time that is not negative, only those whose transaction has been open for longer.
        """
        loaded = self.coordinators.loaded()
        if open_longer_than_ms < 0:
            return [each for coordinator in loaded for each in coordinator.all()]
        return [
            each
            for coordinator in loaded
            for each in coordinator.ongoing()
            if coordinator.age_ms(each) > open_longer_than_ms
        ]

    def ages_ms(self) -> list[tuple[TransactionMetadata, int]]:
        """Return the open transactions that are loaded, and how long each has been open."""
        return [
            (each, coordinator.age_ms(each))
            for coordinator in self.coordinators.ready()
            for each in coordinator.ongoing()
        ]

    def held_back(self) -> Iterator[str]:
        """Yield a sentence for each transaction that has held back readers for long.

        The one that began first comes first.
        """
        opened = [each for each in self.ages_ms() if each[1] >= HELD_BACK_MS and each[0].partitions]
        for transaction, age_ms in sorted(opened, key=lambda each: -each[1]):
            name, partitions = transaction.transactional_id, sorted(transaction.partitions)
            others = f" and {len(partitions) - 1} other partitions" if len(partitions) > 1 else ""
            yield (
                f"transactional id {name!r} (producer {transaction.producer.id}) has been open for"
                f" {age_ms // 1000} s, and holds back readers of committed records of"
                f" {partitions[0]}{others}"
            )

    def all(self) -> list[TransactionMetadata]:
        """Return the ids that are loaded, for metrics."""
        return [each for coordinator in self.coordinators.ready() for each in coordinator.all()]

    def publications(self) -> list[Publications]:
        """Return the publications of all coordinators that are loaded."""
        return [coordinator.publications for coordinator in self.coordinators.ready()]

    def publishers(self) -> list[tuple[Publications, Publisher]]:
        """List all publishers of this node, each with the publications that it is one of.

        Raises `CoordinatorLoading` if some are not loaded.
        """
        return [
            (coordinator.publications, publisher)
            for coordinator in self.coordinators.loaded()
            for publisher in coordinator.publications.all()
        ]
