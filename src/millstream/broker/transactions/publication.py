"""A publication as a value: what a publisher asks for, and what has to survive a crash of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from millstream.broker.transactions.transaction import TransactionProducer
from millstream.errors import InvalidRequest

NO_SEQUENCE = -1
"""The last sequence of a publisher that has published nothing, or was forgotten."""

PUBLISHER_LENGTH_MAX = 1_024
"""Characters of a publisher's name: as many as the id of a group may have."""

CLIENT_ID_LENGTH_MAX = 249
"""Characters that are remembered of what a publisher calls itself."""

TRANSACTIONS_MAX = 10_000
"""Transactions in one publication. All of them are stored in one batch, so where each covers
hundreds of partitions, the size of a batch is reached first, and that is an error too."""


class ProposedTransaction(NamedTuple):
    """One transaction of a publication, and who must have it open."""

    transactional_id: str
    producer: TransactionProducer


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationProposal:
    """What a publisher asks for."""

    publisher: str
    """Whose publications follow each other."""
    sequence: int
    """The number of the publication: each takes effect once, in rising order, with gaps or not."""
    chosen: tuple[ProposedTransaction, ...] = ()
    prefix: str = ""
    """Other producers whose transactional id begins so have nothing left to do: their transactions
    are aborted, and they are fenced. None where it is empty."""
    is_commit: bool = True
    """Otherwise the sequence is given up: the chosen ones are aborted too, nothing is recorded."""
    is_final: bool = False
    """Whether nobody comes back: the ids under the prefix are forgotten when all has ended."""
    client_id: str = ""
    """What the publisher calls itself, for people who look."""

    def check(self) -> None:
        """Raise `InvalidRequest` where this cannot be meant."""
        if not 0 < len(self.publisher) <= PUBLISHER_LENGTH_MAX:
            raise InvalidRequest(
                f"the publisher has {len(self.publisher)} characters,"
                f" allowed is 1 to {PUBLISHER_LENGTH_MAX}"
            )
        if self.sequence < 0:
            raise InvalidRequest(f"sequence is {self.sequence}, allowed is 0 and above")
        if self.prefix and not self.prefix.startswith(self.publisher):
            raise InvalidRequest(
                f"prefix {self.prefix!r} does not begin with the publisher {self.publisher!r}"
            )
        if (count := len(self.chosen)) > TRANSACTIONS_MAX:
            raise InvalidRequest(
                f"{count} transactions in one publication, limit is {TRANSACTIONS_MAX}"
            )
        seen: set[str] = set()
        for transactional_id, _ in self.chosen:
            if not transactional_id:
                raise InvalidRequest("a transactional id is empty")
            if transactional_id in seen:
                raise InvalidRequest(f"transactional id {transactional_id!r} is chosen twice")
            seen.add(transactional_id)


class PublicationResult(NamedTuple):
    """What became of a proposal."""

    is_repeated: bool
    """Whether this sequence, or a later one, had been published before: nothing was committed."""
    last_sequence: int
    """The last that was published; `NO_SEQUENCE` where none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The last publication of a publisher."""

    publisher: str
    sequence: int
    update_ms: int
    """When it was made, in steady time; decides only when the publisher is forgotten."""
