"""State machine of one transactional id.

                init                 add            end, publish, abandon, timed out, init
    (unknown) ------> Empty ------------> Ongoing -------------------------> Prepare{Commit,Abort}
                        ^                 ^  |  ^                                      |
                        | init            +--+  | add                                  | complete
                        |                 add   |                                      v
                        +-------------------- Complete{Commit,Abort} <-----------------+

Every event is a function from the current value to the next. It raises if the event has to be
rejected, and returns the very same value if there is nothing to do, as for a repeated request. The
caller has two duties, in this order: make a new value durable before anyone acts on it, and if it
`is_ending`, have the markers written and then `complete` it. Nothing here waits, reads a clock or
draws a random number.

Producer id and epoch alone decide who may act for the transactional id:

1. There is exactly one current producer. Older ones were fenced, newer ones never assigned.
2. A step after which the same client continues with a new epoch stores the producer that it
   replaces as `previous`, but only until the next transaction begins. This distinguishes a repeated
   request whose response was lost from a late one, which may not change anything any more.
3. Epochs end at 32,767. Clients get at most the one before, so that there is always one left for
   fencing; after that a client gets a fresh producer id with epoch 0.

With KIP-890 the client gets a new epoch with every end, here called bumping: a delayed request of
one transaction has an epoch that the next one rejects. Clients that send an EndTxn before version 5
keep their epoch: its response has no field for a new one, they would go on with the old one, and
that would be fenced. What protects their next transaction is that the batches of an ended one are
no duplicates of its batches (`partition/producers`).
"""

from __future__ import annotations

from dataclasses import replace

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
    ProducerFenced,
)
from millstream.records.topic_partition import TopicPartition

RESTORED_MS_MIN = 30_000
"""Time that clients have after a start of the coordinator to end or renew what is open: several
attempts of a client with a back-off of some seconds."""


def needs_fresh_id(transaction: TransactionMetadata | None) -> bool:
    """Return whether `init` and a bumping `end` require a `fresh_id`."""
    return transaction is None or transaction.is_exhausted


def init(
    transaction: TransactionMetadata | None,
    transactional_id: str,
    *,
    timeout_ms: int,
    expected: TransactionProducer | None,
    fresh_id: int | None,
    now_ms: int,
) -> TransactionMetadata:
    """Start a producer, or with `expected` continue after an error of its own (KIP-360).

    If a transaction is open, the returned value is that of its abort: complete it, then apply the
    event again. Otherwise the returned value has the client's producer, and all earlier ones are
    fenced.
    """
    if transaction is None:
        # A producer that expects to be known was forgotten. A fresh id fences nobody.
        return TransactionMetadata(
            transactional_id=transactional_id,
            producer=TransactionProducer(_required_fresh_id(fresh_id), 0),
            timeout_ms=timeout_ms,
            update_ms=now_ms,
        )
    if expected is not None and expected not in (transaction.successor, transaction.previous):
        raise _fenced_error(expected, transaction)
    if transaction.is_ending:
        raise _ending_error(transaction)
    if transaction.is_ongoing:
        return _fenced(transaction, previous=expected, now_ms=now_ms)
    is_repeated = expected is not None and expected == transaction.previous
    if is_repeated and _is_for_clients(transaction.producer):
        producer = (
            transaction.producer
        )  # The client has this epoch already, but the response was lost.
    else:
        producer = _bumped(transaction, fresh_id)
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer=producer,
        previous=expected,
        timeout_ms=timeout_ms,
        update_ms=now_ms,
    )


def check(
    transaction: TransactionMetadata | None, producer: TransactionProducer
) -> TransactionMetadata:
    """Return the transaction if `producer` may act for it, and it is not ending."""
    if transaction is None:
        raise _unknown_error()
    present = transaction.successor
    if producer.id != present.id:
        raise InvalidProducerMapping(
            f"the transactional id belongs to producer {present.id}, got {producer.id}"
        )
    if producer != present or not _is_for_clients(present):
        raise _fenced_error(producer, transaction)
    if transaction.is_ending:
        raise _ending_error(transaction)
    return transaction


def add(
    transaction: TransactionMetadata | None,
    producer: TransactionProducer,
    *,
    partitions: frozenset[TopicPartition] = frozenset(),
    groups: frozenset[str] = frozenset(),
    now_ms: int,
    clock_ms: int,
) -> TransactionMetadata:
    """Add partitions and groups to the transaction, which begins if none is open."""
    transaction = check(transaction, producer)
    if partitions <= transaction.partitions and groups <= transaction.groups:
        return transaction
    if not transaction.is_ongoing:
        return replace(
            transaction,
            state=TransactionState.ONGOING,
            previous=None,
            partitions=partitions,
            groups=groups,
            start_ms=now_ms,
            begun_ms=clock_ms,
            update_ms=now_ms,
        )
    return replace(
        transaction,
        partitions=transaction.partitions | partitions,
        groups=transaction.groups | groups,
        update_ms=now_ms,
    )


