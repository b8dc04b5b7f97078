"""In-memory state of one transactional id."""

from __future__ import annotations

import asyncio

from millstream.broker.transactions.transaction import TransactionMetadata
from millstream.clock import Timer
from millstream.records.topic_partition import TopicPartition


class TransactionSlot:
    """One transactional id: its value, its lock and its timer.

    The events of an id are processed one after the other, each holding `lock`. Only the writing of
    markers runs beside that: while it does, no event changes the value.
    """

    def __init__(self, transactional_id: str, *, idle_since: float) -> None:
        self.transactional_id = transactional_id
        self.transaction: TransactionMetadata | None = None
        """None until a producer is initialised, and after the id was forgotten."""

        self.lock = asyncio.Lock()
        self.users = 0
        """Callers that hold the lock or wait for it: a slot with users is kept."""

        self.settled: asyncio.Future[None] | None = None
        """While the transaction is ending: done when it has ended, or that takes too long."""
        self.unmarked: set[TopicPartition] = set()
        """While it is ending: partitions without a marker."""

        self.timer: Timer | None = None
        """While a transaction is open: aborts it after its timeout."""
        self.idle_since = idle_since
        """Time of the last change, in monotonic seconds."""

        self.must_forget = False
        """While it is ending: whether to forget the id afterwards."""

        self.is_uncertain = False
        """Whether the disk may have a different value than `transaction`, until the next start."""

    @property
    def is_idle(self) -> bool:
        """Whether the id may be forgotten when it is old enough."""
        transaction = self.transaction
        return transaction is not None and not (transaction.is_ongoing or transaction.is_ending)

    def has(self, producer_epoch: int, partition: tuple[str, int]) -> bool:
        """Return whether the open transaction has this epoch and covers this partition."""
        transaction = self.transaction
        return (
            transaction is not None
            and transaction.is_ongoing
            and transaction.producer.epoch == producer_epoch
            and partition in transaction.partitions
        )

    def set_settled(self) -> None:
        """Wake those who wait for the transaction to end."""
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)

    def cancel_timer(self) -> None:
        """Cancel the timeout: no transaction is open any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
