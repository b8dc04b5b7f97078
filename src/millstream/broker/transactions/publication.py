"""A publication as a value: the proposal of a publisher, and the state that survives a crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from millstream.broker.transactions.transaction import TransactionProducer
from millstream.errors import InvalidRequest

NO_SEQUENCE = -1
"""The last sequence of a publisher that has published nothing, or was forgotten."""

PUBLISHER_LENGTH_MAX = 1_024
"""Characters of a publisher's name: as many as a group id may have."""

CLIENT_ID_LENGTH_MAX = 249
"""Characters of a publisher's client id that are kept."""

TRANSACTIONS_MAX = 10_000
"""Transactions in one publication. All of them are stored in one batch: if each covers hundreds of
partitions, the batch size limit is reached first, which is an error too.
"""


class ProposedTransaction(NamedTuple):
    """One transaction of a publication, and the producer that must have it open."""

    transactional_id: str
    producer: TransactionProducer


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationProposal:
    """The request of a publisher."""

    publisher: str
    """The name that a series of publications has in common."""
    sequence: int
    """The number of the publication: each takes effect once, in rising order, with or without
    gaps."""
    chosen: tuple[ProposedTransaction, ...] = ()
    prefix: str = ""
    """Other producers whose transactional id starts with it have nothing left to do: their
    transactions are aborted, and they are fenced. None if it is empty."""
    is_commit: bool = True
    """If false, the sequence is abandoned: the chosen transactions are aborted too, nothing is
    recorded."""
    is_final: bool = False
    """Whether the ids under the prefix are not used again: they are forgotten when all have
    ended."""
    client_id: str = ""
    """The name that the publisher gives itself, for people."""

    def check(self) -> None:
        """Raise `InvalidRequest` if the proposal is invalid."""
        if not 0 < len(self.publisher) <= PUBLISHER_LENGTH_MAX:
            raise InvalidRequest(
                f"publisher must have between 1 and {PUBLISHER_LENGTH_MAX} characters,"
                f" got {len(self.publisher)}"
            )
        if self.sequence < 0:
            raise InvalidRequest(f"sequence must be at least 0, got {self.sequence}")
        if self.prefix and not self.prefix.startswith(self.publisher):
            raise InvalidRequest(
                f"prefix {self.prefix!r} does not start with the publisher {self.publisher!r}"
            )
        if (count := len(self.chosen)) > TRANSACTIONS_MAX:
            raise InvalidRequest(
                f"publication has {count} transactions, limit is {TRANSACTIONS_MAX}"
            )
        seen: set[str] = set()
        for transactional_id, _ in self.chosen:
            if not transactional_id:
                raise InvalidRequest("transactional id must not be empty")
            if transactional_id in seen:
                raise InvalidRequest(f"transactional id {transactional_id!r} is listed twice")
            seen.add(transactional_id)


class PublicationResult(NamedTuple):
    """The result of a proposal."""

    is_repeated: bool
    """Whether this sequence, or a later one, had been published before: nothing was committed."""
    last_sequence: int
    """The last published sequence, or `NO_SEQUENCE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The last publication of a publisher."""

    publisher: str
    sequence: int
    update_ms: int
    """The time of the publication, by the clock of `Publications`; decides only when the publisher
    is forgotten."""
