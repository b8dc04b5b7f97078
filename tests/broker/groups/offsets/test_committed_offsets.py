"""Committed offsets: commits, transactions, deletion and expiry."""

from __future__ import annotations

import uuid

import pytest

from millstream.broker.groups.group import decode_key
from millstream.broker.groups.offsets.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    OffsetChange,
    OffsetKey,
    PendingOffsetKey,
)
from millstream.broker.groups.offsets.record import decode_change, encode_change
from millstream.broker.groups.values import OffsetAndMetadata
from millstream.errors import CorruptData, InvalidProducerEpoch, UnknownFormat
from millstream.records.topic_partition import TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
U0 = TopicPartition("u", 0)
DAY = 24 * 60 * 60 * 1000


@pytest.fixture
def offsets() -> CommittedOffsets:
    return CommittedOffsets()


def committed(offset: int, order: int = 1, **changes: object) -> CommittedOffset:
    topic_id = changes.pop("topic_id", None)
    fields: dict[str, object] = {"committed_ms": 0, **changes}
    return CommittedOffset(
        offset=OffsetAndMetadata(offset=offset, topic_id=topic_id), order=order, **fields
    )


def commit(
    offsets: CommittedOffsets, partition: TopicPartition, value: CommittedOffset, group: str = "g"
) -> None:
    offsets.apply([(OffsetKey(group, partition), value)])


def stage(
    offsets: CommittedOffsets, partition: TopicPartition, value: CommittedOffset, producer: int = 7
) -> None:
    offsets.apply([(PendingOffsetKey(producer, "g", partition), value)])


def finish(offsets: CommittedOffsets, *, is_commit: bool, epoch: int = 0, producer: int = 7) -> int:
    """End a transaction; returns the number of changes."""
    found = list(offsets.changes_to_finish(producer, epoch, ["g"], is_commit=is_commit))
    changes = [change for part in found for change in part]
    offsets.apply(changes)
    return len(changes)


def at(offsets: CommittedOffsets, partition: TopicPartition) -> int | None:
    found = offsets.get("g", partition)
    return None if found is None else found.offset.offset


# Committing.


def test_the_last_commit_counts(offsets: CommittedOffsets) -> None:
    commit(offsets, T0, committed(5))
    commit(offsets, T0, committed(3, order=2))
    commit(offsets, T1, committed(9))
    assert (at(offsets, T0), at(offsets, T1), at(offsets, U0)) == (3, 9, None)
    assert set(offsets.of_group("g")) == {T0, T1}
    assert offsets.order == 2


def test_groups_know_nothing_of_each_other(offsets: CommittedOffsets) -> None:
    commit(offsets, T0, committed(5))
    commit(offsets, T0, committed(6), group="h")
    assert at(offsets, T0) == 5
    assert offsets.groups() == ["g", "h"]
    assert offsets.of_group("nobody") == {}


# Transactions.


def test_what_is_staged_shows_only_when_its_transaction_is_committed(
    offsets: CommittedOffsets,
) -> None:
    commit(offsets, T0, committed(5))
    stage(offsets, T0, committed(8, order=2, producer_epoch=0))
    assert at(offsets, T0) == 5
    assert offsets.is_pending("g", T0)
    assert not offsets.is_pending("g", T1)
    finish(offsets, is_commit=True)
    assert at(offsets, T0) == 8
    assert not offsets.is_pending("g", T0)


def test_what_was_staged_goes_when_its_transaction_is_aborted(offsets: CommittedOffsets) -> None:
    stage(offsets, T0, committed(8, producer_epoch=0))
    assert offsets.has_any("g")
    finish(offsets, is_commit=False)
    assert at(offsets, T0) is None
    assert not offsets.has_any("g")


def test_ending_a_transaction_again_changes_nothing(offsets: CommittedOffsets) -> None:
    stage(offsets, T0, committed(8, producer_epoch=0))
    assert finish(offsets, is_commit=True) == 2
    commit(offsets, T0, committed(20, order=3))
    assert finish(offsets, is_commit=True) == 0
    assert finish(offsets, is_commit=False) == 0
    assert at(offsets, T0) == 20


def test_a_commit_after_the_staging_is_the_later_one(offsets: CommittedOffsets) -> None:
    stage(offsets, T0, committed(8, order=1, producer_epoch=0))
    commit(offsets, T0, committed(20, order=2))
    finish(offsets, is_commit=True)
    assert at(offsets, T0) == 20


def test_transactions_of_several_producers_do_not_touch_each_other(
    offsets: CommittedOffsets,
) -> None:
    stage(offsets, T0, committed(8, producer_epoch=0), producer=7)
    stage(offsets, T0, committed(9, order=2, producer_epoch=0), producer=8)
    finish(offsets, is_commit=True, producer=7)
    assert at(offsets, T0) == 8
    assert offsets.is_pending("g", T0)
    finish(offsets, is_commit=False, producer=8)
    assert at(offsets, T0) == 8
    assert not offsets.is_pending("g", T0)


def test_a_late_end_leaves_what_a_later_epoch_has_staged(offsets: CommittedOffsets) -> None:
    stage(offsets, T0, committed(8, producer_epoch=5))
    assert finish(offsets, is_commit=False, epoch=4) == 0
    assert finish(offsets, is_commit=True, epoch=5) == 2


def test_other_groups_of_a_transaction_are_ended_by_themselves(offsets: CommittedOffsets) -> None:
    stage(offsets, T0, committed(8, producer_epoch=0))
    assert list(offsets.changes_to_finish(7, 0, ["h"], is_commit=True)) == []


