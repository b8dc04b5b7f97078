"""Swap of rewritten segments: concurrent changes, and failures."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from itertools import islice

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import LogClosed, MillstreamError
from millstream.storage.compaction.cleaner import CleanerResult
from millstream.storage.disk.executor import ThreadExecutor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.names import parse_segment_file
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.storage.inspect.verify_store import verify_partition
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import (
    GROWING,
    OPENING,
    Fault,
    FaultyFilesystem,
    ManualClock,
    SimulatedFilesystem,
    sample_crash_states,
    sweep,
)
from millstream.testing.disk.crash_states import crash_states
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, make_store, turns

from .cleanings import COMPACTED, clean, put, ranges

PLAIN = replace(COMPACTED, is_compacted=False)
DIRECTORY = "/data/topics/a/0"
LEFT = [56, 57, 58, 59]


async def filled(
    config: LogConfig = COMPACTED, filesystem: object = None, *, count: int = 60
) -> tuple[Store, Log]:
    """Return a log of records of four keys, in several sealed segments."""
    store = make_store(filesystem or SimulatedFilesystem(), config=config)
    log = await store.log("a")
    for number in range(count):
        await put(log, b"k%d" % (number % 4), b"v" * 60)
    await log.roll()
    await turns(50)
    return store, log


def offsets(log: Log, first: int | None = None) -> list[int]:
    return [record.offset for record in log.records(first)]


def segments_on(disk: SimulatedFilesystem) -> set[tuple[int, int]]:
    """Return base offset and generation of all segments that have any file."""
    names = (path.rpartition("/")[2] for path in disk.paths() if path.startswith(DIRECTORY))
    return {found.id for found in map(parse_segment_file, names) if found}


def power_cuts(disk: SimulatedFilesystem, count: int) -> list[SimulatedFilesystem]:
    """Yield the states that a power cut could leave now."""
    now = len(disk.trace.events)
    states = crash_states(disk.trace, seed=1, points={now}, randoms=count)
    return [state.filesystem() for state in islice(states, count)]


def leftovers_on(disk: SimulatedFilesystem) -> list[str]:
    return [path for path in disk.paths() if path.endswith(".tmp")]


def published(log: Log) -> set[tuple[int, int]]:
    return {(base, max(generation, 0)) for base, _, generation in ranges(log)}


class Held:
    """A cleaner run whose long work waits until a test releases it."""

    def __init__(self, log: Log, *, is_forced: bool = False) -> None:
        self.background = HeldExecutor()
        self.background.is_held = True
        self.task = asyncio.ensure_future(
            clean(log, background=self.background, is_forced=is_forced)
        )

    async def work(self, pieces: int) -> None:
        """Run some pieces of work, without the steps on the loop that follow the last."""
        for _ in range(pieces):
            await turns()
            self.background.let_one_go()

    async def end(self) -> CleanerResult | None:
        while not self.task.done():
            await turns()
            if self.background.waiting:
                self.background.let_one_go()
        return await self.task


async def until_written(log: Log, held: Held) -> None:
    """Continue until the first output is written but not swapped in."""
    segments = len(log.segments)
    await held.work(segments + 1)  # Each is taken note of, and then one is rewritten.


# Concurrent changes.


@in_loop
async def test_readers_see_the_same_at_every_moment_of_a_run():
    _, log = await filled()
    held = Held(log)
    seen: set[tuple[int, ...]] = set()
    while not held.task.done():
        found = offsets(log)
        seen.add(tuple(found))
        assert set(LEFT) <= set(found)
        assert found == sorted(found)
        await asyncio.sleep(0)
        if held.background.waiting:
            held.background.let_one_go()
    assert len(seen) > 3  # One segment after the other.
    assert offsets(log) == LEFT


@in_loop
async def test_a_slice_that_was_read_stays_valid():
    _, log = await filled()
    found = log.read(0)
    before = bytes(found.data)
    await clean(log)
    await turns(50)
    assert bytes(found.data) == before


@in_loop
async def test_appends_go_on_while_a_run_is_under_way():
    _, log = await filled()
    held = Held(log)
    for number in range(20):
        await put(log, b"k%d" % (number % 4), b"w")
        if held.background.waiting:
            held.background.let_one_go()
    done = await held.end()
    assert done is not None
    assert done.compacted_offset == 60
    assert offsets(log) == [*LEFT, *range(60, 80)]


@pytest.mark.parametrize("how", ["delete_before", "evict_before"])
@pytest.mark.parametrize("where", [1, 9, 30, 60])
@in_loop
async def test_deleting_the_front_overtakes_a_run_or_leaves_it_alone(how, where):
    disk = SimulatedFilesystem()
    store, log = await filled(filesystem=disk)
    held = Held(log)
    await until_written(log, held)
    await getattr(log, how)(where)
    await held.end()
    await turns(50)
    assert log.start_offset == where
    assert set(LEFT) - set(range(where)) <= set(offsets(log))
    await clean(log)
    await turns(50)
    assert offsets(log) == [offset for offset in LEFT if offset >= where]
    assert segments_on(disk) == published(log)
    assert log.counters.cleaning_failures == 0
    await store.close()
    assert not verify_partition(disk, DIRECTORY)


@in_loop
async def test_a_dead_segment_that_stays_for_now_is_not_replaced():
    _, log = await filled(replace(COMPACTED, segment_bytes_max=64 * 1024))
    held = Held(log)
    await until_written(log, held)
    await log.delete_before(60)
    await held.end()
    assert ranges(log) == [(0, 60, 0)]  # It says where the log ends, until another follows it.
    await put(log, b"k", b"v")
    await turns(50)
    assert (ranges(log), offsets(log)) == ([(60, 61, -1)], [60])


@in_loop
async def test_a_segment_that_went_before_it_was_read_is_no_damage():
    _, log = await filled()
    held = Held(log)
    await turns()
    await log.delete_before(30)
    await turns(50)
    await held.end()
    assert log.counters.cleaning_failures == 0
    await clean(log)
    assert offsets(log) == LEFT


@in_loop
async def test_what_is_deleted_by_key_while_a_run_is_under_way_stays_deleted():
    disk = SimulatedFilesystem()
    store, log = await filled(filesystem=disk)
    held = Held(log)
    await until_written(log, held)
    assert await log.delete_keys(key=b"k1") == 15
    left = [offset for offset in range(60) if offset % 4 != 1]
    assert offsets(log) == left
    for cut in power_cuts(disk, 10):
        after = await make_store(cut, config=COMPACTED).log("a")
        assert offsets(after) == left
    await turns()
    while len(offsets(log)) > 3:
        assert not any(record.key == b"k1" for record in log.records())
        assert log.deleted_records > 0
        held.background.let_one_go()
        await turns()
    assert offsets(log) == [56, 58, 59]
    # The records that compaction dropped are still masked, and found to be gone.
    await held.end()
    assert (log.deleted_records, log.partition.deletions) == (0, ())
    assert offsets(log) == [56, 58, 59]
    await store.close()


@in_loop
async def test_masks_of_records_that_compaction_dropped_do_not_keep_a_rule():
    _, log = await filled(replace(COMPACTED, segment_bytes_max=64 * 1024))
    held = Held(log)
    await until_written(log, held)
    assert await log.delete_keys(key=b"k1", before=50) == 13  # All of them were dropped just now.
    await held.end()
    assert offsets(log) == LEFT
    assert (log.deleted_records, log.partition.deletions) == (0, ())
    assert ranges(log) == [(0, 60, 1)]


@in_loop
async def test_the_last_segment_may_be_opened_again_instead():
    disk = SimulatedFilesystem()
    store = make_store(disk, config=replace(PLAIN, segment_bytes_max=8192))
    log = await store.log("a")
    for number in range(4):
        await put(log, b"k%d" % number, b"v" * 50)
    await store.close()
    store = make_store(disk, config=replace(PLAIN, segment_bytes_max=8192))
    log = await store.log("a")
    await log.delete_keys(key=b"k1")
    held = Held(log)
    await turns()
    assert await put(log, b"k4", b"v") == 4  # The writer was quicker.
    assert ranges(log) == [(0, 5, -1)]
    await held.end()
    assert (ranges(log), offsets(log)) == ([(0, 5, -1)], [0, 2, 3, 4])
    await turns(50)
    assert segments_on(disk) == {(0, 0)}
    await store.close()


@pytest.mark.parametrize("pieces", range(8))
@in_loop
async def test_whoever_is_first_gets_the_last_segment(pieces):
    disk = SimulatedFilesystem()
    config = replace(PLAIN, segment_bytes_max=8192)
    store = make_store(disk, config=config)
    log = await store.log("a")
    for number in range(4):
        await put(log, b"k%d" % number, b"v" * 50)
    await store.close()
    background = HeldExecutor()
    store = make_store(disk, config=config, background=background)
    log = await store.log("a")
    await log.delete_keys(key=b"k1")
    background.is_held = True
    run = asyncio.ensure_future(clean(log, background=HeldExecutor()))
    for _ in range(pieces):
        await turns()
        if background.waiting:
            background.let_one_go()
    append = asyncio.ensure_future(put(log, b"k4", b"v"))
    while not (run.done() and append.done()):
        await turns()
        if background.waiting:
            background.let_one_go()
    assert await append == 4
    background.let_go()
    await turns()
    assert offsets(log) == [0, 2, 3, 4]
    assert ranges(log) in ([(0, 5, -1)], [(0, 4, 1), (4, 5, -1)])
    assert segments_on(disk) == published(log)
    await store.close()
    store = make_store(disk, config=config)
    assert offsets(await store.log("a")) == [0, 2, 3, 4]
    assert not store.damage()
    await store.close()


# Ending.


@pytest.mark.parametrize("pieces", range(0, 20, 3))
@in_loop
async def test_closing_ends_a_run_wherever_it_is_and_leaves_a_whole_log(pieces):
    disk = SimulatedFilesystem()
    store, log = await filled(filesystem=disk)
    held = Held(log)
    await held.work(pieces)
    closing = asyncio.ensure_future(log.close())
    await turns()
    held.background.let_go()
    await closing
    await held.task
    assert not leftovers_on(disk)
    assert segments_on(disk) == published(log)
    assert not verify_partition(disk, DIRECTORY)
    assert await clean(log) is None
    await store.close()
    store = make_store(disk, config=COMPACTED)
    log = await store.log("a")
    assert not store.recovered()
    await clean(log)
    assert offsets(log) == LEFT
    await store.close()


@in_loop
async def test_closing_does_not_wait_for_a_slow_run():
    store, log = await filled()
    threads = ThreadExecutor(1, name="cleaning")
    throttle = IoThrottle(1)  # It would take hours.
    run = asyncio.ensure_future(clean(log, background=threads, throttle=throttle))
    while log.counters.cleaned_bytes_read == 0 and not run.done():
        await asyncio.sleep(0)
        if threading.active_count() > 1:
            break
    async with asyncio.timeout(10):
        await log.close()
        await run
    threads.close()
    await store.close()


@in_loop
async def test_a_stopped_throttle_ends_a_run_and_what_was_done_stays():
    _, log = await filled()
    throttle = IoThrottle()
    background = HeldExecutor()
    background.is_held = True
    run = asyncio.ensure_future(clean(log, background=background, throttle=throttle))
    segments = len(log.segments)
    for _ in range(segments + 2):
        await turns()
        background.let_one_go()
    throttle.stop()
    while not run.done():
        await turns()
        background.let_go()
    done = await run
    assert done is not None
    assert 0 < done.segments_before < segments
    assert done.compacted_offset is None
    assert log.partition.cleaned_offset == 0
    assert log.counters.cleaning_failures == 0
    await clean(log)
    assert offsets(log) == LEFT


@pytest.mark.parametrize("pieces", range(0, 20, 3))
@in_loop
async def test_a_topic_made_anew_is_not_touched_by_the_cleaning_of_the_old_one(pieces):
    disk = SimulatedFilesystem()
    store, log = await filled(filesystem=disk)
    held = Held(log)
    await held.work(pieces)
    deleting = asyncio.ensure_future(store.delete("a"))
    await turns()
    assert held.background.waiting == 0 or not deleting.done()
    held.background.let_go()
    await deleting
    log = await store.log("a")
    await put(log, b"new", b"v")
    await held.task
    await turns(50)
    assert segments_on(disk) == {(0, 0)}
    assert not leftovers_on(disk)
    assert offsets(log) == [0]
    await store.close()


@in_loop
async def test_a_caller_that_gives_up_does_not_end_a_run():
    _, log = await filled()
    held = Held(log)
    await held.work(2)
    held.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held.task
    while log.partition.cleaned_offset == 0:
        await turns()
        held.background.let_go()
    assert offsets(log) == LEFT


@in_loop
async def test_an_offline_log_is_left_alone():
    disk = SimulatedFilesystem()
    fault = Fault(call=10**6, only={"sync"})
    _, log = await filled(filesystem=FaultyFilesystem(disk, fault))
    fault.call = fault._matched + 1
    with pytest.raises(MillstreamError):
        await put(log, b"k", b"v")
    assert log.offline is not None
    before = disk.contents()
    assert await clean(log, is_forced=True) is None
    assert disk.contents() == before


# Failures.


async def check_whole(log: Log, disk: SimulatedFilesystem, what: str) -> None:
    """Check that no record is lost and that the log goes on working."""
    found = offsets(log)
    assert {16, 17, 18, 19} <= set(found), what
    records = {record.offset: record.key for record in log.records()}
    assert all(key == b"k%d" % (offset % 4) for offset, key in records.items()), what
    for cut in power_cuts(disk, 3):
        after = make_store(cut, config=COMPACTED)
        assert not after.damage(), what
        reopened = await after.log("a")
        assert {16, 17, 18, 19} <= set(offsets(reopened)) <= set(found), what
        await clean(reopened)
        assert offsets(reopened) == [16, 17, 18, 19], what


@pytest.mark.parametrize(
    ("error", "only", "is_forever"),
    [
        (errno.EIO, None, False),
        (errno.EIO, None, True),
        (errno.ENOSPC, GROWING, False),
        (errno.ENOSPC, GROWING, True),
        (errno.EMFILE, OPENING, True),
    ],
)
@in_loop
async def test_whichever_call_fails_nothing_is_lost(error, only, is_forever):
    count = 0
    for fault in sweep(error=error, only=only, forever=is_forever):
        count += 1
        disk = SimulatedFilesystem()
        base = Fault(call=10**9)
        filesystem = FaultyFilesystem(disk, base)
        _, log = await filled(filesystem=filesystem, count=20)
        filesystem._calls.fault = fault
        await clean(log)
        await turns(50)
        filesystem._calls.fault = base  # All is well again.
        what = fault.describe()
        assert log.offline is None, what
        if count % 8 == 0 or not fault.hits:
            await check_whole(log, disk, what)
        for _ in range(2):
            await clean(log)
        await turns(50)
        assert offsets(log)[-4:] == [16, 17, 18, 19], what
        if not log.counters.cleaning_failures or error != errno.EIO:
            assert offsets(log) == [16, 17, 18, 19], what
            assert published(log) <= segments_on(disk), what
    assert count > 15


@in_loop
async def test_a_full_disk_is_told_of_once_and_tried_again(caplog):
    disk = SimulatedFilesystem()
    store, log = await filled(filesystem=disk)
    before = disk.contents()
    room, disk.bytes_max = disk.bytes_max, disk.bytes_used
    for _ in range(3):
        assert await clean(log) is None
    assert disk.contents() == before
    assert log.counters.cleaning_failures == 3
    assert len([r for r in caplog.records if "No space left" in r.message]) == 1
    disk.bytes_max = room
    assert await clean(log) is not None
    assert offsets(log) == LEFT
    await store.close()


# An uncertain seal.


DOUBTS = {"gone again": (3, {"sync_directory"}), "there": (7, {"sync_directory", "remove"})}
"""Whether the seal is there when the directory can be synced no more; and which calls fail."""


async def uncertain(
    kind: str = "gone again",
) -> tuple[SimulatedFilesystem, Store, Log, FaultyFilesystem]:
    """Return a log with a rewritten segment whose seal may or may not be durable."""
    disk = SimulatedFilesystem()
    filesystem = FaultyFilesystem(disk, Fault(call=10**9))
    store, log = await filled(filesystem=filesystem)
    call, only = DOUBTS[kind]
    filesystem._calls.fault = Fault(call=call, forever=True, only=only, path=DIRECTORY)
    await clean(log)
    assert log._cleaner.is_stopped
    seals = [path for path in disk.paths() if path.endswith(".1.seal")]
    assert len(seals) == (kind == "there")
    assert any(path.endswith(".1.log") for path in disk.paths())
    return disk, store, log, filesystem


def heal(filesystem: FaultyFilesystem) -> None:
    filesystem._calls.fault = Fault(call=10**9)


@pytest.mark.parametrize("kind", DOUBTS)
@in_loop
async def test_with_a_seal_in_doubt_both_sets_stay_and_nothing_is_cleaned(kind, caplog):
    disk, _, log, _ = await uncertain(kind)
    assert log._cleaner.is_stopped
    assert "cleaning is off until the log is reopened" in caplog.text
    before = disk.contents()
    assert len(offsets(log)) == 60
    for _ in range(3):
        assert await clean(log, is_forced=True) is None
    assert len([r for r in caplog.records if "cleaning is off" in r.message]) == 1
    assert {path for path in before if ".log" in path} == {
        path for path in disk.contents() if ".log" in path
    }
    assert (0, 0) in segments_on(disk)
    assert (0, 1) in segments_on(disk)


@pytest.mark.parametrize("kind", DOUBTS)
@in_loop
async def test_a_log_in_doubt_takes_appends_and_deletions_and_a_crash_finds_either_set(kind):
    disk, _, log, filesystem = await uncertain(kind)
    doubt = filesystem._calls.fault
    heal(filesystem)
    for number in range(60, 64):
        await put(log, b"k%d" % (number % 4), b"w")
    await log.delete_keys(key=b"k1")
    await log.delete_before(4)
    left = [offset for offset in range(4, 64) if offset % 4 != 1]
    filesystem._calls.fault = doubt
    assert offsets(log) == left
    for cut in power_cuts(disk, 30):
        store = make_store(cut, config=COMPACTED)
        reopened = await store.log("a")
        found = offsets(reopened)
        assert set(found) <= set(left)
        assert {60, 62, 63} <= set(found)
        assert not store.damage()
        await reopened.roll()
        await turns(50)
        await clean(reopened)
        assert offsets(reopened) == [60, 62, 63]


@pytest.mark.parametrize("where", [5, 12, 20, 60])
@pytest.mark.parametrize("kind", DOUBTS)
@in_loop
async def test_the_front_of_a_log_in_doubt_may_go(kind, where):
    disk, _, log, filesystem = await uncertain(kind)
    doubt = filesystem._calls.fault
    heal(filesystem)
    await log.delete_before(where)
    await turns(50)
    filesystem._calls.fault = doubt
    for cut in power_cuts(disk, 30):
        store = make_store(cut, config=PLAIN)
        reopened = await store.log("a")
        assert (reopened.start_offset, reopened.end_offset) == (where, 60)
        found = offsets(reopened)
        assert set(found) <= set(range(where, 60))
        assert set(LEFT) - set(range(where)) <= set(found)
        assert not store.damage()


@pytest.mark.parametrize("kind", DOUBTS)
@in_loop
async def test_doubt_ends_when_the_seal_can_be_taken_away(kind):
    disk, store, log, filesystem = await uncertain(kind)
    heal(filesystem)
    assert await clean(log) is not None
    assert not log._cleaner.is_stopped
    assert offsets(log) == LEFT
    await turns(50)
    assert segments_on(disk) == published(log)
    await store.close()
    assert not verify_partition(disk, DIRECTORY)


@pytest.mark.parametrize("kind", DOUBTS)
@in_loop
async def test_doubt_ends_when_the_log_is_opened_again(kind):
    disk, store, _, filesystem = await uncertain(kind)
    heal(filesystem)
    log = await store.reopen("a")
    await clean(log)
    assert offsets(log) == LEFT
    await turns(50)
    assert segments_on(disk) == published(log)
    await store.close()


# Crashes.


@pytest.mark.parametrize("is_forced", [False, True])
@in_loop
async def test_a_crash_at_any_moment_leaves_the_old_set_or_the_new_one(is_forced):
    disk, clock = SimulatedFilesystem(), ManualClock()
    config = replace(COMPACTED, segment_bytes_max=2048)
    store = make_store(disk, config=config, clock=clock)
    log = await store.log("a")
    for number in range(40):
        await put(log, b"k%d" % (number % 4), None if number == 39 else b"v" * 60)
    await log.roll()
    await turns(50)
    begin = len(disk.trace.events)
    await clean(log, is_forced=is_forced)
    await turns(50)
    await log.delete_keys(key=b"k1")
    clock.advance(100)
    await clean(log, is_forced=True)
    await turns(50)
    wanted = {36, 37, 38, 39}
    count = 0
    for state in sample_crash_states(disk.trace, 500, seed=5):
        if state.point < begin:
            continue
        count += 1
        filesystem = state.filesystem()
        if any(path.endswith(".1.seal") for path in filesystem.paths()):
            assert read_partition_metadata(filesystem, DIRECTORY).is_rewritten, state
        after = make_store(filesystem, config=config, clock=clock)
        assert not after.damage(), state
        reopened = await after.log("a")
        shown = {record.key: record.offset for record in reopened.records()}
        assert reopened.end_offset == 40, state
        assert shown.keys() >= {b"k0", b"k2"}, state
        assert set(shown.values()) <= wanted, state
        found = await clean(reopened, is_forced=True)
        assert found is None or found.compacted_offset == 40, state
        assert {record.offset for record in reopened.records()} <= wanted, state
    assert count > 100


@in_loop
async def test_closed_logs_refuse_to_be_cleaned_quietly():
    store, log = await filled()
    await store.close()
    assert await clean(log) is None
    with pytest.raises(LogClosed):
        await put(log, b"k", b"v")
