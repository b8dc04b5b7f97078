"""Decisions of a log's leader: when they are applied, how often, and what they leave."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from millstream.errors import CorruptBatch, OffsetOutOfRange
from millstream.records.control import build_control_batch
from millstream.records.decision import (
    CleaningDecision,
    DeletionDecision,
    build_decision,
    read_decision,
)
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.records.record import Record
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.partition_metadata import CleaningMark
from millstream.storage.log import Log
from millstream.storage.replica.digest import record_digest
from millstream.storage.replica.log_decisions import add_mark
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.crash.test_truncation import SeededBackground
from tests.in_loop import in_loop
from tests.storage.replica.replicas import SMALL, make_leader, make_replica, open_log, replicate

COMPACTED = replace(SMALL, is_compacted=True, tombstone_ms=1_000)
KEY = DeletionDecision(KeyMatch(b"k", is_prefix=False))


async def leader_of_a_cluster(config=COMPACTED) -> Log:
    leader = await make_leader(config=config)
    await leader.replication.decisions.begin()
    return leader


async def write(log: Log, *pairs: tuple[bytes, bytes | None]) -> None:
    for key, value in pairs:
        await log.append_records([Record(value, key=key)])


def shown(log: Log) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in log.records()]


async def clean(log: Log, *, is_forced: bool = True) -> None:
    await log.clean(
        background=SeededBackground(0),
        throttle=IoThrottle(2**40, monotonic=lambda: 0.0),
        memory_bytes_max=2**22,
        seed=1,
        is_forced=is_forced,
    )


def digest(log: Log) -> bytes:
    batches = (batch for _, batch in log.headers(log.start_offset))
    return record_digest(batches, start=0, end=log.end_offset)


@pytest.mark.parametrize(
    "decision",
    [
        KEY,
        DeletionDecision(KeyMatch(b"", is_prefix=False), 7),
        DeletionDecision(KeyMatch(bytes(65_536), is_prefix=True), 2**62),
        CleaningDecision(5, 5),
        CleaningDecision(2**62, 0),
    ],
)
def test_a_decision_is_read_as_it_was_written(decision):
    assert read_decision(build_decision(decision, now_ms=3)) == decision


@pytest.mark.parametrize(
    "value", [None, b"", b"\0\0", b"\0\0\2" + bytes(12), b"\xff\xff" + bytes(20)]
)
@pytest.mark.parametrize("kind", [0x4D00, 0x4D01])
def test_a_decision_that_cannot_be_read_is_damage(kind, value):
    with pytest.raises(CorruptBatch):
        read_decision(build_control_batch(kind, value, now_ms=3))  # type: ignore[arg-type]


@in_loop
async def test_a_decision_is_applied_when_it_is_committed_and_not_before():
    leader = await leader_of_a_cluster()
    await write(leader, (b"k", b"1"), (b"l", b"2"))
    assert await leader.delete_keys(key=b"k") == 1
    await write(leader, (b"m", b"3"))
    replica = await make_replica(config=COMPACTED)
    replica.replication.set_high_watermark(0)
    await replicate(leader, replica)
    replica.replication.set_high_watermark(2)  # The decision is at offset 2.
    await replica.replication.decisions.settle()
    assert shown(replica) == [(b"k", b"1"), (b"l", b"2")]
    assert replica.replication.decisions.pending_count == 1
    replica.replication.set_high_watermark(4)
    await replica.replication.decisions.settle()
    assert shown(replica) == shown(leader) == [(b"l", b"2"), (b"m", b"3")]


@in_loop
async def test_a_truncated_decision_is_forgotten():
    leader = await leader_of_a_cluster()
    await write(leader, (b"k", b"1"))
    await leader.delete_keys(key=b"k")
    replica = await make_replica(config=COMPACTED)
    replica.replication.set_high_watermark(0)
    await replicate(leader, replica)
    replica.replication.set_high_watermark(1)
    await replica.replication.truncate(1)
    await replica.begin_epoch(5)
    await write_unreplicated(replica, (b"k", b"2"))
    await replica.replication.decisions.settle()
    assert shown(replica) == [(b"k", b"1"), (b"k", b"2")]


@in_loop
async def test_a_decision_that_is_committed_while_others_end_is_applied(monkeypatch):
    """Nothing else is committed after it, so nobody would look again."""
    leader = await leader_of_a_cluster()
    decisions = leader.replication.decisions
    store_offset, is_storing, may_store = decisions.store_offset, asyncio.Event(), asyncio.Event()

    async def store_late() -> None:
        is_storing.set()
        await may_store.wait()
        await store_offset()

    monkeypatch.setattr(decisions, "store_offset", store_late)
    while not is_storing.is_set():  # Until a segment has been begun.
        await write(leader, (b"k", b"1"))
        decisions.commit()
        await asyncio.sleep(0)
    end = leader.end_offset
    deleting = asyncio.create_task(leader.delete_keys(key=b"k"))
    while leader.end_offset == end:  # noqa: ASYNC110 - until the decision is committed.
        await asyncio.sleep(0)
    for _ in range(10):  # And has been noticed.
        await asyncio.sleep(0)
    assert decisions.pending_count == 1
    may_store.set()
    assert await asyncio.wait_for(deleting, 30) > 0
    assert shown(leader) == []
    assert decisions.pending_count == 0


async def write_unreplicated(log: Log, *pairs: tuple[bytes, bytes | None]) -> None:
    """Append as a leader of which replicas have everything at once."""
    log.replication.set_high_watermark(None)
    await write(log, *pairs)


@in_loop
async def test_decisions_that_were_not_applied_are_found_when_the_log_is_opened():
    leader = await leader_of_a_cluster()
    await write(leader, (b"k", b"1"), (b"l", b"2"))
    await leader.delete_keys(key=b"k")
    disk = SimulatedFilesystem()
    replica = await make_replica(disk, config=COMPACTED)
    replica.replication.set_high_watermark(0)
    await replicate(leader, replica)  # It dies before it hears of the high watermark.
    _, again = await open_log(disk.crash(), config=COMPACTED)
    again.replication.set_high_watermark(3)
    await again.replication.become_replica()
    await again.replication.decisions.settle()
    assert shown(again) == [(b"l", b"2")]


@in_loop
async def test_no_key_beyond_the_decided_offset_counts():
    leader = await leader_of_a_cluster()
    await write(leader, (b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"b", b"4"))
    await leader.roll()
    await leader.replication.decisions.decide(CleaningDecision(3, 0))
    await write(leader, (b"c", b"5"))
    await clean(leader, is_forced=False)
    assert shown(leader) == [(b"a", b"2"), (b"b", b"3"), (b"b", b"4"), (b"c", b"5")]
    assert leader.partition.cleaned_offset == 3


@in_loop
async def test_replicas_that_clean_in_their_own_way_have_the_same_records():
    leader = await leader_of_a_cluster()
    replicas = [await make_replica(config=COMPACTED) for _ in range(2)]
    for replica in replicas:
        replica.replication.set_high_watermark(0)
    for number in range(30):
        await write(leader, (b"k%d" % (number % 7), None if number % 5 == 0 else b"x" * 90))
        if number == 12:
            await leader.delete_keys(prefix=b"k3")
        if number % 6 == 5:
            await replicate(leader, replicas[0])
            replicas[0].replication.set_high_watermark(leader.end_offset)
            await replicas[0].replication.decisions.settle()
            await clean(replicas[0])
            await clean(leader)
    for replica in replicas:
        await replicate(leader, replica)
        replica.replication.set_high_watermark(leader.end_offset)
        await replica.replication.decisions.settle()
        await clean(replica)
    assert digest(replicas[0]) == digest(replicas[1]) == digest(leader)


@in_loop
async def test_a_tombstone_is_removed_by_the_age_that_the_leader_has_seen():
    clock = ManualClock()
    _, leader = await open_log(SimulatedFilesystem(), config=COMPACTED, clock=clock)
    await leader.begin_epoch(1)
    await leader.replication.decisions.begin()
    await write(leader, (b"a", b"1"), (b"a", None))
    await leader.roll()
    await write(leader, (b"b", b"2"))
    await clean(leader)
    assert shown(leader) == [(b"a", None), (b"b", b"2")]
    clock.advance(0.9)
    await clean(leader, is_forced=False)
    assert (b"a", None) in shown(leader)
    clock.advance(0.2)
    await clean(leader, is_forced=False)
    assert shown(leader) == [(b"b", b"2")]
    assert leader.replication.tombstones_removed == 2


def test_marks_are_few_and_get_old():
    marks: tuple[CleaningMark, ...] = ()
    for number in range(10_000):
        marks = add_mark(marks, CleaningMark(number + 1, number), spacing_ms=100, used=0)
    assert len(marks) <= 102
    assert marks[0] == CleaningMark(1, 0)
    assert marks[-1] == CleaningMark(10_000, 9_999)
    gaps = [later.ms - earlier.ms for earlier, later in pairwise(marks)]
    assert max(gaps) <= 200
    assert add_mark(marks, CleaningMark(10_001, 10_000), spacing_ms=100, used=10_000) == (
        CleaningMark(10_001, 10_000),
    )


@in_loop
async def test_nothing_is_deleted_behind_the_end():
    leader = await leader_of_a_cluster()
    await write(leader, (b"a", b"1"))
    with pytest.raises(OffsetOutOfRange):
        await leader.delete_keys(key=b"a", before=2)
    assert await leader.delete_keys(key=b"a", before=0) == 0
    assert shown(leader) == [(b"a", b"1")]


@in_loop
async def test_a_replaced_segment_shows_nothing_that_was_deleted():
    """A replica has reclaimed what was deleted, and gets the segment from a leader that has not."""
    leader = await leader_of_a_cluster()
    await write(leader, (b"k", b"1"), (b"l", b"2"))
    await leader.roll()
    await write(leader, (b"m", b"3"))
    await leader.delete_keys(key=b"k")
    await leader.roll()
    await write(leader, (b"n", b"4"))
    replica = await make_replica(config=COMPACTED)
    replica.replication.set_high_watermark(0)
    await replicate(leader, replica)
    replica.replication.set_high_watermark(leader.end_offset)
    await replica.replication.decisions.settle()
    await clean(replica, is_forced=False)
    assert not replica.partition.deletions
    resync = replica.replication.resync
    wanted = leader.replication.resync.manifest()[0]
    data = leader.replication.resync.read_bytes(wanted.id, 0, wanted.size)
    await resync.write_part(wanted, 0, data)
    await resync.install(wanted)
    assert shown(replica) == [(b"l", b"2"), (b"m", b"3"), (b"n", b"4")]
