"""Asking the coordinator of a transactional id, which may be another node, about its transaction.

The leader of a partition admits a batch, and the coordinator of a group stages offsets, only for a
transaction that is open. Both ask the coordinator of the transactional id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from millstream.broker.transactions.transaction import TransactionProducer
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    ProducerFenced,
    TransactionAborted,
)
from millstream.records.topic_partition import TopicPartition


class TransactionParts(NamedTuple):
    """Partitions and groups of a transaction."""

    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()


NO_PARTS = TransactionParts()


class TransactionVerifier(Protocol):
    """Asks coordinators on other nodes. `cluster` implements it.

    On its own node, a coordinator answers by its method of the same name.
    """

    async def verify(
        self,
        transactional_id: str,
        producer: TransactionProducer,
        parts: TransactionParts,
        *,
        may_add: bool,
    ) -> TransactionParts:
        """Return those of `parts` that are not part of the producer's open transaction.

        With `may_add`, they are added to it (KIP-890), and none is returned. Raises what the
        coordinator raises, such as `ProducerFenced`; `NotCoordinator` if none is known now.
        """
        ...


async def ensure_partitions(
    verifier: TransactionVerifier,
    transactional_id: str,
    producer: TransactionProducer,
    partitions: Iterable[tuple[str, int]],
    *,
    may_add: bool,
    is_abortable: bool,
) -> None:
    """Return when all of `partitions` are part of the producer's open transaction.

    `may_add` adds missing partitions (KIP-890, Produce 12 and later). Otherwise they are an error:
    `TransactionAborted` for clients that answer it with an abort (`is_abortable`, Produce 11),
    `InvalidTransactionState` for older ones.
    """
    parts = TransactionParts(frozenset(TopicPartition(*each) for each in partitions))
    try:
        missing = await verifier.verify(transactional_id, producer, parts, may_add=may_add)
    except ProducerFenced as error:
        raise InvalidProducerEpoch(str(error)) from error  # What producers expect here.
    if missing.partitions:
        topic, partition = min(missing.partitions)
        raise not_part(f"partition {topic}-{partition}", is_abortable=is_abortable)


def not_part(what: str, *, is_abortable: bool) -> InvalidTransactionState | TransactionAborted:
    """Return the error for a partition or group that is not part of the open transaction.

    `is_abortable` is for clients that answer it with an abort.
    """
    kind = TransactionAborted if is_abortable else InvalidTransactionState
    return kind(f"{what} is not part of the transaction")
