"""What the coordinator holds of one transactional id while it runs."""

from __future__ import annotations

import asyncio

from millstream.broker.transactions.transaction import TransactionMetadata
from millstream.clock import Timer
from millstream.records.topic_partition import TopicPartition


class TransactionSlot:
    """One transactional id: its value, whose turn it is, and what time will do to it.

    All events of an id are handled one after the other, each holding `turn`. Ending is the one
    thing that goes on beside: while it does, no event changes the value.
    """

    def __init__(self, transactional_id: str, *, idle_since: float) -> None:
        self.transactional_id = transactional_id
        self.transaction: TransactionMetadata | None = None
        """`None` as long as no producer was initialised, and when the id was forgotten."""

        self.turn = asyncio.Lock()
        self.users = 0
        """Who have their turn, or wait for it: a slot with users stays."""

        self.settled: asyncio.Future[None] | None = None
        """While the transaction is ending: done when it has ended, or is not worth waiting for."""
        self.unmarked: set[TopicPartition] = set()
        """While it is ending: partitions that do not know the outcome yet."""

        self.timer: Timer | None = None
        """While a transaction is open: aborts it."""
        self.idle_since = idle_since
        """Since when nothing has changed, in monotonic seconds."""

        self.is_leaving = False
        """While it is ending: whether the id is to be forgotten when it has ended."""

        self.is_uncertain = False
        """Whether the disk may hold another value than `transaction`, until the next start."""

    @property
    def is_idle(self) -> bool:
        """Whether the id may be forgotten when it is old enough."""
        transaction = self.transaction
        return transaction is not None and not (transaction.is_ongoing or transaction.is_ending)

    def has(self, producer_epoch: int, where: tuple[str, int]) -> bool:
        """Tell whether the open transaction is of this epoch and covers this partition."""
        transaction = self.transaction
        return (
            transaction is not None
            and transaction.is_ongoing
            and transaction.producer.epoch == producer_epoch
            and where in transaction.partitions
        )

    def set_settled(self) -> None:
        """Let go whoever waits for the end."""
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)

    def cancel_timer(self) -> None:
        """Nothing is open any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
