"""Publishing: committing transactions of many producers by one decision, once.

    each task     init, produce ──► an open transaction of its own
    the driver    publish ──► one put: every decision, and that this sequence is done
                                │
                                └─► markers, as for any other decision ──► response

- A put is all or nothing: either all chosen transactions are committed and the sequence is
  recorded, or neither. A crash before the put leaves them open, to be published or aborted; after a
  crash behind it, the markers are written.
- The same sequence again, or a lower one, commits nothing. Records written for it a second time
  are aborted.
- Every producer of a publication is fenced, whether it was committed or aborted: whatever it sends
  later is rejected. So a task that is thought to be dead cannot write into anything that will be
  committed.
- Locks are taken in one order: the publisher's, then those of transactional ids by name. So no two
  publications wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from millstream.broker.fair_iteration import ITEMS_PER_TURN, iterate_fairly
from millstream.broker.transactions import state_machine
from millstream.broker.transactions.publication import (
    CLIENT_ID_LENGTH_MAX,
    Publication,
    PublicationProposal,
    PublicationResult,
)
from millstream.broker.transactions.publications import Publisher
from millstream.broker.transactions.transaction import TransactionMetadata, TransactionProducer
from millstream.broker.transactions.transaction_slot import TransactionSlot
from millstream.broker.transactions.transaction_store import TransactionStore
from millstream.clock import Clock
from millstream.errors import (
    ConcurrentTransaction,
    InvalidProducerMapping,
    InvalidTransactionState,
    MillstreamError,
    ProducerFenced,
)

logger = logging.getLogger(__name__)

_REFUSALS = (
    ConcurrentTransaction,
    InvalidProducerMapping,
    InvalidTransactionState,
    ProducerFenced,
)
"""Errors that mean that a transaction cannot be committed."""


class TransactionPublisher:
    """Publishes transactions of a store. One event loop owns it."""

    def __init__(self, store: TransactionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def publish(self, proposal: PublicationProposal) -> PublicationResult:
        """Carry out a proposal; return when all transactions have ended, or that takes too long."""
        publications = self._store.publications
        async with publications.lock(proposal.publisher) as publisher:
            publisher.client_id = proposal.client_id[:CLIENT_ID_LENGTH_MAX]
            is_repeated = proposal.sequence <= publisher.last_sequence
            is_deciding = proposal.is_commit and not is_repeated
            chosen = self._chosen(proposal, must_be_known=is_deciding)
            below = self._below(proposal.prefix)
            busy = filter(_is_busy, below)
            concerned = sorted({*chosen, *busy}, key=lambda slot: slot.transactional_id)
            async with self._store.lock_all(concerned):
                if is_deciding:
                    await self._decide(proposal, publisher, chosen)
                elif proposal.is_commit:
                    publications.repeated += 1
                left = [
                    slot
                    for slot in concerned
                    if slot in below or (not is_deciding and _is_of(slot, chosen[slot]))
                ]
                failures = await self._abandon(left)
            last_sequence = publisher.last_sequence
        if failures and not is_deciding:
            raise failures[0]
        for slot in concerned:
            await self._store.settle(slot)
        if proposal.is_final:
            await self._store.forget_ended(below)
        return PublicationResult(is_repeated=is_repeated, last_sequence=last_sequence)

    def _chosen(
        self, proposal: PublicationProposal, *, must_be_known: bool
    ) -> dict[TransactionSlot, TransactionProducer]:
        """Return the slots of the chosen transactions, and the producer of each."""
        slots: dict[TransactionSlot, TransactionProducer] = {}
        for transactional_id, producer in proposal.chosen:
            slot = self._store.slots.get(transactional_id)
            if slot is not None:
                slots[slot] = producer
            elif must_be_known:
                raise InvalidProducerMapping(f"transactional id {transactional_id!r} is unknown")
        return slots

    def _below(self, prefix: str) -> frozenset[TransactionSlot]:
        """Return the slots of all ids with a prefix that can be changed."""
        return frozenset(
            slot
            for name, slot in self._store.slots.items()
            if prefix and name.startswith(prefix) and not slot.is_uncertain
        )

    async def _decide(
        self,
        proposal: PublicationProposal,
        publisher: Publisher,
        chosen: Mapping[TransactionSlot, TransactionProducer],
    ) -> None:
        """Commit all chosen transactions; if one cannot be committed, raise and change nothing."""
        decided = {
            slot: self._decision(slot, producer)
            async for slot, producer in iterate_fairly(chosen.items())
        }
        publication = Publication(
            publisher=proposal.publisher,
            sequence=proposal.sequence,
            update_ms=self._store.publications.now_ms(),
        )
        await self._store.save_published(publisher, publication, decided)
        self._store.publications.published += 1

    def _decision(
        self, slot: TransactionSlot, producer: TransactionProducer
    ) -> TransactionMetadata:
        try:
            return state_machine.publish(slot.transaction, producer, now_ms=self._clock.wall_ms())
        except _REFUSALS as error:
            name = slot.transactional_id
            raise type(error)(f"cannot commit transactional id {name!r}: {error}") from error

    async def _abandon(self, slots: Sequence[TransactionSlot]) -> list[MillstreamError]:
        """Abort and fence open transactions; return the errors.

        A transaction that cannot be aborted now is aborted when it times out.
        """
        failures: list[MillstreamError] = []
        for start in range(0, len(slots), ITEMS_PER_TURN):
            piece = map(self._abort, slots[start : start + ITEMS_PER_TURN])
            for error in await asyncio.gather(*piece, return_exceptions=True):
                if isinstance(error, MillstreamError):
                    failures.append(error)
                elif error is not None:
                    raise error
        if failures:
            count, first = len(failures), failures[0]
            logger.warning(
                "%d transactions could not be aborted; the first error: %s", count, first
            )
        return failures

    async def _abort(self, slot: TransactionSlot) -> None:
        if slot.transaction is not None:
            aborted = state_machine.abandon(slot.transaction, now_ms=self._clock.wall_ms())
            await self._store.save(slot, aborted)


def _is_busy(slot: TransactionSlot) -> bool:
    """Return whether a transaction is open, is ending or may be about to begin."""
    return slot.users > 0 or not (slot.transaction is not None and slot.transaction.is_complete)


def _is_of(slot: TransactionSlot, producer: TransactionProducer) -> bool:
    return slot.transaction is not None and slot.transaction.producer == producer
