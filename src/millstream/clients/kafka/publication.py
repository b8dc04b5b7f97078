"""Publishing: the transactions of many producers committed by one decision.

A driver does this for its executors: each wrote in a transaction of its own, and told who it was.
What is published has a number, `sequence`, that rises with the batches of one `publisher`; the node
remembers it for good, so publishing the same again changes nothing. That is what makes repeating
safe, here after a lost connection and in a driver that starts anew.
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
)


class TransactionToPublish(NamedTuple):
    """A transaction that is to be committed: its id, and the producer that has it open."""

    transactional_id: str
    identity: ClientProducerId


class PublishResult(NamedTuple):
    """What came of it."""

    is_repeated: bool
    """Whether this number, or a later one, had been published before; then nothing was committed
    now. It may have been by this very call, whose first answer was lost."""
    last_sequence: int
    """The highest number that this publisher has published; -1 where none is."""


def publish(
    node: KafkaClient,
    *,
    publisher: str,
    sequence: int,
    prefix: str = "",
    chosen: Sequence[TransactionToPublish],
    is_final: bool = False,
    committed: bool = True,
) -> PublishResult:
    """Commit all `chosen` transactions at once, and abort all others whose id begins with `prefix`.

    The prefix has to begin with the publisher's name; where it is empty, no others are aborted.
    With `committed` false the number is given up: the chosen ones are aborted, too, and nothing is
    remembered. `is_final` has the node forget the ids under the prefix: nobody comes back for them.
    Raises what the node refuses it for; nothing was committed then.
    """
    request = PublishTransactionsRequest(
        publisher=publisher,
        sequence=sequence,
        prefix=prefix,
        transactions=tuple(
            PublishTransactionsRequestTransaction(
                transactional_id=one.transactional_id,
                producer_id=one.identity.producer_id,
                producer_epoch=one.identity.producer_epoch,
            )
            for one in chosen
        ),
        committed=committed,
        is_final=is_final,
    )

    def ask(deadline: Deadline) -> PublishResult:
        address = node.cluster.coordinator(publisher, deadline)
        with node.cluster.lent(address, deadline) as connection:
            answer: PublishTransactionsResponse = connection.call(request, deadline=deadline)
        message = f"{address} on publishing {sequence} of {publisher!r}"
        reason = answer.error_message
        raise_for_code(answer.error_code, f"{message}: {reason}" if reason else message)
        return PublishResult(answer.is_repeated, answer.last_sequence)

    return node.cluster.retrying(ask)
