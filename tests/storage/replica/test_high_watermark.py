"""Readers of a log with replicas see no further than the high watermark."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millstream.config.schema import Discard
from millstream.errors import LogFull, OffsetOutOfRange
from millstream.records.record import Record
from millstream.storage.disk.executor import ThreadExecutor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.watermark import WatermarkFile
from millstream.storage.log import Log
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import make_store, turns
from tests.storage.replica.replicas import (
    DIRECTORY,
    SMALL,
    append,
    fill,
    make_leader,
    make_replica,
    open_log,
    replicate,
    values,
)


async def limited(count: int, high_watermark: int) -> Log:
    _, log = await open_log(SimulatedFilesystem())
    log.replication.set_high_watermark(0)
    await fill(log, count)
    log.replication.set_high_watermark(high_watermark)
    return log


@in_loop
async def test_readers_see_what_is_before_the_high_watermark_and_replicas_all_that_is_durable() -> (
    None
):
    log = await limited(20, 7)
    assert (log.end_offset, log.replication.durable_offset, log.next_offset) == (7, 20, 20)
    assert log.synced_offset == 20
    assert len(values(log)) == 7
    assert log.read(6).next_offset == 7
    assert not log.read(7).data
    with pytest.raises(OffsetOutOfRange):
        log.read(8)
    latest = log.find_latest()
    assert latest is not None
    assert latest.offset < 7
    assert log.replication.read(19).next_offset == 20


@in_loop
async def test_every_offset_can_be_the_high_watermark() -> None:
    """A replica may take the batches of one commit in parts."""
    _, log = await open_log(SimulatedFilesystem())
    log.replication.set_high_watermark(0)
    futures = [
        log.try_append_records([Record(f"{n}.{i}".encode()) for i in range(2)]) for n in range(15)
    ]
    await log.flush()
    for offset in range(31):
        log.replication.set_high_watermark(offset)
        whole = offset - offset % 2
        assert log.end_offset == whole
        assert [r.offset for r in log.records()] == list(range(whole))
        assert [future.done() for future in futures] == [2 * n + 2 <= whole for n in range(15)]


@in_loop
async def test_a_high_watermark_never_goes_back_except_for_the_first() -> None:
    _, log = await open_log(SimulatedFilesystem())
    await fill(log, 9)
    assert log.replication.high_watermark is None
    log.replication.set_high_watermark(4)
    assert (log.end_offset, log.replication.durable_offset) == (4, 9)
    assert not log.replication.set_high_watermark(2)
    assert log.end_offset == 4
    assert log.replication.set_high_watermark(100)
    assert log.end_offset == 9
    await fill(log, 1)
    assert log.end_offset == 10, "a replica that is behind shows what it has"
    log.replication.set_high_watermark(None)
    await fill(log, 1)
    assert log.end_offset == log.replication.durable_offset == 11


@in_loop
async def test_the_high_watermark_is_at_least_the_start() -> None:
    _, log = await open_log(SimulatedFilesystem())
    await log.append_records([Record(b"a"), Record(b"b"), Record(b"c")])
    await log.delete_before(2)
    log.replication.set_high_watermark(0)
    assert (log.start_offset, log.end_offset) == (2, 2)
    assert values(log) == []
    log.replication.set_high_watermark(3)
    assert values(log) == [b"c"]


@in_loop
async def test_waiting_readers_and_watchers_wake_when_the_high_watermark_moves() -> None:
    log = await limited(3, 1)
    reader = asyncio.ensure_future(log.wait_for(1))
    changes: list[int] = []
    ends: list[tuple[int, int]] = []
    log.watch(lambda: changes.append(log.end_offset))
    replication = log.replication
    replication.watch(lambda: ends.append((replication.written_offset, replication.durable_offset)))
    await fill(log, 1)
    await turns()
    assert (changes, ends) == ([], [(4, 3), (4, 4)]), "nothing more can be read"
    assert not reader.done()
    log.replication.set_high_watermark(2)
    await reader
    assert changes == [2]


@in_loop
async def test_nothing_beyond_the_high_watermark_is_deleted() -> None:
    log = await limited(12, 5)
    with pytest.raises(OffsetOutOfRange):
        await log.delete_before(6)
    with pytest.raises(OffsetOutOfRange):
        await log.evict_before(6)
    with pytest.raises(OffsetOutOfRange):
        await log.delete_keys(key=b"k", before=6)
    await log.delete_before(5)
    assert (log.start_offset, log.end_offset) == (5, 5)


@pytest.mark.parametrize(
    "limits", [{"retention_records": 3}, {"retention_bytes": 600}], ids=["records", "bytes"]
)
@in_loop
async def test_caps_count_from_the_high_watermark(limits: dict[str, int]) -> None:
    config = replace(SMALL, discard=Discard.OLD, **limits)
    capped, plain = make_store(config=config), make_store(config=config)
    log, other = await capped.log("a"), await plain.log("a")
    await log.begin_retention()
    await other.begin_retention()
    log.replication.set_high_watermark(0)
    await fill(log, 20)
    assert log.start_offset == 0
    for offset in range(1, 21):
        log.replication.set_high_watermark(offset)
        await fill(other, 1)
        assert (log.start_offset, log.end_offset) == (other.start_offset, offset)


@in_loop
async def test_a_log_that_rejects_counts_what_is_not_replicated_yet() -> None:
    config = replace(SMALL, discard=Discard.REJECT, retention_bytes=1000)
    log = await make_store(config=config).log("a")
    log.replication.set_high_watermark(0)
    with pytest.raises(LogFull):
        await fill(log, 20)
    assert log.size_bytes <= 1000


@in_loop
async def test_only_segments_before_the_high_watermark_are_cleaned_and_evicted() -> None:
    config, clock = replace(SMALL, is_compacted=True, retention_ms=1000), ManualClock()
    log = await make_store(config=config, clock=clock).log("a")
    log.replication.set_high_watermark(0)
    for number in range(40):
        await append(log, [Record(b"x" * 100, key=b"k%d" % (number % 2))])
    await log.roll()
    clock.advance(2)
    log.replication.set_high_watermark(15)
    background = ThreadExecutor(1, name="clean")
    await log.clean(
        background=background,
        throttle=IoThrottle(0),
        memory_bytes_max=10**7,
        seed=1,
        is_forced=True,
    )
    background.close()
    assert log.partition.cleaned_offset <= 15
    assert all(s.generation == 0 for s in log.sealed if s.next_offset > 15)
    assert any(s.generation > 0 for s in log.sealed)
    plan = log.plan_eviction()
    assert plan is not None
    assert plan.before_offset <= 15
    log.replication.set_high_watermark(40)
    assert [r.offset for r in log.records()][-25:] == list(range(15, 40))


@in_loop
async def test_a_replica_shows_what_its_leader_says() -> None:
    leader, replica = await make_leader(), await make_replica()
    replica.replication.set_high_watermark(0)
    await fill(leader, 9)
    await replicate(leader, replica)
    assert (replica.end_offset, replica.replication.durable_offset) == (0, 9)
    replica.replication.set_high_watermark(5)
    assert values(replica) == values(leader)[:5]
    await replica.begin_epoch(2)
    await fill(replica, 1)
    assert (replica.end_offset, replica.replication.durable_offset) == (5, 10)


@in_loop
async def test_the_high_watermark_is_stored_now_and_then_and_when_the_log_is_closed() -> None:
    disk, clock = SimulatedFilesystem(), ManualClock()
    store, log = await open_log(disk, clock=clock)
    stored = WatermarkFile(disk, DIRECTORY)
    await fill(log, 9)
    assert stored.read() == 0
    log.replication.set_high_watermark(2)
    log.replication.set_high_watermark(3)
    assert stored.read() == 2
    clock.advance(5)
    log.replication.set_high_watermark(4)
    log.replication.set_high_watermark(100)
    assert stored.read() == 4
    await store.close()
    assert stored.read() == 9, "not beyond what the log has"
    _, log = await open_log(disk, clock=clock)
    assert (log.end_offset, log.replication.known_high_watermark) == (9, 9)


def test_a_torn_or_damaged_watermark_is_none() -> None:
    disk = SimulatedFilesystem()
    disk.make_directory("/a")
    stored = WatermarkFile(disk, "/a")
    for offset in (5, 8):
        stored.write(offset)
    file = disk.open("/a/watermark")
    data = file.read_at(0, 100)
    for position in range(len(data)):
        file.write_at(position, [bytes([data[position] ^ 1])])
        assert stored.read() in (5, 8)
        file.write_at(position, [data[position : position + 1]])
    file.truncate(30)
    assert stored.read() in (0, 5, 8)


@in_loop
async def test_an_offline_log_takes_back_only_what_is_not_durable() -> None:
    log = await limited(6, 2)
    rewound: list[int] = []
    log.on_rewind = rewound.append
    log._go_offline(OSError("no disk"))
    assert (rewound, log.next_offset, log.end_offset) == ([], 6, 2)
