"""On a completely full disk, data can still be deleted."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import DiskFull
from millstream.records.record import Record
from millstream.storage.files.ballast import BALLAST_SIZE, BallastFile
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem, sweep
from millstream.testing.disk.crash_states import crash_states
from tests.in_loop import in_loop
from tests.storage.logs import make_store, turns

SMALL = LogConfig(segment_records_max=2, index_interval_bytes=64)
FOUR_KEPT = replace(SMALL, retention_records=4)
PATH = "/data/spare"


def fill_up(disk: SimulatedFilesystem) -> None:
    """Fill the remaining disk space, as another process would."""
    disk.bytes_max = disk.bytes_used


async def full_store(
    disk: SimulatedFilesystem,
    *,
    config: LogConfig = FOUR_KEPT,
    clock: ManualClock | None = None,
    has_spare: bool = True,
) -> tuple[Store, Log]:
    """Return a store whose disk is full after ten records, of which four may stay."""
    store = make_store(disk, config=config, clock=clock)
    log = await store.log("a")
    if has_spare:
        await store.maintenance.run_once()
    for number in range(10):
        await log.append_records([Record(b"%d" % number)])
    await turns()
    fill_up(disk)
    return store, log


async def is_refused(log: Log) -> bool:
    try:
        await log.append_records([Record(b"x" * 200_000)])
    except DiskFull:
        return True
    return False


@in_loop
async def test_upkeep_makes_room_and_writes_go_on() -> None:
    disk = SimulatedFilesystem()
    store, log = await full_store(disk)
    assert await is_refused(log)
    await store.maintenance.run_once()
    assert (log.start_offset, log.eviction_floor) == (6, 6)
    await turns()
    assert (await log.append_records([Record(b"room again")])).offset == 10
    await store.close()
    assert make_store(disk).recovered_log(("a", 0)).partition.eviction_floor == 6


@in_loop
async def test_without_a_ballast_file_a_full_disk_stays_full(caplog) -> None:
    """So it is the ballast file that helps, and nothing else."""
    store, log = await full_store(SimulatedFilesystem(), has_spare=False)
    await store.maintenance.run_once()
    assert log.partition.start_offset == 0
    assert len(log.segments) == 5
    assert "maintenance of a/0: a/0: the disk is full: " in caplog.text
    assert store.maintenance.counters.failures == 1


@in_loop
async def test_nobody_can_take_the_room_that_is_kept() -> None:
    """All space that is released on the way is taken at once by another process."""
    disk = SimulatedFilesystem()
    _, log = await full_store(disk)
    used, remove = disk.bytes_used, disk.remove

    def remove_and_take(path: str) -> None:
        remove(path)
        fill_up(disk)

    disk.remove = remove_and_take
    await log.evict_before(6)
    assert log.start_offset == 6
    await turns()
    assert disk.bytes_used < used


@in_loop
async def test_the_ballast_file_is_restored_and_can_be_used_again() -> None:
    disk = SimulatedFilesystem()
    store, log = await full_store(disk)
    await log.evict_before(6)
    await turns()
    assert PATH not in disk.paths()
    await store.maintenance.run_once()
    assert len(disk.content(PATH)) == BALLAST_SIZE
    disk.free(100_000)
    for number in range(4):
        await log.append_records([Record(b"%d" % number)])
    await turns()
    fill_up(disk)
    await store.maintenance.run_once()
    assert log.start_offset == 10


@in_loop
async def test_records_can_be_deleted_on_request_too() -> None:
    disk = SimulatedFilesystem()
    _, log = await full_store(disk, config=SMALL)
    await log.delete_before(5)
    assert (log.start_offset, log.eviction_floor) == (5, 0)


@in_loop
async def test_the_ballast_file_is_kept_for_what_frees_space() -> None:
    disk = SimulatedFilesystem()
    _, log = await full_store(disk, config=SMALL)
    with pytest.raises(DiskFull):
        await log.delete_before(1)  # Inside the first segment: no file would go.
    assert len(disk.content(PATH)) == BALLAST_SIZE
    await log.delete_before(2)
    assert log.start_offset == 2


@in_loop
async def test_a_segment_that_cannot_be_closed_for_want_of_room_keeps_no_other_from_going() -> None:
    clock, last = ManualClock(), f"{8:020d}.index"
    fault = Fault(call=1, error=errno.ENOSPC, forever=True, only={"create"}, path=last)
    disk = FaultyFilesystem(SimulatedFilesystem(), fault)
    store = make_store(disk, config=replace(FOUR_KEPT, segment_age_ms_max=1000), clock=clock)
    log = await store.log("a")
    for number in range(10):
        await log.append_records([Record(b"%d" % number)])
    await turns()
    clock.advance(10)
    await store.maintenance.run_once()
    assert fault.hits, "the last was to be closed"
    assert store.maintenance.counters.failures == 1
    assert log.start_offset == 6


@in_loop
async def test_a_store_opens_on_a_full_disk_and_makes_room() -> None:
    disk, clock = SimulatedFilesystem(), ManualClock()
    store, _ = await full_store(disk, clock=clock)
    disk.free(10_000)
    await store.close()
    clock.reboot("boot-2")
    fill_up(disk)
    store = make_store(disk, config=FOUR_KEPT, clock=clock)
    await store.maintenance.run_once()
    assert (await store.log("a")).start_offset == 6


@in_loop
async def test_a_power_cut_while_the_ballast_file_is_used_leaves_the_old_start_or_the_new() -> None:
    disk = SimulatedFilesystem()
    _, log = await full_store(disk, config=SMALL)
    begin = len(disk.trace.events)
    await log.evict_before(6)
    disk.note("evicted")
    await turns()
    starts = set()
    for state in crash_states(disk.trace, seed=1, points=range(begin, len(disk.trace.events) + 1)):
        after = state.filesystem()
        store = make_store(after, config=SMALL)
        assert store.damage() == {}, str(state)
        log = await store.log("a")
        assert [r.offset for r in log.records(log.start_offset)] == list(
            range(log.start_offset, 10)
        ), str(state)
        assert log.eviction_floor == log.start_offset, str(state)
        assert log.start_offset == 6 or "evicted" not in state.notes, str(state)
        starts.add(log.start_offset)
        if state.point % 5 == 0:
            await store.maintenance.run_once()
            assert len(after.content(PATH)) == BALLAST_SIZE, str(state)
    assert starts == {0, 6}


@in_loop
async def test_whatever_call_fails_the_log_starts_where_it_did_or_where_it_should() -> None:
    for fault in sweep(error=errno.EIO, path="/data"):
        disk = SimulatedFilesystem()
        await full_store(disk)
        faulty = FaultyFilesystem(disk, fault)
        ballast = BallastFile(faulty, PATH)
        data = b"the new description"
        before = disk.content("/data/topics/a/0/partition.json")
        try:
            ballast.replace_file("/data/topics/a/0", "partition.json", data)
        except OSError:
            assert fault.hits, "only what was planted fails"
        found = disk.content("/data/topics/a/0/partition.json")
        assert found in (before, data), fault.describe()
        assert found == data or fault.hits


# The file itself.


def test_it_is_made_once_and_again_where_it_is_not_whole():
    disk = SimulatedFilesystem({"/data": None})
    ballast = BallastFile(disk, PATH)
    ballast.ensure()
    assert disk.content(PATH) == bytes(BALLAST_SIZE)
    events = len(disk.trace.events)
    ballast.ensure()
    assert len(disk.trace.events) == events
    disk.cut(PATH, 100)
    ballast.ensure()
    assert len(disk.content(PATH)) == BALLAST_SIZE


def test_where_there_is_no_room_for_it_nothing_is_left_lying_about():
    disk = SimulatedFilesystem({"/data": None}, bytes_max=BALLAST_SIZE // 2)
    with pytest.raises(OSError, match="No space left"):
        BallastFile(disk, PATH).ensure()
    assert disk.paths() == []
    assert disk.bytes_used == 0


@pytest.mark.parametrize("size", [0, 1, 1000, BALLAST_SIZE])
def test_what_fits_is_written_without_any_more_room(size):
    disk = SimulatedFilesystem({"/data": None, "/data/d": None, "/data/d/f": b"old"})
    ballast = BallastFile(disk, PATH)
    ballast.ensure()
    fill_up(disk)
    assert ballast.replace_file("/data/d", "f", b"n" * size)
    assert disk.content("/data/d/f") == b"n" * size


def test_what_does_not_fit_is_refused_and_the_ballast_file_stays():
    disk = SimulatedFilesystem({"/data": None, "/data/d": None, "/data/d/f": b"old"})
    ballast = BallastFile(disk, PATH)
    ballast.ensure()
    assert not ballast.replace_file("/data/d", "f", bytes(BALLAST_SIZE + 1))
    assert disk.content("/data/d/f") == b"old"
    assert len(disk.content(PATH)) == BALLAST_SIZE


def test_a_ballast_file_that_was_used_is_not_used_again():
    disk = SimulatedFilesystem({"/data": None, "/data/d": None, "/data/d/f": b"old"})
    ballast = BallastFile(disk, PATH)
    ballast.ensure()
    ballast.replace_file("/data/d", "f", b"new")
    assert not ballast.replace_file("/data/d", "f", b"newer")
    assert disk.content("/data/d/f") == b"new"
