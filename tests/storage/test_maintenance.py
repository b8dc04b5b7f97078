"""Logs are looked after though nobody asks: what has to go goes, and nothing that does not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from millstream.config.schema import Discard, Durability, LogConfig, StoreConfig
from millstream.embedded import open_store
from millstream.errors import LogClosed, LogFull, UnknownLog
from millstream.records.record import Record
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.files.document import encode_document
from millstream.storage.files.names import LogName
from millstream.storage.files.seal import decode_seal, encode_seal
from millstream.storage.log import Log
from millstream.storage.retention.eviction import Eviction
from millstream.storage.segment.segment import GrowingSegment
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.in_loop import in_loop

from .logs import HeldExecutor, make_store, turns

pytestmark = pytest.mark.timeout(60)

HOUR = 3600.0
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
TWO_EACH = LogConfig(segment_records_max=2, index_interval_bytes=64)
AN_HOUR = replace(TWO_EACH, retention_ms=HOUR_MS)
FOUR_KEPT = replace(TWO_EACH, retention_records=4)
A, B, C = LogName("a", 0), LogName("b", 0), LogName("c", 0)


async def fill(log: Log, count: int = 10, *, timestamp_ms: int | None = None) -> None:
    for number in range(count):
        await log.append_records([Record(b"%d" % number, timestamp_ms=timestamp_ms)])
    await turns()


async def filled(
    disk: Filesystem, *topics: str, clock: ManualClock | None = None, count: int = 10
) -> None:
    """Leave logs on a disk, closed cleanly."""
    store = make_store(disk, config=TWO_EACH, clock=clock)
    for topic in topics:
        await fill(await store.log(topic), count)
    await store.close()


async def started_at(disk: Filesystem, topic: str = "a", *, clock: ManualClock) -> int:
    """Open a store, look after it, close it, and return where a log starts then."""
    store = make_store(disk, config=AN_HOUR, clock=clock)
    await store.maintenance.run_once()
    start = (await store.log(topic)).start_offset
    await store.close()
    return start


# Time.


@pytest.mark.parametrize("jump_ms", [50 * YEAR_MS, -50 * YEAR_MS, 7900 * YEAR_MS, -HOUR_MS])
@in_loop
async def test_no_jump_of_the_wall_clock_makes_data_older_or_younger(jump_ms: int) -> None:
    clock = ManualClock()
    store = make_store(config=AN_HOUR, clock=clock)
    log = await store.log("a")
    await fill(log, 3)
    clock.jump_wall(jump_ms)
    await fill(log, 3)
    clock.advance(HOUR)
    clock.jump_wall(jump_ms)
    await store.maintenance.run_once()
    assert log.start_offset == 0, "nothing is older than an hour"
    clock.advance(0.001)
    clock.jump_wall(-jump_ms)
    await store.maintenance.run_once()
    assert log.start_offset == 4, "what was closed an hour ago goes"
    clock.advance(HOUR + 1)
    await store.maintenance.run_once()
    assert log.start_offset == 6, "and so does the rest, once it was closed"


@pytest.mark.parametrize("timestamp_ms", [0, -1, 253_402_300_799_000, 2**62])
@in_loop
async def test_records_dated_1970_or_9999_live_as_long_as_any_other(timestamp_ms: int) -> None:
    clock = ManualClock()
    store = make_store(config=AN_HOUR, clock=clock)
    log = await store.log("a")
    await fill(log, 4, timestamp_ms=timestamp_ms)
    await log.roll()
    clock.advance(HOUR)
    await store.maintenance.run_once()
    assert log.start_offset == 0
    clock.advance(0.001)
    await store.maintenance.run_once()
    assert log.start_offset == 4


def jump_ahead(clock: ManualClock, disk: SimulatedFilesystem) -> None:
    clock.jump_wall(50 * YEAR_MS)


def jump_back(clock: ManualClock, disk: SimulatedFilesystem) -> None:
    clock.jump_wall(-50 * YEAR_MS)


def reboot(clock: ManualClock, disk: SimulatedFilesystem) -> None:
    clock.reboot("boot-2")
    clock.jump_wall(YEAR_MS)
    clock.advance(HOUR / 2)


def lose_clock(clock: ManualClock, disk: SimulatedFilesystem) -> None:
    disk.remove("/data/clock.json")
    clock.jump_wall(50 * YEAR_MS)


def damage_clock(clock: ManualClock, disk: SimulatedFilesystem) -> None:
    disk.flip_bit("/data/clock.json", 400)
    clock.jump_wall(-50 * YEAR_MS)


def come_from_the_future(clock: ManualClock, disk: SimulatedFilesystem) -> None:
    """As after a copy from a machine whose clock stands further on, in what looks like its boot."""
    content = {
        "steady_ms": clock.wall_ms(),
        "since_ms": clock.wall_ms(),
        "boot_id": clock.boot_id(),
        "monotonic_ms": 10**15,
    }
    disk.replace_content("/data/clock.json", encode_document("millstream-clock", 1, content))


@pytest.mark.parametrize(
    "between",
    [jump_ahead, jump_back, reboot, lose_clock, damage_clock, come_from_the_future],
    ids=lambda between: between.__name__,
)
@in_loop
async def test_whatever_becomes_of_the_clock_between_two_starts_nothing_goes_too_soon(
    between: Callable[[ManualClock, SimulatedFilesystem], None],
) -> None:
    disk, clock = SimulatedFilesystem(), ManualClock()
    await filled(disk, "a", clock=clock)
    between(clock, disk)
    assert await started_at(disk, clock=clock) == 0
    clock.advance(HOUR / 2)
    assert await started_at(disk, clock=clock) == 0
    clock.advance(HOUR)
    assert await started_at(disk, clock=clock) == 10, "time goes on, and data does not live forever"


@in_loop
async def test_a_store_that_was_dated_by_a_wall_clock_counts_from_now_on() -> None:
    """As an earlier release left it: one seal of 1970, one of the year 9999, and no clock."""
    disk, clock = SimulatedFilesystem(), ManualClock()
    await filled(disk, "a", clock=clock)
    seals = [path for path in disk.paths() if path.endswith(".seal")]
    for path, date in zip(seals, [0, 253_402_300_799_000, 1, 2, 3], strict=True):
        seal = replace(decode_seal(disk.content(path)), created_ms=date, sealed_ms=date)
        disk.replace_content(path, encode_seal(seal))
    disk.remove("/data/clock.json")
    assert await started_at(disk, clock=clock) == 0
    clock.advance(HOUR)
    assert await started_at(disk, clock=clock) == 0
    clock.advance(0.001)
    assert await started_at(disk, clock=clock) == 10


@in_loop
async def test_time_is_written_down_every_minute_and_when_the_store_is_closed() -> None:
    disk, clock = SimulatedFilesystem(), ManualClock()
    store = make_store(disk, clock=clock)
    opened = store.now_ms()
    clock.advance(59)
    await store.maintenance.run_once()
    clock.advance(1)
    await store.maintenance.run_once()
    clock.advance(30)
    await store.maintenance.run_once()
    clock.reboot("boot-2")
    after_power_cut = make_store(disk.crash(), clock=clock)
    assert after_power_cut.now_ms() == opened + 60_000
    clock.advance(5)
    await after_power_cut.close()
    clock.reboot("boot-3")
    assert make_store(after_power_cut._filesystem, clock=clock).now_ms() == opened + 65_000


# Which logs, and what becomes of them.


@in_loop
async def test_an_old_growing_segment_is_closed_though_nobody_appends() -> None:
    clock = ManualClock()
    store = make_store(config=replace(AN_HOUR, segment_records_max=1000), clock=clock)
    log = await store.log("a")
    await fill(log, 3)
    clock.advance(HOUR)
    await store.maintenance.run_once()
    assert isinstance(log.segments[-1], GrowingSegment)
    clock.advance(0.001)
    await store.maintenance.run_once()
    assert not isinstance(log.segments[-1], GrowingSegment)
    assert log.start_offset == 0
    clock.advance(HOUR + 0.001)
    await store.maintenance.run_once()
    assert (log.start_offset, log.eviction_floor) == (3, 3)
    await fill(log, 1)
    assert [record.offset for record in log.records(3)] == [3]


@in_loop
async def test_restarts_and_a_trickle_of_records_do_not_keep_old_ones_alive() -> None:
    """A segment that was closed for its age is not opened again, or it would never go."""
    disk, clock = SimulatedFilesystem(), ManualClock()
    config = replace(AN_HOUR, segment_records_max=1000)
    for _ in range(8):
        store = make_store(disk, config=config, clock=clock)
        log = await store.log("a")
        await fill(log, 1)
        await store.maintenance.run_once()
        clock.advance(HOUR / 2)
        await store.close()
    assert log.end_offset - log.start_offset <= 5, "two hours, and what was closed with them"


@in_loop
async def test_logs_that_are_not_open_are_looked_after_and_opened_only_for_that() -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b")
    await filled(disk, "c", count=2)
    store = make_store(disk, config=FOUR_KEPT)
    await store.maintenance.run_once()
    assert sorted(log.name for log in store.open_logs) == ["a/0", "b/0"]
    assert [(await store.log(topic)).start_offset for topic in "abc"] == [6, 6, 0]


@in_loop
async def test_a_log_that_is_not_open_is_opened_when_a_tombstone_of_it_may_go() -> None:
    disk, clock = SimulatedFilesystem(), ManualClock()
    config = replace(TWO_EACH, is_compacted=True, tombstone_ms=HOUR_MS)
    store = make_store(disk, config=config, clock=clock)
    log = await store.log("a")
    await log.append_records([Record(b"v", key=b"k")])
    await log.append_records([Record(None, key=b"k")])
    await log.roll()
    await turns(50)
    await store.maintenance.run_once()
    assert [record.offset for record in log.records()] == [1], "the tombstone stays for an hour"
    await store.close()
    store = make_store(disk, config=config, clock=clock)
    clock.advance(HOUR - 1)
    await store.maintenance.run_once()
    assert store.open_logs == [], "there is nothing to do yet"
    clock.advance(1)
    await store.maintenance.run_once()
    assert [record.offset for record in (await store.log("a")).records()] == []


@in_loop
async def test_a_dry_run_says_what_would_go_and_touches_nothing() -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b")
    await filled(disk, "c", count=2)
    store = make_store(disk, config=FOUR_KEPT)
    await store.log("b")
    before = disk.contents()
    plans = store.plan_evictions()
    sizes = [sum(s.size for s in store.recovered_log(name).segments[:3]) for name in (A, B)]
    assert plans == [
        (A, Eviction(6, 3, sizes[0], 6, ("records",), "records")),
        (B, Eviction(6, 3, sizes[1], 6, ("records",), "records")),
    ]
    assert disk.contents() == before
    assert [log.name for log in store.open_logs] == ["b/0"]
    await store.maintenance.run_once()
    assert store.plan_evictions() == []


@in_loop
async def test_whoever_opens_a_log_first_decides_its_settings_though_upkeep_was_there() -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b")
    store = make_store(disk, config=FOUR_KEPT)
    await store.maintenance.run_once()
    mine = replace(TWO_EACH, durability=Durability.DISK, retention_records=2)
    log = await store.log("a", config=mine)
    assert (log.config, log.partition.durability) == (mine, Durability.DISK)
    assert (await store.log("a", config=TWO_EACH)).config == mine, "an open log keeps its own"
    assert (await store.log("b")).config == FOUR_KEPT
    await store.maintenance.run_once()
    assert log.start_offset == 8


@in_loop
async def test_a_log_that_was_deleted_meanwhile_is_not_made_anew() -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a")
    store = make_store(disk, config=FOUR_KEPT)
    deleting = asyncio.ensure_future(store.delete("a"))
    await asyncio.sleep(0)
    with pytest.raises(UnknownLog, match="a/0 does not exist"):
        await store.borrow(A)
    await deleting
    assert store.names() == []


@in_loop
async def test_who_knows_the_settings_of_logs_opens_them_and_may_leave_some_alone() -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b")
    store = make_store(disk, config=TWO_EACH)
    opened = []

    async def open_log(name: LogName) -> Log:
        opened.append(name)
        return await store.log(*name, config=FOUR_KEPT)

    store.maintenance.opener = open_log
    store.maintenance.config_of = lambda name: FOUR_KEPT if name == A else None
    assert [name for name, _ in store.plan_evictions()] == [A]
    await store.maintenance.run_once(is_forced=True)
    assert set(opened) == {A}
    assert store.get("a").start_offset == 6


@in_loop
async def test_trouble_with_one_log_is_counted_and_the_others_are_looked_after(caplog) -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b", "c")
    fault = Fault(call=1, forever=True, only={"rename"}, path="/b/0/partition.json")
    store = make_store(FaultyFilesystem(disk, fault), config=FOUR_KEPT)
    await store.maintenance.run_once()
    assert store.maintenance.counters.failures == 1
    assert "maintenance of b/0: " in caplog.text
    starts = {topic: (await store.log(topic)).start_offset for topic in "ac"}
    assert starts == {"a": 6, "c": 6}


@in_loop
async def test_even_a_bug_in_one_log_leaves_the_others_looked_after(caplog) -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b")
    store = make_store(disk, config=FOUR_KEPT)
    borrow = store.maintenance.opener

    async def open_log(name: LogName) -> Log:
        assert name != A, "a bug"
        return await borrow(name)

    store.maintenance.opener = open_log
    await store.maintenance.run_once()
    assert store.maintenance.counters.failures == 1
    assert "maintenance of a/0 failed" in caplog.text
    assert (await store.log("b")).start_offset == 6


@in_loop
async def test_a_damaged_log_is_left_as_it_is(caplog) -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b")
    log = f"/data/topics/a/0/{8:020d}"
    disk.remove(log + ".seal")
    disk.flip_bit(log + ".log", 8 * 70)
    disk.replace_content("/data/topics/b/0/partition.json", b"{}")
    store = make_store(disk, config=FOUR_KEPT)
    before = {path: data for path, data in disk.contents().items() if "/a/" in path}
    caplog.clear()
    await store.maintenance.run_once()
    if (offline := store.recovered_log(A).offline) is not None:
        assert {path: data for path, data in disk.contents().items() if "/a/" in path} == before
        assert str(offline) not in caplog.text, "it was said when the store was opened"


@in_loop
async def test_what_is_ephemeral_goes_too() -> None:
    store = make_store(config=replace(FOUR_KEPT, durability=Durability.EPHEMERAL))
    log = await store.log("a")
    await fill(log)
    await store.maintenance.run_once()
    assert log.start_offset == 6


@in_loop
async def test_a_log_that_rejects_takes_more_when_age_has_made_room() -> None:
    clock = ManualClock()
    config = replace(AN_HOUR, retention_records=4, discard=Discard.REJECT)
    store = make_store(config=config, clock=clock)
    log = await store.log("a")
    await fill(log, 4)
    with pytest.raises(LogFull, match="at most 4 records, has 4"):
        await log.append_records([Record(b"one too many")])
    await store.maintenance.run_once()
    assert (log.start_offset, log.end_offset) == (0, 4)
    clock.advance(HOUR + 1)
    await store.maintenance.run_once()
    assert log.start_offset == 4, "what was there more than an hour ago"
    assert (await log.append_records([Record(b"fits")])).offset == 4


# When.


def with_timers(**settings: int) -> tuple[Store, ManualClock, ManualTimers]:
    clock = ManualClock()
    config = StoreConfig(**settings, scrub_interval_ms=0)
    store = make_store(config=AN_HOUR, store_config=config, clock=clock)
    return store, clock, ManualTimers(clock)


@in_loop
async def test_it_happens_every_interval_from_when_it_is_started() -> None:
    store, _, timers = with_timers(upkeep_interval_ms=5000)
    assert timers.pending == 0
    store.start_maintenance(timers)
    store.start_maintenance(timers)
    assert timers.pending == 1
    for seconds, runs in ((4.9, 0), (0.1, 1), (4.9, 1), (0.1, 2)):
        timers.advance(seconds)
        await turns()
        assert store.maintenance.counters.runs == runs
    await store.close()
    assert timers.pending == 0


@in_loop
async def test_an_interval_of_0_is_never() -> None:
    store, _, timers = with_timers(upkeep_interval_ms=0)
    store.start_maintenance(timers)
    assert timers.pending == 0
    await store.maintenance.run_once()
    await store.close()


@in_loop
async def test_the_event_loop_of_the_store_keeps_the_time_where_no_one_else_does() -> None:
    store = make_store(store_config=StoreConfig(upkeep_interval_ms=1))
    keep_house, was_kept = store.run_housekeeping, asyncio.Event()

    async def note_keeping() -> None:
        await keep_house()
        was_kept.set()

    store.run_housekeeping = note_keeping
    store.start_maintenance()
    await was_kept.wait()
    await store.close()


@pytest.mark.parametrize(("interval_ms", "is_running"), [(30_000, True), (0, False)])
@in_loop
async def test_an_embedded_store_is_looked_after_unless_it_is_set_not_to(
    tmp_path, interval_ms, is_running
):
    config = StoreConfig(upkeep_interval_ms=interval_ms)
    with open_store(tmp_path, store_config=config) as store:
        assert (store.inner.maintenance._timer is not None) is is_running

    async with open_store(tmp_path, store_config=config) as inner:
        assert (inner.maintenance._timer is not None) is is_running


@in_loop
async def test_it_can_be_asked_for_while_it_happens() -> None:
    store, _, timers = with_timers(upkeep_interval_ms=1000)
    store.start_maintenance(timers)
    timers.advance(1)
    await asyncio.gather(store.maintenance.run_once(), store.maintenance.run_once())
    assert store.maintenance.counters.runs == 3
    await store.close()


@in_loop
async def test_a_caller_that_gives_up_leaves_nothing_half_done() -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a")
    store = make_store(disk, config=FOUR_KEPT)
    running = asyncio.ensure_future(store.maintenance.run_once())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()
    assert make_store(disk).recovered_log(A).partition.start_offset in (0, 6)


COMPACTED = replace(TWO_EACH, is_compacted=True, dirty_ratio_min=0.0)


@in_loop
async def test_cleaning_that_takes_long_keeps_no_one_from_being_evicted() -> None:
    clock = ManualClock()
    timers = ManualTimers(clock)
    store = make_store(
        config=AN_HOUR, store_config=StoreConfig(upkeep_interval_ms=60_000), clock=clock
    )
    store.maintenance._background = held = HeldExecutor()
    held.is_held = True
    log = await store.log("a", config=COMPACTED)
    for _ in range(6):
        await log.append_records([Record(b"v", key=b"k")])
    await turns()
    other = await store.log("b")
    await fill(other)
    store.start_maintenance(timers)
    timers.advance(60)
    await turns(50)
    assert held.waiting == 1, "the cleaning is under way"
    for _ in range(60):
        timers.advance(60)
        await turns(50)
    assert held.waiting == 1
    assert other.start_offset == 8
    held.let_go()
    await store.close()


@in_loop
async def test_closing_the_store_ends_cleaning_that_waits_for_its_turn(tmp_path) -> None:
    """In a thread of its own, held up for an hour by its limit."""
    config = StoreConfig(cleaning_bytes_per_second_max=1)
    async with Store(str(tmp_path), config=config, log_config=COMPACTED) as store:
        log = await store.log("a")
        for _ in range(6):
            await log.append_records([Record(b"v" * 1000, key=b"k")])
        throttle, is_waiting = store.maintenance._throttle, threading.Event()
        sleep = throttle._sleep
        throttle._sleep = lambda *args: (is_waiting.set(), sleep(*args))
        cleaning = asyncio.ensure_future(store.maintenance.run_once())
        await asyncio.to_thread(is_waiting.wait)
    await cleaning
    with pytest.raises(LogClosed, match="is closed"):
        await store.maintenance.run_once()


@in_loop
async def test_logs_that_need_it_are_cleaned() -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=COMPACTED)
    for topic in "ab":
        log = await store.log(topic)
        for number in range(9):
            await log.append_records([Record(b"%d" % number, key=b"k")])
    await store.close()
    store = make_store(disk, config=COMPACTED)
    await store.maintenance.run_once()
    for topic in "ab":
        log = await store.log(topic)
        assert [record.value for record in log.records()] == [b"8"]
    await store.close()


@in_loop
async def test_a_growing_segment_from_which_much_was_deleted_is_closed_and_rewritten() -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk)
    log = await store.log("a")
    for number in range(10):
        await log.append_records([Record(b"secret %d" % number, key=b"%d" % (number % 2))])
    assert await log.delete_keys(key=b"1") == 5
    await store.maintenance.run_once()
    await turns(50)
    assert log.reclaimable_bytes == 0
    assert log.partition.deletions == ()
    assert not [p for p, data in disk.contents().items() if data and b"secret 1" in data]
    assert [record.value for record in log.records()] == [
        b"secret %d" % number for number in range(0, 10, 2)
    ]
    await store.close()


@in_loop
async def test_nothing_is_cleaned_where_nothing_has_to_be(caplog) -> None:
    disk = SimulatedFilesystem()
    await filled(disk, "a", "b", "c")
    store = make_store(disk, config=TWO_EACH)
    with caplog.at_level(logging.INFO):
        caplog.clear()
        await store.maintenance.run_once()
    assert store.open_logs == []
    assert caplog.records == []
