"""A transactional id as a value: all state that has to survive a crash."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from millstream.records.topic_partition import TopicPartition

EPOCH_MAX = 2**15 - 1
CLIENT_EPOCH_MAX = EPOCH_MAX - 1
"""The last epoch that a client gets: one is reserved to fence it."""


class TransactionState(enum.Enum):
    """State of a transactional id. The values are the names in Kafka's tools."""

    EMPTY = "Empty"
    """A producer was initialised, and has not begun a transaction yet."""

    ONGOING = "Ongoing"
    """Records and offsets can be added to the open transaction."""

    PREPARE_COMMIT = "PrepareCommit"
    """The decision is final; the next state is `COMPLETE_COMMIT`."""

    PREPARE_ABORT = "PrepareAbort"
    """The decision is final; the next state is `COMPLETE_ABORT`."""

    COMPLETE_COMMIT = "CompleteCommit"
    """All markers are written; the next transaction may begin."""

    COMPLETE_ABORT = "CompleteAbort"
    """All markers are written; the next transaction may begin."""


_ENDING = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_COMMIT = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})


class TransactionProducer(NamedTuple):
    """A producer id and its epoch, which rises each time that the id passes to another instance."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """One transactional id, and its open or last transaction."""

    transactional_id: str
    producer: TransactionProducer
    """The producer of the transaction's records; while it is ending, with the epoch of its
    markers."""
    timeout_ms: int
    update_ms: int
    """Time of the last change, by the wall clock; decides only when an idle id is forgotten."""
    state: TransactionState = TransactionState.EMPTY
    previous: TransactionProducer | None = None
    """The producer that the last step replaced, if both belong to the same client."""
    next_producer_id: int | None = None
    """The producer id that takes over on completion, if the epochs of the current one are used
    up."""
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    """Groups whose offsets the transaction commits."""
    start_ms: int = -1
    """Start of the last transaction, by the wall clock, for people; -1 before the first."""
    begun_ms: int = -1
    """The same by the clock of the coordinator, which nobody can set and which continues over
    restarts: the timeout counts from here. -1 if an earlier release began the transaction."""

    @property
    def is_ongoing(self) -> bool:
        """Whether a transaction is open."""
        return self.state is TransactionState.ONGOING

    @property
    def is_ending(self) -> bool:
        """Whether the outcome is decided, and markers still have to be written."""
        return self.state in _ENDING

    @property
    def is_complete(self) -> bool:
        """Whether a transaction has ended, and none has begun since."""
        return self.state in _COMPLETE

    @property
    def is_commit(self) -> bool:
        """Whether the outcome, if there is one, is to commit."""
        return self.state in _COMMIT

    @property
    def is_exhausted(self) -> bool:
        """Whether the next client needs a fresh producer id."""
        return self.producer.epoch >= CLIENT_EPOCH_MAX

    @property
    def successor(self) -> TransactionProducer:
        """The producer that may act next: the current one, or its replacement on completion."""
        if self.next_producer_id is None:
            return self.producer
        return TransactionProducer(self.next_producer_id, 0)
