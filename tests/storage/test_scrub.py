"""Damage that nobody reads is found: every sealed segment is read now and then, and no faster."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from millstream.config.schema import LogConfig, StoreConfig
from millstream.errors import DamagedRecords
from millstream.records.record import Record
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.names import LogName
from millstream.storage.files.scrub_file import (
    ScrubPosition,
    ScrubProgress,
    read_scrub_progress,
    write_scrub_progress,
)
from millstream.storage.scrub import begin_pass, end_pass, is_ahead, is_pass_due
from millstream.storage.segment import segment_check
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.in_loop import in_loop

from .logs import make_store, turns

pytestmark = pytest.mark.timeout(60)

TWO_EACH = LogConfig(segment_records_max=2, index_interval_bytes=64)
TEN_EACH = replace(TWO_EACH, segment_records_max=10)
DAY = 24 * 3600.0
WEEK_MS = 7 * 24 * 3_600_000


async def fill(
    disk: Filesystem, *topics: str, count: int = 10, config: LogConfig = TWO_EACH
) -> None:
    """Leave logs on a disk, closed cleanly, so that all segments are sealed."""
    store = make_store(disk, config=config)
    for topic in topics:
        log = await store.log(topic)
        for number in range(count):
            await log.append_records([Record(b"%d" % number)])
        await turns()
    await store.close()


def log_file(topic: str, base_offset: int) -> str:
    return f"/data/topics/{topic}/0/{base_offset:020}.log"


def flip_value(disk: SimulatedFilesystem, path: str, position: int = -1) -> None:
    size = len(disk.content(path))
    disk.flip_bit(path, 8 * (position % size))


def damaged_offsets(store: Store) -> dict[str, list[tuple[int, int]]]:
    """Return what health reports: the ranges of lost offsets, by log."""
    return {
        str(name): [(e.from_offset, e.to_offset) for e in found if isinstance(e, DamagedRecords)]
        for name, found in store.damage().items()
    }


# What is found.


@in_loop
async def test_damage_that_nobody_reads_is_reported_as_if_a_reader_had_met_it() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a", "b")
    flip_value(disk, log_file("b", 4))
    store = make_store(disk, config=TWO_EACH)
    assert store.damage() == {}, "a clean start trusts the seals"
    await store.scrubber.run_once()
    assert damaged_offsets(store) == {"b/0": [(5, 5)]}
    assert store.scrubber.counters.damaged_segments == 1
    log = await store.log("b")
    with pytest.raises(DamagedRecords):
        log.read(5, size_max=1)
    assert damaged_offsets(store) == {"b/0": [(5, 5)]}, "the reader meets the same range"
    assert log.read(4, size_max=1).next_offset == 5
    await store.close()


@in_loop
async def test_logs_without_damage_are_not_opened_and_nothing_is_reported() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a", "b")
    store = make_store(disk, config=TWO_EACH)
    await store.scrubber.run_once()
    assert store.damage() == {}
    assert store.open_logs == []
    sizes = [len(disk.content(path)) for path in disk.paths() if path.endswith(".log")]
    assert store.scrubber.counters.bytes == sum(sizes)
    assert store.scrubber.counters.segments == len(sizes)
    await store.close()


def flip_in_the_first(disk: SimulatedFilesystem) -> None:
    flip_value(disk, log_file("a", 0), 65)


def flip_the_stamped_epoch(disk: SimulatedFilesystem) -> None:
    flip_value(disk, log_file("a", 0), 15)


def flip_the_length(disk: SimulatedFilesystem) -> None:
    flip_value(disk, log_file("a", 0), 8)


def cut_short(disk: SimulatedFilesystem) -> None:
    disk.cut(log_file("a", 0), len(disk.content(log_file("a", 0))) - 1)


def cut_to_nothing(disk: SimulatedFilesystem) -> None:
    disk.cut(log_file("a", 0), 0)


def restore_other_records(disk: SimulatedFilesystem) -> None:
    """Valid batches of the right offsets, size and epoch, but not those that were sealed."""
    disk.replace_content(log_file("a", 0), disk.content(log_file("other", 0)))


@pytest.mark.parametrize(
    ("damage", "first", "last"),
    [
        (flip_in_the_first, 0, 0),
        (flip_the_stamped_epoch, 0, 0),
        (flip_the_length, 0, 0),
        (cut_short, 9, 9),
        (cut_to_nothing, 0, 9),
        (restore_other_records, 0, 9),
    ],
)
@pytest.mark.parametrize("window", [128, 1024 * 1024])
@in_loop
async def test_every_kind_of_damage_is_found_with_the_offsets_that_it_costs(
    damage: Callable[[SimulatedFilesystem], None],
    first: int,
    last: int,
    window: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_check, "WINDOW_BYTES", window)
    disk = SimulatedFilesystem()
    await fill(disk, "a", "z", config=TEN_EACH)
    store = make_store(disk, config=TEN_EACH)
    other = await store.log("other")
    for number in range(10):
        await other.append_records([Record(b"%d" % (9 - number))])
    await turns()
    damage(disk)
    await store.scrubber.run_once()
    assert damaged_offsets(store) == {"a/0": [(first, last)]}
    await store.close()


@in_loop
async def test_a_segment_that_the_disk_cannot_read_is_damaged_and_the_others_are_checked() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a")
    fault = Fault(call=1, forever=True, only={"read_at"}, path=log_file("a", 4))
    store = make_store(FaultyFilesystem(disk, fault), config=TWO_EACH)
    await store.scrubber.run_once()
    assert damaged_offsets(store) == {"a/0": [(4, 5)]}
    [problem] = store.damage()[LogName("a", 0)]
    assert "cannot be read: Input/output error" in str(problem)
    assert store.scrubber.counters.segments == 5
    await store.close()


@in_loop
async def test_a_segment_whose_file_is_gone_is_damaged() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a")
    store = make_store(disk, config=TWO_EACH)
    disk.remove(log_file("a", 4))
    await store.scrubber.run_once()
    assert damaged_offsets(store) == {"a/0": [(4, 5)]}
    await store.close()


@in_loop
async def test_a_segment_that_was_replaced_while_it_was_read_is_not_damaged() -> None:
    """Compaction removes its files between the two looks."""
    disk = SimulatedFilesystem()
    compacted = replace(TWO_EACH, is_compacted=True)
    store = make_store(disk, config=compacted)
    log = await store.log("a")
    for number in range(9):
        await log.append_records([Record(b"%d" % number, key=b"k")])
    await turns()
    before = list(log.sealed)
    await store.maintenance.run_once(is_forced=True)
    assert before[0] not in log.sealed
    for segment in before:
        await store.scrubber._confirm(LogName("a", 0), segment)
    assert store.damage() == {}
    await store.close()


@in_loop
async def test_a_failure_in_one_log_does_not_keep_the_others_from_being_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a", "b")
    flip_value(disk, log_file("a", 4))
    flip_value(disk, log_file("b", 4))
    store = make_store(disk, config=TWO_EACH)
    opener = store.maintenance.opener

    async def refuse(name: LogName):
        if name.topic == "a":
            raise ZeroDivisionError
        return await opener(name)

    store.maintenance.opener = refuse
    await store.scrubber.run_once()
    assert damaged_offsets(store) == {"b/0": [(5, 5)]}
    assert store.scrubber.counters.failures == 1
    assert "scrub of a/0 failed" in caplog.text
    await store.close()


# When, and how fast.


def test_a_pass_is_due_when_none_was_made_or_the_last_one_began_long_enough_ago() -> None:
    new = ScrubProgress(since_ms=5)
    assert is_pass_due(new, now_ms=5, interval_ms=WEEK_MS)
    assert not is_pass_due(new, now_ms=5, interval_ms=0), "0 turns it off"
    running = begin_pass(new, now_ms=10)
    assert is_pass_due(running, now_ms=11, interval_ms=WEEK_MS), "it was interrupted"
    assert begin_pass(running, now_ms=20) == running, "it goes on"
    done = end_pass(running, now_ms=100)
    assert not is_pass_due(done, now_ms=10 + WEEK_MS - 1, interval_ms=WEEK_MS)
    assert is_pass_due(done, now_ms=10 + WEEK_MS, interval_ms=WEEK_MS)
    assert (done.since_ms, done.passes) == (100, 1)


def test_a_pass_goes_on_behind_the_last_segment_that_it_read() -> None:
    progress = ScrubProgress(since_ms=0, last=ScrubPosition("b", 2, 100))
    assert [
        is_ahead(progress, LogName(topic, partition), base)
        for topic, partition, base in [("a", 9, 900), ("b", 1, 900), ("b", 2, 100)]
    ] == [False, False, False]
    assert is_ahead(progress, LogName("b", 2), 101)
    assert is_ahead(progress, LogName("b", 10), 0), "by number, not by text"
    assert is_ahead(progress, LogName("c", 0), 0)


@in_loop
async def test_a_pass_is_made_once_per_interval() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a")
    clock = ManualClock()
    timers = ManualTimers(clock)
    config = StoreConfig(upkeep_interval_ms=0, scrub_interval_ms=WEEK_MS)
    store = make_store(disk, config=TWO_EACH, clock=clock, store_config=config)
    store.start_maintenance(timers)
    await turns(50)
    assert store.scrubber.counters.segments == 0, "a start is left alone"
    seen = []
    for _ in range(16):
        timers.advance(DAY)
        await turns(200)
        seen.append(store.scrubber.progress.passes)
    assert seen == [1] * 7 + [2] * 7 + [3] * 2
    assert store.scrubber.pass_age_seconds == pytest.approx(DAY + DAY, abs=DAY)
    await store.close()


@in_loop
async def test_without_an_interval_nothing_is_read() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a")
    clock = ManualClock()
    timers = ManualTimers(clock)
    config = StoreConfig(upkeep_interval_ms=0, scrub_interval_ms=0)
    store = make_store(disk, config=TWO_EACH, clock=clock, store_config=config)
    store.start_maintenance(timers)
    timers.advance(30 * DAY)
    await turns(50)
    assert store.scrubber.counters.bytes == 0
    await store.close()


@in_loop
async def test_a_scrub_reads_no_faster_than_its_limit() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a")
    clock = ManualClock()
    store = make_store(disk, config=TWO_EACH, clock=clock)
    store.scrubber._throttle = IoThrottle(100, monotonic=clock.monotonic, wait=clock.advance)
    began = clock.monotonic()
    await store.scrubber.run_once()
    size = store.scrubber.counters.bytes
    assert size > 0
    assert clock.monotonic() - began == pytest.approx(size / 100)
    await store.close()


# Restarts.


@in_loop
async def test_a_pass_that_a_stop_interrupts_goes_on_after_the_restart() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a", "b")
    store = make_store(disk, config=TWO_EACH)
    wanted = 3

    def stop_after_some(size: int) -> None:
        if store.scrubber.counters.segments == wanted:
            store.scrubber._throttle.stop()
        count(size)

    count, store.scrubber._count = store.scrubber._count, stop_after_some  # type: ignore[method-assign]
    await store.scrubber.run_once()
    assert store.scrubber.counters.segments == wanted
    await store.close()
    store = make_store(disk, config=TWO_EACH)
    await store.scrubber.run_once()
    assert store.scrubber.counters.segments == 10 - wanted
    assert store.scrubber.progress.passes == 1
    await store.scrubber.run_once()
    assert store.scrubber.counters.segments == 20 - wanted, "the next pass reads everything"
    await store.close()


def cut_in_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_other_content(data: bytes) -> bytes:
    return data.replace(b'"passes":1', b'"passes":7')


@pytest.mark.parametrize("damage", [cut_in_half, with_other_content])
@in_loop
async def test_a_damaged_progress_file_costs_one_more_pass(
    damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a")
    store = make_store(disk, config=TWO_EACH)
    await store.scrubber.run_once()
    await store.close()
    disk.replace_content("/data/scrub.json", damage(disk.content("/data/scrub.json")))
    store = make_store(disk, config=TWO_EACH)
    with caplog.at_level(logging.WARNING):
        await store.scrubber.run_once()
    assert "begins at the first log" in caplog.text
    assert store.scrubber.progress.passes == 1
    assert store.scrubber.counters.segments == 5
    await store.close()


def test_what_is_written_down_is_read_again() -> None:
    disk = SimulatedFilesystem()
    disk.make_directory("/data")
    assert read_scrub_progress(disk, "/data") is None
    progress = ScrubProgress(
        since_ms=1, begun_ms=2, is_running=True, last=ScrubPosition("t", 3, 4), passes=5
    )
    write_scrub_progress(disk, "/data", progress)
    assert read_scrub_progress(disk, "/data") == progress
    write_scrub_progress(disk, "/data", end_pass(progress, now_ms=9))
    assert read_scrub_progress(disk, "/data") == end_pass(progress, now_ms=9)


@in_loop
async def test_a_full_disk_does_not_end_a_pass() -> None:
    disk = SimulatedFilesystem()
    await fill(disk, "a")
    fault = Fault(call=1, error=errno.ENOSPC, forever=True, only={"create"}, path="scrub.json")
    store = make_store(FaultyFilesystem(disk, fault), config=TWO_EACH)
    await store.scrubber.run_once()
    assert fault.hits
    assert store.scrubber.progress.passes == 1
    await store.close()
