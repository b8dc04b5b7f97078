"""What happens to a transactional id.

                init                 add            end, publish, abandon, timed out, init
    (unknown) ------> Empty ------------> Ongoing -------------------------> Prepare{Commit,Abort}
                        ^                 ^  |  ^                                      |
                        | init            +--+  | add                                  | complete
                        |                 add   |                                      v
                        +-------------------- Complete{Commit,Abort} <-----------------+

Every event is a function from the present value to the next. It raises where the event has to be
refused, and returns the very same value where there is nothing to do, as for a repeated request.
Whoever calls has two duties, in this order: make a new value durable before anyone acts on it, and
where it `is_ending`, have the markers written and then `complete` it. Nothing here waits, reads a
clock or draws a number.

Who may speak for the id is decided by producer id and epoch alone:

1. Exactly one is the present producer. Older ones were fenced, newer ones never given out.
2. A step after which the same client goes on with a new epoch remembers the one that it replaces
   as `previous`, but only until the next transaction begins. So a repeated request whose answer was
   lost is told from a late one, which may not touch anything any more.
3. Epochs end at 32,767. Clients are given at most the one before, so that fencing always has one
   left; whoever would go beyond gets a fresh producer id with epoch 0.

With KIP-890 the client gets a new epoch with every end, here called bumping: a delayed request of
one transaction bears an epoch that the next one refuses. Clients before that keep their epoch, and
have only the guarantee that Kafka gave them.
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


def needs_fresh_id(transaction: TransactionMetadata | None) -> bool:
    """Tell whether `init` and a bumping `end` have to be given a `fresh_id`."""
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
    """A producer starts, or with `expected` goes on after an error of its own (KIP-360).

    Where a transaction is open, the value that comes back is that of its abort: complete it, then
    apply the event again. Otherwise the producer to answer with is that of the returned value, and
    all who came before are fenced.
    """
    if transaction is None:
        # Whoever expects to be known was forgotten here. A fresh id overtakes nobody.
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
        producer = transaction.producer  # It is the client's already; the answer was lost.
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
    """Return the transaction if `producer` may speak for it, and it is not being ended."""
    if transaction is None:
        raise _unknown_error()
    present = transaction.successor
    if producer.id != present.id:
        raise InvalidProducerMapping(
            f"the transactional id belongs to producer {present.id}, not {producer.id}"
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
) -> TransactionMetadata:
    """Partitions and groups become part of the transaction, which begins where none is open."""
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
    """The producer decides its transaction. The client goes on as the value's `successor`.

    A bumping client may abort where nothing is open: it cannot know whether a produce that failed
    had begun the transaction, and is given a new epoch in either case.
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
            producer=_above(producer),
            previous=producer,
            next_producer_id=_required_fresh_id(fresh_id) if transaction.is_exhausted else None,
        )
    if decided.partitions or decided.groups:
        return decided
    return complete(decided, now_ms=now_ms)  # There is nothing to mark.


def time_out(transaction: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """The transaction was open for too long: it is aborted, and what its producer sends refused.

    The producer may go on: it aborts, or initialises, and is given the epoch of the abort.
    """
    return _fenced(transaction, previous=transaction.producer, now_ms=now_ms)


def publish(
    transaction: TransactionMetadata | None, producer: TransactionProducer, *, now_ms: int
) -> TransactionMetadata:
    """The transaction is committed by one decision with others, in the name of no client.

    Its producer is fenced: what it still sends, be it an end of its own, comes too late. Nobody
    goes on from here; who uses the id again initialises a producer.
    """
    transaction = check(transaction, producer)
    if not transaction.is_ongoing:
        raise _state_error(transaction, is_commit=True)
    return _fenced(transaction, is_commit=True, previous=None, now_ms=now_ms)


def abandon(transaction: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """Nobody will commit what the producer writes: what is open is aborted, and it is fenced.

    A producer that has not begun yet is fenced too, so that it never opens what nobody would end.
    """
    if transaction.is_ending or transaction.is_complete:
        return transaction
    fenced = _fenced(transaction, previous=None, now_ms=now_ms)
    return fenced if transaction.is_ongoing else complete(fenced, now_ms=now_ms)


def complete(transaction: TransactionMetadata, *, now_ms: int) -> TransactionMetadata:
    """All markers are written."""
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
    """End it in the name of a producer that no client has been given; `previous` may be, later."""
    assert transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING)
    return replace(
        transaction,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        producer=_above(transaction.producer),
        previous=previous,
        update_ms=now_ms,
    )


def _bumped(transaction: TransactionMetadata, fresh_id: int | None) -> TransactionProducer:
    """Return who a client becomes that takes over."""
    if transaction.is_exhausted:
        return TransactionProducer(_required_fresh_id(fresh_id), 0)
    return _above(transaction.producer)


def _above(producer: TransactionProducer) -> TransactionProducer:
    assert producer.epoch < EPOCH_MAX, "no client is given the last epoch"
    return TransactionProducer(producer.id, producer.epoch + 1)


def _is_for_clients(producer: TransactionProducer) -> bool:
    return producer.epoch <= CLIENT_EPOCH_MAX


def _is_repeated_end(
    transaction: TransactionMetadata, producer: TransactionProducer, *, is_bumping: bool
) -> bool:
    """Tell whether an end comes from whom the last end came from."""
    if not (transaction.is_ending or transaction.is_complete):
        return False
    if not is_bumping:
        return producer == transaction.producer
    return producer == transaction.previous and _is_for_clients(transaction.successor)


def _unknown_error() -> InvalidProducerMapping:
    return InvalidProducerMapping("the transactional id is not known; initialise a producer first")


def _fenced_error(
    producer: TransactionProducer, transaction: TransactionMetadata
) -> ProducerFenced:
    present = transaction.successor
    return ProducerFenced(
        f"producer {producer.id} has epoch {producer.epoch},"
        f" the present one is {present.id} with epoch {present.epoch}"
    )


def _ending_error(transaction: TransactionMetadata) -> ConcurrentTransaction:
    return ConcurrentTransaction(f"the transaction before is in {transaction.state.value}")


def _state_error(transaction: TransactionMetadata, *, is_commit: bool) -> InvalidTransactionState:
    wanted = "commit" if is_commit else "abort"
    return InvalidTransactionState(f"cannot {wanted} what is {transaction.state.value}")


def _required_fresh_id(fresh_id: int | None) -> int:
    assert fresh_id is not None, "`needs_fresh_id` said that one is needed"
    return fresh_id
