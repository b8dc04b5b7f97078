"""Sealing the growing segment on demand and by age, which the retention clock decides."""

from __future__ import annotations

import asyncio
import errno

import pytest

from millstream.config.schema import Durability, LogConfig
from millstream.errors import DiskFull, LogClosed, LogOffline
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.segment.segment import GrowingSegment, SealedSegment
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.keyed import DIRECTORY, SMALL, clean, fill, filled, offsets
from tests.storage.logs import HeldExecutor, HeldSyncer, batch_of, make_store, turns


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def growing(log: Log) -> list[int]:
    return [s.base_offset for s in log.segments if isinstance(s, GrowingSegment)]


# Rolling.


@pytest.mark.parametrize("durability", Durability)
@in_loop
async def test_the_growing_segment_is_sealed_and_the_next_batch_begins_another(durability):
    log = await make_store(config=LogConfig(durability=durability)).log("a")
    await fill(log, 9)
    await turns()
    await log.roll()
    assert bases(log) == [0]
    assert isinstance(log.segments[0], SealedSegment)
    await fill(log, 3)
    await turns()
    assert (bases(log), growing(log)) == ([0, 9], [9])
    assert offsets(log) == list(range(12))


@in_loop
async def test_where_nothing_was_appended_nothing_is_rolled():
    log = await make_store(config=SMALL).log("a")
    await log.roll()
    assert bases(log) == []
    await fill(log, 3)
    await log.roll()
    await log.roll()
    assert (bases(log), log.counters.seals) == ([0], 1)


@in_loop
async def test_a_segment_that_was_sealed_before_is_not_opened_again_either():
    disk, store, _ = await filled(3)
    await store.close()
    log = await make_store(disk, config=SMALL).log("a")
    await log.roll()
    await fill(log, 3)
    assert bases(log) == [0, 3]


@in_loop
async def test_after_a_start_a_segment_with_room_is_filled_up_as_ever():
    disk, store, log = await filled(3)
    await log.roll()
    await store.close()
    log = await make_store(disk, config=SMALL).log("a")
    await fill(log, 3)
    assert bases(log) == [0]


@in_loop
async def test_appends_go_on_while_it_is_being_sealed():
    background = HeldExecutor()
    _, _, log = await filled(3, LogConfig(durability=Durability.DISK), background=background)
    background.is_held = True
    rolling = asyncio.ensure_future(log.roll())
    await turns()
    await log.append(batch_of(b"next"))
    assert (bases(log), growing(log)) == ([0, 3], [0, 3])
    assert not rolling.done()
    background.let_go()
    await rolling
    assert growing(log) == [3]
    assert log.end_offset == 4


@in_loop
async def test_what_is_not_committed_yet_is_committed_first():
    background = HeldExecutor()
    log = await make_store(background=background).log("a")
    await log.append(batch_of(b"a"))
    background.is_held = True
    pending = log.submit(batch_of(b"b"))
    await turns()
    rolling = asyncio.ensure_future(log.roll())
    await turns()
    later = log.submit(batch_of(b"c"))
    await turns()
    assert log.counters.seals == 0
    background.let_go()
    await asyncio.gather(pending, rolling, later)
    await turns()
    assert (bases(log), log.end_offset) == ([0, 2], 3)


@in_loop
async def test_it_is_not_sealed_before_what_waits_for_the_next_commit_has_had_it():
    syncer = HeldSyncer()
    log = await make_store(syncer=syncer).log("a")
    await log.append(batch_of(b"0"))
    futures = []
    for value in (b"1", b"2"):
        futures.append(log.submit(batch_of(value)))
        await turns()
    rolling = asyncio.ensure_future(log.roll())
    for _ in futures:
        await turns(50)
        assert (log.counters.seals, rolling.done()) == (0, False)
        syncer.sync_now()
        syncer.tell()
    await rolling
    assert [(await future).offset for future in futures] == [1, 2]


@in_loop
async def test_many_who_roll_and_append_at_once_lose_nothing():
    _, store, log = await filled(9)
    for _ in range(5):
        appends = [log.append(batch_of(b"x" * 50)) for _ in range(7)]
        await asyncio.gather(*appends, log.roll(), log.roll(), log.roll())
    assert offsets(log) == list(range(9 + 35))
    await store.close()


@in_loop
async def test_the_class_and_the_epoch_may_change_around_it():
    _, _, log = await filled(3, LogConfig(durability=Durability.DISK))
    await asyncio.gather(
        log.roll(),
        log.begin_epoch(3),
        log.append(batch_of(b"x")),
        log.reconfigure(LogConfig(durability=Durability.FSYNC)),
        log.roll(),
        log.append(batch_of(b"y")),
    )
    await turns(50)
    assert offsets(log) == list(range(5))
    assert log.partition.leader_epoch == 3


