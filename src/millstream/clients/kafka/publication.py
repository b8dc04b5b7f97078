"""Publication: commits the transactions of many producers as one decision.

A Spark driver does this for its executors: each wrote in its own transaction and reported its
producer id. A publication has a number, `sequence`, that increases with the batches of one
`publisher`; the node stores it permanently, so publishing it again changes nothing. That makes
retries safe, here after a lost connection and in a driver that restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.coordinator import ClientProducerId
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.retry import raise_for_code
from millstream.protocols.kafka.messages.publications import (
    PublishTransactionsRequest,
    PublishTransactionsRequestTransaction,
    PublishTransactionsResponse,
    RenewTransactionsRequest,
    RenewTransactionsResponse,
)


class TransactionToPublish(NamedTuple):
    """Transaction to commit: its id, and the producer that opened it."""

    transactional_id: str
    identity: ClientProducerId


class PublishResult(NamedTuple):
    is_repeated: bool
    """Whether this number or a later one was published before; then nothing was committed now. The
    first may have been this very call, if its response was lost.
    """
    last_sequence: int
    """Highest number that this publisher has published; -1 if there is none."""


def publish(
    client: KafkaClient,
    *,
    publisher: str,
    sequence: int,
    prefix: str = "",
    transactions: Sequence[TransactionToPublish],
    is_final: bool = False,
    committed: bool = True,
) -> PublishResult:
    """Commit all `transactions` atomically, and abort all others whose id begins with `prefix`.

    The prefix must begin with the publisher's name; if it is empty, no others are aborted. If
    `committed` is false, the number is abandoned: the given transactions are aborted too, and the
    number is not stored. With `is_final`, the node forgets the ids under the prefix, because they
    are not used again. If this raises an error of the node, nothing was committed.
    """
    request = PublishTransactionsRequest(
        publisher=publisher,
        sequence=sequence,
        prefix=prefix,
        transactions=tuple(
            PublishTransactionsRequestTransaction(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.identity.producer_id,
                producer_epoch=transaction.identity.producer_epoch,
            )
            for transaction in transactions
        ),
        committed=committed,
        is_final=is_final,
    )

    def attempt(deadline: Deadline) -> PublishResult:
        address = client.cluster.coordinator(publisher, deadline)
        with client.cluster.borrow(address, deadline) as connection:
            answer: PublishTransactionsResponse = connection.call(request, deadline=deadline)
        message = f"{address} on publishing {sequence} of {publisher!r}"
        reason = answer.error_message
        raise_for_code(answer.error_code, f"{message}: {reason}" if reason else message)
        return PublishResult(answer.is_repeated, answer.last_sequence)

    return client.cluster.call_with_retries(attempt)


def renew(client: KafkaClient, *, publisher: str, prefix: str, duration_ms_max: int) -> int:
    """Start the timeouts of open transactions again whose id begins with `prefix`.

    Returns their number. None stays open for longer than `duration_ms_max` in all.
    """
    request = RenewTransactionsRequest(
        publisher=publisher, prefix=prefix, duration_ms_max=duration_ms_max
    )

    def attempt(deadline: Deadline) -> int:
        address = client.cluster.coordinator(publisher, deadline)
        with client.cluster.borrow(address, deadline) as connection:
            answer: RenewTransactionsResponse = connection.call(request, deadline=deadline)
        message = f"{address} on renewing transactions of {publisher!r}"
        reason = answer.error_message
        raise_for_code(answer.error_code, f"{message}: {reason}" if reason else message)
        return answer.transaction_count

    return client.cluster.call_with_retries(attempt)
