"""Fetch sessions (KIP-227): what a consumer fetches is remembered, so that it only says changes.

    epoch -1   no session; one that is named ends
    epoch 0    begin one; everything is asked for and answered in full
    epoch n    go on with one: only changed partitions are named, and only those with news answered

The caller holds the session while its one fetch is under way: requests of a connection that go on
with the same session come one after the other, and another epoch than the next is refused.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from millstream.protocols.kafka.error_codes import ErrorCode

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

EVICTION_SECONDS = 120.0
"""A session that was used within this time is not given up for a new one. Kafka's own limit."""

PARTITIONS_MAX = 1_000_000
"""Partitions that all sessions together remember; beyond, fetches go without a session."""


class PartitionKey(NamedTuple):
    """Which partition, as the client names it: by the topic's id from version 13 on, or by name."""

    topic: str
    topic_id: UUID
    partition: int


@dataclass(slots=True)
class CachedPartition:
    """One partition of a fetch, and what the client was told of it last."""

    key: PartitionKey
    offset: int
    size_max: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start: int = -1


class FetchSession:
    """What one consumer fetches, in the order in which partitions have their turn."""

    __slots__ = ("epoch", "id", "principal", "used_at", "uses_topic_ids", "wanted")

    def __init__(self, *, number: int, principal: str, uses_topic_ids: bool) -> None:
        self.id = number
        self.epoch = 1
        """The epoch that the next fetch has to have."""
        self.principal = principal
        self.uses_topic_ids = uses_topic_ids
        self.wanted: OrderedDict[PartitionKey, CachedPartition] = OrderedDict()
        self.used_at = 0.0

    def update(self, wanted: Iterable[CachedPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Take over what a fetch says has changed."""
        for new in wanted:
            if (old := self.wanted.get(new.key)) is not None:
                new.told_high_watermark = old.told_high_watermark
                new.told_log_start = old.told_log_start
            self.wanted[new.key] = new
        for key in forgotten:
            self.wanted.pop(key, None)

    def move_to_end(self, key: PartitionKey) -> None:
        """Let others go first next time: this one had records."""
        self.wanted.move_to_end(key)


class FetchSessions:
    """All sessions of a node, a bounded number, the least recently used first; and who waits."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.waiting: dict[object, Callable[[], None]] = {}
        """How to have each fetch answered at once that waits for records."""
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions that all sessions together remember."""
        return sum(len(session.wanted) for session in self._sessions.values())

    def begin(
        self, wanted: list[CachedPartition], *, principal: str, uses_topic_ids: bool, now: float
    ) -> FetchSession | None:
        """Begin a session, if there is room for one."""
        if self._sessions_max == 0 or self.partition_count + len(wanted) > PARTITIONS_MAX:
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
        session.update(wanted, ())
        self._sessions[number] = session
        return session

    def go_on(
        self, number: int, epoch: int, *, principal: str, uses_topic_ids: bool, now: float
    ) -> FetchSession | ErrorCode:
        """Return the session that a fetch goes on with, or what is wrong with that."""
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

    def end(self, number: int, *, principal: str) -> None:
        """End a session, if it is the caller's."""
        session = self._sessions.get(number)
        if session is not None and session.principal == principal:
            del self._sessions[number]

    def answer_all_waiting(self) -> None:
        """Have every fetch that waits for records answered with what there is."""
        for answer in list(self.waiting.values()):
            answer()


def _new_id(taken: OrderedDict[int, FetchSession]) -> int:
    """Pick an id that cannot be guessed: a session tells who reads what."""
    while True:
        number = secrets.randbelow(2**31 - 1) + 1
        if number not in taken:
            return number
