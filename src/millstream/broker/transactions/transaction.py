"""A transactional id as a value: all that has to survive a crash."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from millstream.records.topic_partition import TopicPartition

EPOCH_MAX = 2**15 - 1
CLIENT_EPOCH_MAX = EPOCH_MAX - 1
"""The last epoch that a client is given: one is kept back to fence it with."""


class TransactionState(enum.Enum):
    """Where a transactional id stands. The values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    """A producer was initialised, and has not begun a transaction yet."""

    ONGOING = "Ongoing"
    """Records and offsets may be part of the open transaction."""

    PREPARE_COMMIT = "PrepareCommit"
    """It is decided, and can only go on to `COMPLETE_COMMIT`."""

    PREPARE_ABORT = "PrepareAbort"
    """It is decided, and can only go on to `COMPLETE_ABORT`."""

    COMPLETE_COMMIT = "CompleteCommit"
    """All markers are written; the next transaction may begin."""

    COMPLETE_ABORT = "CompleteAbort"
    """All markers are written; the next transaction may begin."""


_ENDING = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_COMMIT = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})


class TransactionProducer(NamedTuple):
    """Who sends: an id, and how often it was handed on."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """One transactional id, and the transaction that it has open or had last."""

    transactional_id: str
    producer: TransactionProducer
    """Whose records the transaction holds; where it is ending, the epoch that its markers carry."""
    timeout_ms: int
    update_ms: int
    """When it last changed, by the wall clock; decides only when an idle id is forgotten."""
    state: TransactionState = TransactionState.EMPTY
    previous: TransactionProducer | None = None
    """Whom the last step replaced, if that was one and the same client."""
    next_producer_id: int | None = None
    """Who takes over on completion, where the epochs of the present id are used up."""
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    """Groups whose offsets the transaction commits."""
    start_ms: int = -1
    """When the last transaction began, by the wall clock, for people; -1 before the first."""

    @property
    def is_ongoing(self) -> bool:
        """Whether a transaction is open."""
        return self.state is TransactionState.ONGOING

    @property
    def is_ending(self) -> bool:
        """Whether the outcome is decided, and markers are still to be written."""
        return self.state in _ENDING

    @property
    def is_complete(self) -> bool:
        """Whether a transaction has ended, and none began since."""
        return self.state in _COMPLETE

    @property
    def is_commit(self) -> bool:
        """Whether the outcome, where there is one, is to commit."""
        return self.state in _COMMIT

    @property
    def is_exhausted(self) -> bool:
        """Whether the next client needs a fresh producer id."""
        return self.producer.epoch >= CLIENT_EPOCH_MAX

    @property
    def successor(self) -> TransactionProducer:
        """Who may speak next: the present producer, or who takes over when this has ended."""
        if self.next_producer_id is None:
            return self.producer
        return TransactionProducer(self.next_producer_id, 0)