def test_an_overtaken_producer_stages_nothing(offsets: CommittedOffsets) -> None:
    stage(offsets, T0, committed(8, producer_epoch=5))
    offsets.check_stage(7, 5)
    offsets.check_stage(7, 6)
    offsets.check_stage(8, 0)
    with pytest.raises(InvalidProducerEpoch, match="producer 7 staged offsets with epoch 5, got 4"):
        offsets.check_stage(7, 4)


# Deleting.


def test_deleting_takes_what_is_pending_along(offsets: CommittedOffsets) -> None:
    commit(offsets, T0, committed(5))
    commit(offsets, T1, committed(5))
    stage(offsets, T0, committed(8, order=2, producer_epoch=0))
    offsets.apply(offsets.changes_to_delete("g", [T0, U0]))
    assert at(offsets, T0) is None
    assert at(offsets, T1) == 5
    assert finish(offsets, is_commit=True) == 0


def test_deleting_a_group_leaves_nothing_of_it(offsets: CommittedOffsets) -> None:
    commit(offsets, T0, committed(5))
    commit(offsets, T0, committed(5), group="h")
    stage(offsets, U0, committed(8, order=2, producer_epoch=0))
    offsets.apply(offsets.changes_to_delete_group("g"))
    assert not offsets.has_any("g")
    assert offsets.groups() == ["h"]


def test_offsets_of_a_topic_that_is_gone_go_but_not_those_of_its_successor(
    offsets: CommittedOffsets,
) -> None:
    old, new = uuid.UUID(int=1), uuid.UUID(int=2)
    commit(offsets, T0, committed(5, topic_id=old))
    commit(offsets, T1, committed(6, topic_id=new))
    commit(offsets, U0, committed(7))
    stage(offsets, T0, committed(8, order=2, producer_epoch=0, topic_id=old), producer=7)
    stage(offsets, T0, committed(9, order=3, producer_epoch=0, topic_id=new), producer=8)
    offsets.apply(
        offsets.changes_to_delete_topics(lambda name, topic_id: name == "t" and topic_id == old)
    )
    assert (at(offsets, T0), at(offsets, T1), at(offsets, U0)) == (None, 6, 7)
    assert finish(offsets, is_commit=True, producer=7) == 0
    assert finish(offsets, is_commit=True, producer=8) == 2


# Retention.


def expire(
    offsets: CommittedOffsets, now_ms: int, empty_since_ms: int | None = None
) -> set[TopicPartition]:
    changes = offsets.changes_to_expire(
        "g", empty_since_ms=empty_since_ms, now_ms=now_ms, retention_ms=DAY
    )
    assert all(value is None for _, value in changes)
    return {key.partition for key, _ in changes}


def test_offsets_go_when_they_were_not_committed_for_so_long(offsets: CommittedOffsets) -> None:
    commit(offsets, T0, committed(5, committed_ms=1000))
    commit(offsets, T1, committed(5, committed_ms=2000))
    assert expire(offsets, DAY + 999) == set()
    assert expire(offsets, DAY + 1000) == {T0}
    assert expire(offsets, DAY + 2000) == {T0, T1}


def test_offsets_stay_as_long_as_the_group_was_not_empty_for_so_long(
    offsets: CommittedOffsets,
) -> None:
    commit(offsets, T0, committed(5, committed_ms=1000))
    assert expire(offsets, DAY + 4999, empty_since_ms=5000) == set()
    assert expire(offsets, DAY + 5000, empty_since_ms=5000) == {T0}


def test_an_old_client_says_itself_when_its_offsets_go(offsets: CommittedOffsets) -> None:
    commit(offsets, T0, committed(5, expires_ms=10))
    commit(offsets, T1, committed(5, expires_ms=10 * DAY))
    assert expire(offsets, 9) == set()
    assert expire(offsets, 10) == {T0}
    assert expire(offsets, 5 * DAY) == {T0}


def test_what_a_transaction_may_still_change_does_not_go(offsets: CommittedOffsets) -> None:
    commit(offsets, T0, committed(5))
    stage(offsets, T0, committed(8, order=2, producer_epoch=0))
    assert expire(offsets, 10 * DAY) == set()


# Storage.

CHANGES: list[OffsetChange] = [
    (OffsetKey("g", T0), committed(5)),
    (
        OffsetKey('a "group" \u2603\0', TopicPartition("t-1.x", 70_000)),
        CommittedOffset(
            offset=OffsetAndMetadata(
                offset=2**62, leader_epoch=4, metadata="\u00e4 note", topic_id=uuid.UUID(int=9)
            ),
            committed_ms=1_700_000_000_000,
            order=77,
            expires_ms=1_800_000_000_000,
        ),
    ),
    (PendingOffsetKey(2**40, "g", T0), committed(5, producer_epoch=3)),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_stored_is_what_was_meant(change: OffsetChange) -> None:
    key, value = encode_change(change)
    assert value is not None
    assert decode_change(decode_key(key), value) == change


def test_what_goes_is_stored_as_nothing() -> None:
    key, value = encode_change((OffsetKey("g", T0), None))
    assert (decode_key(key), value) == (["offset", "g", "t", 0], None)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (["offset", "g", "t", 0], b"{}", CorruptData),
        (["offset", "g", "t", 0], b"nonsense", CorruptData),
        (["offset", "g", "t"], b"{}", CorruptData),
        (["pending", "g", "t", 0], b"{}", CorruptData),
        (
            ["offset", "g", "t", 0],
            b'{"version":2,"offset":1,"committed_ms":1,"order":1}',
            UnknownFormat,
        ),
    ],
)
def test_what_cannot_be_read_is_reported(key: list[object], value: bytes, error: type) -> None:
    with pytest.raises(error):
        decode_change(key, value)
