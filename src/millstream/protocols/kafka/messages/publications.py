"""Publications: transactions of many producers, committed by one decision. Kafka has none.

Until then their producers renew them together.
"""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
)

PUBLISH_TRANSACTIONS = Versions(first=0, last=0, flexible=0)
RENEW_TRANSACTIONS = Versions(first=0, last=0, flexible=0)


@struct
class PublishTransactionsRequestTransaction:
    """One transaction to commit, and the producer that must have it open."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)


@message(PUBLISH_TRANSACTIONS)
class PublishTransactionsRequest:
    """Commit transactions together, as a numbered publication, or abort them."""

    publisher: str = wire(STRING)
    sequence: int = wire(INT64)
    prefix: str = wire(STRING, default="")
    transactions: tuple[PublishTransactionsRequestTransaction, ...] = wire(
        ARRAY(PublishTransactionsRequestTransaction), default=()
    )
    committed: bool = wire(BOOL, default=True)
    is_final: bool = wire(BOOL, default=False)


@message(PUBLISH_TRANSACTIONS)
class PublishTransactionsResponse:
    """Whether all transactions are committed, and the last publication."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    is_repeated: bool = wire(BOOL, default=False)
    last_sequence: int = wire(INT64, default=-1)


@message(RENEW_TRANSACTIONS)
class RenewTransactionsRequest:
    """Start the timeouts of open transactions again: those whose id begins with the prefix."""

    publisher: str = wire(STRING)
    prefix: str = wire(STRING)
    duration_ms_max: int = wire(INT32)


@message(RENEW_TRANSACTIONS)
class RenewTransactionsResponse:
    """How many transactions are open."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    transaction_count: int = wire(INT32, default=0)
