"""New settings for an open log, and what an acknowledgement promises before and after."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    BatchTooLarge,
    DiskFull,
    InvalidConfig,
    LogClosed,
    LogOffline,
    WouldBlock,
)
from millstream.records.record import Record
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.storage.log import Log
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop

from .logs import HeldExecutor, batch_of, make_store, turns

EPHEMERAL, MEMORY, DISK, FSYNC = (LogConfig(durability=kind) for kind in Durability)
ON_DISK = [MEMORY, DISK, FSYNC]
DIRECTORY = "/data/topics/a/0"


def name(config: LogConfig) -> str:
    return config.durability.value


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


async def values_on(disk: SimulatedFilesystem) -> list[bytes | None]:
    store = make_store(disk)
    assert store.damage() == {}
    return values(await store.log("a"))


def cut(disk: SimulatedFilesystem, seed: int | None = None) -> SimulatedFilesystem:
    """Cut the power of a copy of the machine, so that this one continues."""
    twin = SimulatedFilesystem()
    twin.trace.events.extend(disk.trace.events)
    return twin.crash(seed)


# Limits.


@in_loop
async def test_a_smaller_segment_ends_the_one_that_grows():
    log = await make_store().log("a")
    await log.append(batch_of(b"x" * 2000))
    await log.reconfigure(LogConfig(segment_bytes_max=1024))
    assert log.config.segment_bytes_max == 1024
    await log.append(batch_of(b"v"))
    assert [segment.base_offset for segment in log.segments] == [0, 1]


@in_loop
async def test_a_shorter_age_ends_the_segment_that_grows():
    clock = ManualClock()
    log = await make_store(clock=clock).log("a")
    await log.append(batch_of(b"v"))
    clock.advance(10)
    await log.reconfigure(LogConfig(segment_age_ms_max=5_000))
    await log.append(batch_of(b"v"))
    assert [segment.base_offset for segment in log.segments] == [0, 1]


@in_loop
async def test_the_limit_of_a_batch_holds_for_the_next():
    log = await make_store().log("a")
    await log.reconfigure(LogConfig(batch_size_max=100))
    with pytest.raises(BatchTooLarge, match="limit is 100"):
        await log.append(batch_of(b"x" * 100))
    await log.reconfigure(LogConfig(batch_size_max=1000))
    assert (await log.append(batch_of(b"x" * 100))).offset == 0


@in_loop
async def test_a_wider_bound_admits_those_who_wait():
    batch = batch_of(b"v")
    background = HeldExecutor()
    tight = LogConfig(unflushed_bytes_max=len(batch))
    log = await make_store(background=background, config=tight).log("a")
    background.is_held = True
    first = log.submit(batch)
    waiting = log.submit(batch)
    with pytest.raises(WouldBlock):
        log.try_append(batch)
    await log.reconfigure(LogConfig())
    assert log.next_offset == 2
    background.let_go()
    assert [(await first).offset, (await waiting).offset] == [0, 1]


@in_loop
async def test_an_index_becomes_denser_with_the_next_segment():
    log = await make_store(config=LogConfig(segment_bytes_max=1024)).log("a")
    for _ in range(12):
        await log.append(batch_of(b"v" * 100))
    before = len(log.segments[0].index())
    config = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)
    await log.reconfigure(config)
    for _ in range(12):
        await log.append(batch_of(b"v" * 100))
    assert len(log.segments[-2].index()) > before
    assert [record.offset for record in log.records()] == list(range(24))


@in_loop
async def test_settings_other_than_the_class_touch_no_disk():
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    before = len(disk.trace.events)
    await log.reconfigure(LogConfig(segment_bytes_max=2048))
    assert len(disk.trace.events) == before


# The durability class.


@pytest.mark.parametrize("before", ON_DISK, ids=name)
@pytest.mark.parametrize("after", ON_DISK, ids=name)
@in_loop
async def test_a_class_is_durable_when_it_was_changed(before, after):
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=before).log("a")
    await log.append(batch_of(b"before"))
    await log.reconfigure(after)
    assert (log.config, log.partition.durability) == (after, after.durability)
    assert read_partition_metadata(cut(disk), DIRECTORY).durability is after.durability
    appended = await log.append(batch_of(b"after"))
    assert appended.offset == 1
    await turns()
    assert values(log) == [b"before", b"after"]


@pytest.mark.parametrize("before", [MEMORY, DISK], ids=name)
@in_loop
async def test_an_acknowledgement_of_class_fsync_vouches_for_all_that_came_before(before):
    disk = SimulatedFilesystem()
    small = replace(before, segment_bytes_max=1024)
    log = await make_store(disk, config=small).log("a")
    for _ in range(3):
        await log.append(batch_of(b"x" * 600))
    await log.append(batch_of(b"weak"))
    await log.reconfigure(FSYNC)
    await log.append(batch_of(b"strong"))
    for seed in (None, *range(20)):
        assert (await values_on(cut(disk, seed)))[3:] == [b"weak", b"strong"]


@in_loop
async def test_what_was_taken_for_class_fsync_is_acknowledged_by_it():
    """It is not handed out with the first batch of a weaker class."""
    disk, background = SimulatedFilesystem(), HeldExecutor()
    log = await make_store(disk, background=background).log("a")
    await log.append(batch_of(b"first"))
    background.is_held = True
    strong = log.submit(batch_of(b"strong"))
    await turns()
    changing = asyncio.ensure_future(log.reconfigure(DISK))
    await turns()
    weak = log.submit(batch_of(b"weak"))
    await turns()
    assert not strong.done()
    assert not weak.done(), "it waits for the class to change"
    assert background.waiting == 1, "and that for the sync"
    background.let_one_go()
    await strong
    assert await values_on(cut(disk)) == [b"first", b"strong"]
    background.let_go()
    await changing
    assert (await weak).offset == 2
    background.is_held = True
    assert (await log.append(batch_of(b"weak too"))).offset == 3, "no sync is waited for"
    background.let_go()


@in_loop
async def test_classes_may_change_back_and_forth_while_appends_go_on():
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=replace(FSYNC, segment_bytes_max=1024)).log("a")

    async def append(count: int) -> None:
        for number in range(count):
            await log.append_records([Record(b"x" * (number % 5) * 60)])

    async def change() -> None:
        for config in (DISK, FSYNC, MEMORY, FSYNC, DISK, MEMORY, DISK, FSYNC):
            await log.reconfigure(replace(config, segment_bytes_max=1024))
            await turns(3)

    await asyncio.gather(append(40), append(40), change())
    await log.append(batch_of(b"last"))
    assert [record.offset for record in log.records()] == list(range(81))
    assert len(await values_on(disk.crash())) == 81


@pytest.mark.parametrize(("before", "after"), [(EPHEMERAL, DISK), (FSYNC, EPHEMERAL)])
@in_loop
async def test_nothing_becomes_ephemeral_or_ceases_to_be_while_it_is_open(before, after):
    log = await make_store(config=before).log("a")
    await log.append(batch_of(b"v"))
    message = f"a/0 is {name(before)} and cannot become {name(after)} while it is open"
    with pytest.raises(InvalidConfig, match=message):
        await log.reconfigure(after)
    assert log.config == before
    assert (await log.append(batch_of(b"v"))).offset == 1


@in_loop
async def test_a_log_opened_again_with_class_fsync_vouches_for_what_a_weaker_one_left():
    disk = SimulatedFilesystem()
    store = make_store(disk, config=DISK)
    await (await store.log("a")).append(batch_of(b"weak"))
    disk = disk.copy()
    store = make_store(disk, config=DISK)
    await store.log("a", config=FSYNC)
    assert await values_on(disk.crash()) == [b"weak"]


# Failing.


@pytest.mark.parametrize("call", ["create", "write_at", "sync_directory"])
@in_loop
async def test_a_full_disk_leaves_the_class_as_it_was(call):
    disk = SimulatedFilesystem()
    fault = Fault(call=10**9, error=errno.ENOSPC, only=[call])
    log = await make_store(FaultyFilesystem(disk, fault), config=DISK).log("a")
    await log.append(batch_of(b"v"))
    fault.call = fault._matched + 1
    with pytest.raises(DiskFull):
        await log.reconfigure(FSYNC)
    assert fault.hits
    assert log.config == DISK
    assert (await log.append(batch_of(b"v"))).offset == 1
    await log.reconfigure(FSYNC)
    await log.append(batch_of(b"v"))
    assert len(await values_on(disk.crash())) == 3


@pytest.mark.parametrize("path", [".log", "partition.json"])
@in_loop
async def test_a_disk_that_fails_takes_the_log_offline(path):
    fault = Fault(call=10**9, only=["sync"], path=path)
    log = await make_store(FaultyFilesystem(SimulatedFilesystem(), fault), config=DISK).log("a")
    await log.append(batch_of(b"v"))
    fault.call = fault._matched + 1
    with pytest.raises(LogOffline):
        await log.reconfigure(FSYNC)
    assert fault.hits
    assert values(log) == [b"v"]


@in_loop
async def test_a_closed_log_keeps_its_settings():
    store = make_store()
    log = await store.log("a")
    await store.close()
    with pytest.raises(LogClosed):
        await log.reconfigure(DISK)
    assert log.config == LogConfig()


@in_loop
async def test_closing_waits_for_a_change_that_has_begun():
    disk, background = SimulatedFilesystem(), HeldExecutor()
    store = make_store(disk, background=background)
    log = await store.log("a")
    await log.append(batch_of(b"v"))
    background.is_held = True
    changing = asyncio.ensure_future(log.reconfigure(DISK))
    await turns()
    closing = asyncio.ensure_future(store.close())
    await turns()
    background.let_go()
    await asyncio.gather(changing, closing)
    assert read_partition_metadata(disk, DIRECTORY).durability is Durability.DISK