def end(
    transaction: TransactionMetadata | None,
    producer: TransactionProducer,
    *,
    is_commit: bool,
    is_bumping: bool,
    fresh_id: int | None,
    now_ms: int,
) -> TransactionMetadata:
    """Commit or abort at the request of the producer; the client continues as `successor`.

    A bumping client may abort if nothing is open: it cannot know whether a produce request that
    failed had begun the transaction, and gets a new epoch in either case.
    """
    if transaction is None:
        raise _unknown_error()
    if _is_repeated_end(transaction, producer, is_bumping=is_bumping):
        if is_commit != transaction.is_commit:
            raise _state_error(transaction, is_commit=is_commit)
        if transaction.is_ending:
            raise _ending_error(transaction)
        return transaction
    check(transaction, producer)
    if not transaction.is_ongoing and (is_commit or not is_bumping):
        raise _state_error(transaction, is_commit=is_commit)
    decided = replace(
        transaction,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        start_ms=transaction.start_ms if transaction.is_ongoing else now_ms,
        update_ms=now_ms,
    )
    if is_bumping:
        decided = replace(
            decided,
            producer=_next_epoch(producer),
            previous=producer,
            next_producer_id=_required_fresh_id(fresh_id) if transaction.is_exhausted else None,
        )
    if decided.partitions or decided.groups:
        return decided
    return complete(decided, now_ms=now_ms)  # There are no markers to write.


def time_out(transaction: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """Abort a transaction that was open for too long, and fence its producer.

    The producer may continue: it aborts, or initialises, and gets the epoch of the abort.
    """
    return _fenced(transaction, previous=transaction.producer, now_ms=now_ms)


def time_left_ms(transaction: TransactionMetadata, *, age_ms: int, is_restored: bool) -> int:
    """Return how long an open transaction may stay open, `age_ms` after it began.

    One that a start of the coordinator found open gets `RESTORED_MS_MIN` at least: its client could
    not end it while there was no coordinator, and could not renew it either.
    """
    left_ms = transaction.timeout_ms - age_ms
    if is_restored:
        left_ms = max(left_ms, min(RESTORED_MS_MIN, transaction.timeout_ms))
    return max(0, left_ms)


def renewed_ms(transaction: TransactionMetadata, *, age_ms: int, duration_ms_max: int) -> int:
    """Return how long an open transaction may stay open after it was renewed now."""
    return max(0, min(transaction.timeout_ms, duration_ms_max - age_ms))


def publish(
    transaction: TransactionMetadata | None, producer: TransactionProducer, *, now_ms: int
) -> TransactionMetadata:
    """Commit the transaction together with others, on behalf of no client.

    Its producer is fenced: anything that it still sends, even an EndTxn request, is rejected. No
    client continues from here; to use the id again, a producer is initialised.
    """
    transaction = check(transaction, producer)
    if not transaction.is_ongoing:
        raise _state_error(transaction, is_commit=True)
    return _fenced(transaction, is_commit=True, previous=None, now_ms=now_ms)


def abandon(transaction: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """Abort what is open and fence the producer, because nobody will commit what it writes.

    A producer that has not begun yet is fenced too, so that it never opens a transaction that
    nobody would end.
    """
    if transaction.is_ending or transaction.is_complete:
        return transaction
    fenced = _fenced(transaction, previous=None, now_ms=now_ms)
    return fenced if transaction.is_ongoing else complete(fenced, now_ms=now_ms)


def complete(transaction: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """Complete the transaction: all markers are written."""
    assert transaction.is_ending
    return replace(
        transaction,
        state=TransactionState.COMPLETE_COMMIT
        if transaction.is_commit
        else TransactionState.COMPLETE_ABORT,
        producer=transaction.successor,
        next_producer_id=None,
        partitions=frozenset(),
        groups=frozenset(),
        update_ms=now_ms,
    )


def _fenced(
    transaction: TransactionMetadata,
    *,
    previous: TransactionProducer | None,
    now_ms: int,
    is_commit: bool = False,
) -> TransactionMetadata:
    """End the transaction as a producer that no client has; `previous` may get it later."""
    assert transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING)
    return replace(
        transaction,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        producer=_next_epoch(transaction.producer),
        previous=previous,
        update_ms=now_ms,
    )


def _bumped(transaction: TransactionMetadata, fresh_id: int | None) -> TransactionProducer:
    """Return the producer of a client that takes over."""
    if transaction.is_exhausted:
        return TransactionProducer(_required_fresh_id(fresh_id), 0)
    return _next_epoch(transaction.producer)


def _next_epoch(producer: TransactionProducer) -> TransactionProducer:
    assert producer.epoch < EPOCH_MAX, "no client is given the last epoch"
    return TransactionProducer(producer.id, producer.epoch + 1)


def _is_for_clients(producer: TransactionProducer) -> bool:
    return producer.epoch <= CLIENT_EPOCH_MAX


def _is_repeated_end(
    transaction: TransactionMetadata, producer: TransactionProducer, *, is_bumping: bool
) -> bool:
    """Return whether an end comes from the same producer as the last end."""
    if not (transaction.is_ending or transaction.is_complete):
        return False
    if not is_bumping:
        return producer == transaction.producer
    return producer == transaction.previous and _is_for_clients(transaction.successor)


def _unknown_error() -> InvalidProducerMapping:
    return InvalidProducerMapping("the transactional id is unknown; initialise a producer first")


def _fenced_error(
    producer: TransactionProducer, transaction: TransactionMetadata
) -> ProducerFenced:
    present = transaction.successor
    return ProducerFenced(
        f"producer {producer.id} with epoch {producer.epoch} was replaced by"
        f" producer {present.id} with epoch {present.epoch}"
    )


def _ending_error(transaction: TransactionMetadata) -> ConcurrentTransaction:
    return ConcurrentTransaction(
        f"the previous transaction is still in state {transaction.state.value}"
    )


def _state_error(transaction: TransactionMetadata, *, is_commit: bool) -> InvalidTransactionState:
    wanted = "commit" if is_commit else "abort"
    return InvalidTransactionState(f"cannot {wanted} in state {transaction.state.value}")


def _required_fresh_id(fresh_id: int | None) -> int:
    assert fresh_id is not None, "required by `needs_fresh_id`"
    return fresh_id
