"""Fetch sessions (KIP-227): the node remembers what a consumer fetches.

Later fetches then name only what changed:

    epoch -1   no session; a session that is named ends
    epoch 0    start one; all partitions are named and answered in full
    epoch n    resume one: only changed partitions are named, and only those with news are answered

The caller owns the session while its one fetch is in flight: requests of a connection that resume
the same session run one after the other, and any epoch but the next is rejected.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from millstream.broker.access.principal import Principal
from millstream.protocols.kafka.error_codes import ErrorCode

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

EVICTION_SECONDS = 120.0
"""A session that was used within this time is not evicted for a new one. The value is Kafka's."""

PARTITIONS_MAX = 1_000_000
"""Partitions of all sessions together; beyond this, fetches get no session."""


class PartitionKey(NamedTuple):
    """A partition as the client names it: by topic id from version 13 on, by topic name before."""

    topic: str
    topic_id: UUID
    partition: int


@dataclass(slots=True)
class CachedPartition:
    """One partition of a fetch, with what was last sent to the client about it."""

    key: PartitionKey
    offset: int
    size_max: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    sent_high_watermark: int = -1
    sent_log_start: int = -1


class FetchSession:
    """The partitions that one consumer fetches, in the order in which they are served."""

    __slots__ = ("epoch", "id", "partitions", "principal", "used_at", "uses_topic_ids")

    def __init__(self, *, number: int, principal: Principal, uses_topic_ids: bool) -> None:
        self.id = number
        self.epoch = 1
        """Epoch that the next fetch must have."""
        self.principal = principal
        self.uses_topic_ids = uses_topic_ids
        self.partitions: OrderedDict[PartitionKey, CachedPartition] = OrderedDict()
        self.used_at = 0.0

    def update(
        self, requested: Iterable[CachedPartition], forgotten: Iterable[PartitionKey]
    ) -> None:
        """Apply the changes that a fetch names."""
        for new in requested:
            if (old := self.partitions.get(new.key)) is not None:
                new.sent_high_watermark = old.sent_high_watermark
                new.sent_log_start = old.sent_log_start
            self.partitions[new.key] = new
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, key: PartitionKey) -> None:
        """Serve the other partitions first next time: this one had records."""
        self.partitions.move_to_end(key)


class FetchSessions:
    """The sessions of a node, bounded, least recently used first; and the fetches that wait."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.waiting: dict[object, Callable[[], None]] = {}
        """Functions that answer a waiting fetch at once, by fetch."""
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions of all sessions together."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def begin(
        self,
        requested: list[CachedPartition],
        *,
        principal: Principal,
        uses_topic_ids: bool,
        now: float,
    ) -> FetchSession | None:
        """Start a session, if the limits allow one."""
        if self._sessions_max == 0 or self.partition_count + len(requested) > PARTITIONS_MAX:
            return None
        if len(self._sessions) >= self._sessions_max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < EVICTION_SECONDS:
                return None
            del self._sessions[oldest.id]
            self.evictions += 1
        number = _new_id(self._sessions)
        session = FetchSession(number=number, principal=principal, uses_topic_ids=uses_topic_ids)
        session.used_at = now
        session.update(requested, ())
        self._sessions[number] = session
        return session

    def resume(
        self, number: int, epoch: int, *, principal: Principal, uses_topic_ids: bool, now: float
    ) -> FetchSession | ErrorCode:
        """Return the session that a fetch resumes, or the error if it cannot."""
        session = self._sessions.get(number)
        if session is None or session.principal != principal:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_at = now
        self._sessions.move_to_end(number)
        return session

    def end(self, number: int, *, principal: Principal) -> None:
        """End a session, if it belongs to the caller."""
        session = self._sessions.get(number)
        if session is not None and session.principal == principal:
            del self._sessions[number]

    def answer_all_waiting(self) -> None:
        """Answer every fetch that waits for records with what there is."""
        for answer in list(self.waiting.values()):
            answer()


def _new_id(taken: OrderedDict[int, FetchSession]) -> int:
    """Pick an id that cannot be guessed: a session reveals who reads what."""
    while True:
        number = secrets.randbelow(2**31 - 1) + 1
        if number not in taken:
            return number
