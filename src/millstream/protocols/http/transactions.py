"""Messages about transactions and their producers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from millstream.protocols.http.groups import AssignedShape

TRANSACTIONS_MAX = 1_000
"""Transactions in one response."""

TRANSACTIONAL_ID_LENGTH_MAX = 1_024


class TransactionsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which transactions to list."""

    after: (
        Annotated[
            str,
            Meta(
                max_length=TRANSACTIONAL_ID_LENGTH_MAX,
                description="Only transactional ids that sort after this one.",
            ),
        ]
        | None
    ) = None
    limit: Annotated[
        int, Meta(ge=1, le=TRANSACTIONS_MAX, description="Maximum number of transactions.")
    ] = 100
    open: Annotated[
        bool,
        Meta(
            description="`true`: only transactions that hold back readers of committed records,"
            " because they are open or their markers are not written yet."
        ),
    ] = False


class TransactionShape(Struct, kw_only=True):
    """A transactional id, and its open or last transaction, in a list."""

    id: str
    state: str
    """Kafka's name of the state in snake case: `ongoing`, `complete_commit` and so on."""
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    """Time after which the transaction is aborted, from its start or from its last renewal."""
    open_ms: int | None
    """How long the transaction has been open; null if it is not."""
    partitions: int
    """Number of partitions that the transaction has written to and whose markers are missing."""


class TransactionsAnswer(Struct, kw_only=True):
    """A page of transactions, sorted by transactional id."""

    transactions: list[TransactionShape]
    next: str | None
    """Pass as `after` to get the next page; null on the last page."""


class TransactionDetailsAnswer(Struct, kw_only=True):
    """A transactional id, and its open or last transaction."""

    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    open_ms: int | None
    started_ms: int | None
    """Start of the last transaction by the wall clock, in milliseconds since 1970; null before the
    first."""
    partitions: list[AssignedShape]
    """Partitions that hold back readers; without topics that the caller may not describe."""
    groups: list[str]
    """Groups whose offsets the transaction commits."""
