"""Truncation removes everything from an offset on, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millstream.config.schema import Discard, Durability
from millstream.errors import LogOffline, OffsetOutOfRange, RequestError, Unavailable
from millstream.records.record import Record
from millstream.storage.disk.executor import ThreadExecutor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.log import Log
from millstream.storage.segment.log_state import LogSnapshot
from millstream.storage.segment.segment import Segment
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from millstream.testing.disk.changes import Truncate
from tests.crash.workload import damage_found
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, make_store, turns
from tests.storage.replica.replicas import (
    SMALL,
    bases,
    fill,
    make_leader,
    make_replica,
    open_log,
    replicate,
    segment_files,
    values,
)


async def filled(count: int = 20, disk: SimulatedFilesystem | None = None) -> Log:
    _, log = await open_log(disk or SimulatedFilesystem())
    await fill(log, count)
    return log


@pytest.mark.parametrize("offset", range(0, 20, 3))
@in_loop
async def test_a_truncated_log_has_what_was_before_the_offset_and_grows_from_there(
    offset: int,
) -> None:
    disk = SimulatedFilesystem()
    log = await filled(disk=disk)
    before = values(log)
    result = await log.replication.truncate(offset)
    assert (result.end_offset, result.removed_offsets) == (offset, 20 - offset)
    assert result.removed_bytes > 0
    assert (log.end_offset, log.next_offset, log.synced_offset) == (offset, offset, offset)
    assert values(log) == before[:offset]
    assert (await log.append_records([Record(b"next")])).offset == offset
    expected = [*before[:offset], b"next"]
    assert values(log) == expected
    assert not damage_found(disk)
    _, again = await open_log(disk.crash())
    assert values(again) == expected
    assert again.recovered.damage == []


@in_loop
async def test_truncating_to_the_end_changes_nothing() -> None:
    log = await filled(4)
    assert (await log.replication.truncate(4)).removed_offsets == 0
    assert len(values(log)) == 4


@in_loop
async def test_an_offset_inside_a_batch_removes_that_batch_and_says_so() -> None:
    _, log = await open_log(SimulatedFilesystem())
    for name in "abc":
        await log.append_records([Record(f"{name}{n}".encode()) for n in range(3)])
    result = await log.replication.truncate(7)
    assert (result.end_offset, log.end_offset) == (6, 6)
    assert values(log)[-1] == b"b2"


@in_loop
async def test_a_log_is_not_truncated_before_its_start_or_beyond_its_end() -> None:
    log = await filled(6)
    await log.delete_before(3)
    for offset in (2, 7):
        with pytest.raises(OffsetOutOfRange):
            await log.replication.truncate(offset)
    await log.replication.truncate(3)
    assert (log.start_offset, log.end_offset) == (3, 3)
    assert (await log.append_records([Record(b"x")])).offset == 3


@in_loop
async def test_the_start_inside_a_batch_that_would_be_removed_is_an_error() -> None:
    _, log = await open_log(SimulatedFilesystem())
    await log.append_records([Record(b"a"), Record(b"b"), Record(b"c")])
    await log.delete_before(1)
    with pytest.raises(OffsetOutOfRange, match="got 0"):
        await log.replication.truncate(2)
    assert values(log) == [b"b", b"c"]


@in_loop
async def test_epochs_without_a_batch_are_forgotten() -> None:
    _, log = await open_log(SimulatedFilesystem())
    for epoch in (1, 2, 3):
        await log.begin_epoch(epoch)
        await fill(log, 2)
    await log.replication.truncate(4)
    assert [(e.number, e.start_offset) for e in log.partition.epochs] == [(1, 0), (2, 2)]
    assert (log.replication.last_epoch, log.replication.epoch_end(2)) == (2, (2, 4))
    await log.replication.truncate(1)
    assert [(e.number, e.start_offset) for e in log.partition.epochs] == [(1, 0)]
    await log.replication.truncate(0)
    assert log.replication.last_epoch is None


@in_loop
async def test_deletions_by_key_do_not_hit_the_offsets_that_are_given_again() -> None:
    disk = SimulatedFilesystem()
    _, log = await open_log(disk)
    for number in range(6):
        await log.append_records([Record(str(number).encode(), key=b"k")])
    await log.delete_keys(key=b"k", before=5)
    await log.replication.truncate(3)
    await log.append_records([Record(b"new", key=b"k")])
    assert values(log) == [b"new"]
    _, again = await open_log(disk.crash())
    assert values(again) == [b"new"]


@in_loop
async def test_what_caps_left_out_does_not_come_back() -> None:
    disk = SimulatedFilesystem()
    config = replace(SMALL, retention_records=4, discard=Discard.OLD)
    store = make_store(disk, config=config)
    log = await store.log("a")
    await log.begin_retention()
    await fill(log, 10)
    assert log.start_offset == 6
    await log.replication.truncate(8)
    assert (log.start_offset, log.end_offset) == (6, 8)
    store = make_store(disk.crash(), config=config)
    log = await store.log("a")
    await log.begin_retention()
    assert (log.start_offset, log.end_offset) == (6, 8)


@in_loop
async def test_a_reader_keeps_the_bytes_that_it_has() -> None:
    log = await filled()
    sealed, growing = log.read(0), log.read(18)
    before = bytes(sealed.data), bytes(growing.data)
    await log.replication.truncate(1)
    await fill(log, 20, name="other")
    assert (bytes(sealed.data), bytes(growing.data)) == before


@in_loop
async def test_a_sealed_segment_is_cut_by_a_copy_because_readers_map_it() -> None:
    """A file must not become shorter below a map: the process would get a signal."""
    disk = SimulatedFilesystem()
    log = await filled(disk=disk)
    before = len(disk.trace.events)
    await log.replication.truncate(log.segments[0].next_offset - 1)
    assert not [e for e in disk.trace.events[before:] if isinstance(e, Truncate)]


@pytest.mark.parametrize("offset", [1, 9, 19])
@in_loop
async def test_a_reader_in_flight_finds_the_end_and_takes_nothing_for_damage(offset: int) -> None:
    """It took its snapshot before the truncation, and reads the files after it."""
    log = await filled()
    state = log._state
    old, find = state.snapshot, state._segment_of
    await log.replication.truncate(offset)
    new, state.snapshot = state.snapshot, old

    def find_late(wanted: int, snapshot: LogSnapshot) -> Segment:
        state.snapshot = new
        return find(wanted, snapshot)

    state._segment_of = find_late  # type: ignore[method-assign]
    if offset < 19:
        with pytest.raises(OffsetOutOfRange):
            log.read(offset + 1)
        state.snapshot = old
    assert not log.read(offset).data
    assert log.damage == []


@in_loop
async def test_appends_that_are_not_written_are_refused_and_later_ones_succeed() -> None:
    background = HeldExecutor()
    store = make_store(config=SMALL, background=background)
    log = await store.log("a")
    await fill(log, 12)
    background.is_held = True
    truncation = asyncio.ensure_future(log.replication.truncate(5))
    await turns(3)
    with pytest.raises(Unavailable, match="is being truncated"):
        await log.append_records([Record(b"meanwhile")])
    background.let_go()
    await truncation
    assert (await log.append_records([Record(b"after")])).offset == 5


@in_loop
async def test_offsets_that_are_taken_back_are_told() -> None:
    log = await filled(9)
    told: list[int] = []
    log.on_rewind = told.append

    async def prepare(offset: int) -> None:
        assert log.end_offset == 9, "told before anything is removed"
        told.append(-offset)

    log.replication.before_truncation = prepare
    await log.replication.truncate(4)
    assert told == [-4, 4]


@in_loop
async def test_whoever_derived_state_from_the_records_can_prevent_a_truncation() -> None:
    log = await filled(9)

    async def refuse(offset: int) -> None:
        raise Unavailable("cannot save")

    log.replication.before_truncation = refuse
    with pytest.raises(Unavailable, match="cannot save"):
        await log.replication.truncate(4)
    assert log.end_offset == 9
    assert log.partition.truncation is None
    assert (await log.append_records([Record(b"x")])).offset == 9


@in_loop
async def test_what_is_on_enough_replicas_is_truncated_only_by_force() -> None:
    disk = SimulatedFilesystem()
    store, log = await open_log(disk)
    await fill(log, 9)
    log.replication.set_high_watermark(6)
    with pytest.raises(RequestError, match="below its high watermark 6, got 5"):
        await log.replication.truncate(5)
    await log.replication.truncate(7)
    await store.close()
    _, log = await open_log(disk)
    assert log.replication.known_high_watermark == 6
    with pytest.raises(RequestError, match="below its high watermark"):
        await log.replication.truncate(5)
    await log.replication.truncate(5, is_forced=True)
    assert log.replication.known_high_watermark == 0
    assert log.end_offset == 5


@in_loop
async def test_a_failed_step_takes_the_log_offline_and_opening_it_finishes_the_truncation() -> None:
    disk = SimulatedFilesystem()
    fault = Fault(call=10**9, only={"rename"})
    store = make_store(FaultyFilesystem(disk, fault), config=SMALL)
    log = await store.log("a")
    await fill(log, 20)
    fault.call = fault._matched + 2
    with pytest.raises(LogOffline):
        await log.replication.truncate(2)
    log = await store.reopen("a")
    assert log.recovered.truncated_to == 2
    assert len(values(log)) == 2
    assert (await log.append_records([Record(b"x")])).offset == 2


@in_loop
async def test_segments_that_were_rewritten_are_cut_too() -> None:
    disk = SimulatedFilesystem()
    log = await filled(24, disk)
    for number in (2, 3, 9):
        await log.append_records([Record(b"again", key=str(number).encode())])
    await log.delete_before(2)
    await log.roll()
    background = ThreadExecutor(1, name="clean")
    await log.clean(
        background=background,
        throttle=IoThrottle(0),
        memory_bytes_max=10**7,
        seed=1,
        is_forced=True,
    )
    background.close()
    assert any(segment.generation for segment in log.sealed)
    before = values(log)
    await log.replication.truncate(11)
    assert values(log) == before[: 11 - log.start_offset]
    await log.append_records([Record(b"x")])
    for after in (disk.copy(), disk.crash()):
        _, again = await open_log(after)
        assert again.recovered.damage == []
        assert values(again) == [*before[: 11 - log.start_offset], b"x"]


@in_loop
async def test_a_rewrite_in_flight_is_given_up_before_its_inputs_are_cut() -> None:
    """Its output, without a seal and with its inputs gone, would bring back what was removed."""
    disk = SimulatedFilesystem()
    log = await filled(24, disk)
    await log.delete_before(1)
    await log.roll()
    background = HeldExecutor()
    background.is_held = True
    cleaning = asyncio.ensure_future(
        log.clean(
            background=background,
            throttle=IoThrottle(0),
            memory_bytes_max=10**7,
            seed=1,
            is_forced=True,
        )
    )
    await turns()
    assert background.waiting
    truncation = asyncio.ensure_future(log.replication.truncate(2))
    await turns()
    assert not truncation.done(), "it waits for the cleaner"
    background.let_go()
    await asyncio.gather(cleaning, truncation)
    assert not [name for name in disk.list("/data/topics/a/0") if ".1." in name]
    before = values(log)
    assert len(before) == 1
    _, again = await open_log(disk.crash())
    assert values(again) == before


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.MEMORY, Durability.EPHEMERAL])
@in_loop
async def test_other_durability_classes_are_truncated_too(durability: Durability) -> None:
    store = make_store(config=replace(SMALL, durability=durability))
    log = await store.log("a")
    await fill(log, 15)
    await turns()
    await log.replication.truncate(6)
    assert len(values(log)) == 6
    await log.append_records([Record(b"x")])
    await turns()
    assert values(log)[-1] == b"x"


@in_loop
async def test_a_replica_that_diverged_is_cut_and_becomes_equal() -> None:
    leader, replica = await make_leader(1), await make_replica()
    await fill(leader, 9)
    await replicate(leader, replica)
    await fill(leader, 4, name="lost")
    await replica.begin_epoch(2)
    await fill(replica, 12, name="new")
    await leader.replication.become_replica()
    own = leader.replication.last_epoch
    assert own is not None
    found = replica.replication.epoch_end(own)
    assert found == (1, 9)
    await leader.replication.truncate(found[1])
    await replicate(replica, leader)
    await turns()
    assert segment_files(leader) == segment_files(replica)


@in_loop
async def test_a_replica_that_is_too_far_behind_begins_again_at_the_start_of_its_leader() -> None:
    disk = SimulatedFilesystem()
    leader, replica = await make_leader(3), await make_replica(disk)
    await fill(leader, 5)
    await replicate(leader, replica)
    await fill(leader, 25)
    await leader.evict_before(20, "age")
    await turns()
    first = leader.replication.first_offset
    assert 5 < first <= 20
    with pytest.raises(OffsetOutOfRange):
        leader.replication.read(5)
    await replica.replication.restart_at(first)
    assert (replica.start_offset, replica.end_offset) == (first, first)
    await replicate(leader, replica)
    await replica.replication.set_start(20, eviction_floor=20, eviction_reason="age")
    assert segment_files(replica) == segment_files(leader)
    gap = replica.gap_at(0)
    assert gap == leader.gap_at(0)
    assert bases(replica) == bases(leader)
    again = await make_replica(disk.crash())
    assert (again.start_offset, again.end_offset, again.gap_at(0)) == (20, 30, gap)
