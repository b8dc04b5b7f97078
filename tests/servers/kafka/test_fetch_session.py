"""Fetch sessions store the partitions of a consumer, and refuse requests out of sequence."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.servers.kafka.fetch_session import (
    EPOCH_MAX,
    EVICTION_SECONDS,
    CachedPartition,
    FetchSessions,
    PartitionKey,
)

NO_ID = UUID(int=0)


def key(index: int, topic: str = "orders") -> PartitionKey:
    return PartitionKey(topic, NO_ID, index)


def wanted(index: int, offset: int = 0) -> CachedPartition:
    return CachedPartition(key(index), offset, 1000)


def begin(sessions: FetchSessions, *parts: CachedPartition, now: float = 0.0, principal: str = "a"):
    return sessions.begin(list(parts), principal=principal, uses_topic_ids=False, now=now)


def resume(sessions: FetchSessions, number: int, epoch: int, *, principal="a", ids=False, now=0.0):
    return sessions.resume(number, epoch, principal=principal, uses_topic_ids=ids, now=now)


def test_a_session_goes_on_with_the_epochs_one_after_the_other():
    sessions = FetchSessions(10)
    session = begin(sessions, wanted(0))
    assert resume(sessions, session.id, 1) is session
    assert resume(sessions, session.id, 2) is session


@pytest.mark.parametrize("epoch", [2, 0x7FFFFFFF])
def test_another_epoch_than_the_next_is_refused(epoch):
    sessions = FetchSessions(10)
    session = begin(sessions, wanted(0))
    assert resume(sessions, session.id, epoch) == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_after_the_last_epoch_comes_the_first():
    sessions = FetchSessions(10)
    session = begin(sessions, wanted(0))
    session.epoch = EPOCH_MAX
    assert resume(sessions, session.id, EPOCH_MAX) is session
    assert session.epoch == 1


def test_a_session_that_is_not_known_or_is_another_clients_is_not_found():
    sessions = FetchSessions(10)
    session = begin(sessions, wanted(0))
    assert resume(sessions, session.id + 1, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert resume(sessions, session.id, 1, principal="b") == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.end(session.id, principal="b")
    assert resume(sessions, session.id, 1) is session
    sessions.end(session.id, principal="a")
    assert resume(sessions, session.id, 2) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_cannot_change_from_names_to_ids():
    sessions = FetchSessions(10)
    session = begin(sessions, wanted(0))
    assert resume(sessions, session.id, 1, ids=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_changes_are_taken_over_and_the_rest_is_remembered():
    sessions = FetchSessions(10)
    session = begin(sessions, wanted(0), wanted(1), wanted(2))
    session.partitions[key(1)].sent_high_watermark = 7
    session.update([wanted(1, offset=5), wanted(3)], [key(0), key(9)])
    assert [one.key.partition for one in session.partitions.values()] == [1, 2, 3]
    assert session.partitions[key(1)].offset == 5
    assert session.partitions[key(1)].sent_high_watermark == 7


def test_who_had_records_goes_last_next_time():
    session = begin(FetchSessions(10), wanted(0), wanted(1), wanted(2))
    session.move_to_end(key(0))
    assert [one.key.partition for one in session.partitions.values()] == [1, 2, 0]


def test_a_full_house_gives_up_the_session_that_was_idle_for_longest():
    sessions = FetchSessions(2)
    first = begin(sessions, wanted(0), now=0.0)
    second = begin(sessions, wanted(0), now=1.0)
    resume(sessions, first.id, 1, now=2.0)
    third = begin(sessions, wanted(0), now=1.0 + EVICTION_SECONDS)
    assert third is not None
    assert resume(sessions, second.id, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert resume(sessions, first.id, 2, now=2.0) is first
    assert sessions.evictions == 1


def test_a_full_house_of_busy_sessions_takes_no_more():
    sessions = FetchSessions(1)
    first = begin(sessions, wanted(0), now=0.0)
    assert begin(sessions, wanted(0), now=EVICTION_SECONDS - 1) is None
    assert resume(sessions, first.id, 1) is first


def test_ids_of_sessions_are_positive_and_differ():
    sessions = FetchSessions(100)
    ids = {begin(sessions, wanted(0)).id for _ in range(100)}
    assert len(ids) == 100
    assert min(ids) > 0