@in_loop
async def test_a_full_disk_is_told_and_the_next_try_seals_it():
    disk = SimulatedFilesystem()
    fault = Fault(call=1, error=errno.ENOSPC, only={"create"}, path=".seal")
    log = await make_store(FaultyFilesystem(disk, fault), config=SMALL).log("a")
    await fill(log, 3)
    with pytest.raises(DiskFull):
        await log.roll()
    assert growing(log) == [0]
    await fill(log, 3)
    assert bases(log) == [0, 3]
    await log.roll()
    await turns(50)
    assert (growing(log), bases(log)) == ([], [0, 3])
    assert offsets(log) == list(range(6))


@in_loop
async def test_what_only_the_sealing_of_its_segment_has_synced_is_acknowledged_too():
    """The batch that started the next segment was refused, so no other commit follows."""
    syncer = HeldSyncer()
    fault = Fault(call=1, error=errno.ENOSPC, only={"write_at"}, path=f"{3:020d}.log")
    filesystem = FaultyFilesystem(SimulatedFilesystem(), fault)
    config = LogConfig(segment_records_max=3)
    log = await make_store(filesystem, config=config, syncer=syncer).log("a")
    await log.append(batch_of(b"0"))
    first = log.submit(batch_of(b"1"))
    await turns()
    second = log.submit(batch_of(b"2"))
    await turns()
    with pytest.raises(DiskFull):
        await log.append(batch_of(b"3"))
    await turns(50)
    assert not first.done()
    syncer.sync_now()
    syncer.tell()
    assert [(await future).offset for future in (first, second)] == [1, 2]
    assert log.end_offset == 3


@in_loop
async def test_where_it_cannot_be_synced_the_log_is_offline():
    disk = SimulatedFilesystem()
    fault = Fault(call=2, only={"sync"}, path=f"{0:020d}.log")
    log = await make_store(FaultyFilesystem(disk, fault), config=SMALL).log("a")
    await fill(log, 3)
    with pytest.raises(LogOffline):
        await log.roll()


@in_loop
async def test_a_closed_log_is_not_rolled():
    _, store, log = await filled(3)
    await store.close()
    with pytest.raises(LogClosed):
        await log.roll()


@in_loop
async def test_closing_and_deleting_wait_for_it():
    disk, store, log = await filled(3)
    rolling = asyncio.ensure_future(log.roll())
    await turns(1)
    await store.close()
    await asyncio.wait([rolling])
    assert offsets(await make_store(disk, config=SMALL).log("a")) == [0, 1, 2]
    _, store, log = await filled(3)
    rolling = asyncio.ensure_future(log.roll())
    await turns(1)
    await store.delete("a")
    await asyncio.wait([rolling])
    rolling.exception()


# Rewritten segments are never reopened.


@in_loop
async def test_a_segment_that_is_to_be_rewritten_is_not_opened_again():
    disk, store, _ = await filled(3)
    await store.close()
    log = await make_store(disk, config=SMALL).log("a")
    assert log._segments.retire(log.sealed[0])
    await fill(log, 3)
    assert bases(log) == [0, 3]


@in_loop
async def test_a_segment_that_is_being_opened_again_is_not_rewritten():
    disk, store, _ = await filled(3)
    await store.close()
    background = HeldExecutor()
    log = await make_store(disk, config=SMALL, background=background).log("a")
    sealed = log.sealed[0]
    background.is_held = True
    appending = asyncio.ensure_future(log.append_records([Record(b"v")]))
    await turns()
    assert not log._segments.retire(sealed)
    background.let_go()
    await appending
    assert bases(log) == [0]


@in_loop
async def test_a_segment_that_was_rewritten_is_not_opened_again_after_a_start_either():
    disk, store, log = await filled(3)
    await log.delete_keys(key=b"k1")
    await log.roll()
    assert await clean(store, log)
    await store.close()
    log = await make_store(disk, config=SMALL).log("a")
    assert [segment.generation for segment in log.sealed] == [1]
    await fill(log, 3)
    assert bases(log) == [0, 3]
    assert offsets(log) == [0, 2, 3, 4, 5]


# Ages.


@in_loop
async def test_a_jump_of_the_wall_clock_ends_no_segment():
    clock = ManualClock()
    log = await make_store(config=LogConfig(segment_age_ms_max=1000), clock=clock).log("a")
    await log.append(batch_of(b"v"))
    clock.jump_wall(10**9)
    await log.append(batch_of(b"v"))
    clock.jump_wall(-2 * 10**9)
    await log.append(batch_of(b"v"))
    assert len(log.segments) == 1
    clock.advance(2)
    await log.append(batch_of(b"v"))
    assert len(log.segments) == 2


@in_loop
async def test_segments_are_dated_by_the_retention_clock():
    clock = ManualClock(wall_ms=5_000_000)
    _, store, log = await filled(3, clock=clock)
    first = store.now_ms()
    clock.jump_wall(10**9)
    clock.advance(7)
    await log.roll()
    seal = log.sealed[0].seal
    assert (seal.created_ms, seal.sealed_ms) == (first, first + 7_000)
    assert f"{DIRECTORY}/{0:020d}.seal" in store._filesystem.paths()
