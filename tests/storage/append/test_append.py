"""Appends: when a batch is acknowledged, which batches wait, and when a segment ends."""

from __future__ import annotations

import asyncio

import pytest
from crc32c import crc32c

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    InvalidBatch,
    LogClosed,
    LogOffline,
    RequestError,
    WouldBlock,
)
from millstream.records.batch import _HEADER, decode_header, stamp
from millstream.records.record import Record
from millstream.storage.files.seal import SEAL_SIZE
from millstream.storage.segment.segment import SealedSegment
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, HeldSyncer, batch_of, make_store, turns


def syncs(filesystem: FaultyFilesystem) -> int:
    return sum(call.name == "sync" and call.path.endswith(".log") for call in filesystem.calls)


def counting() -> FaultyFilesystem:
    """A file system that fails nothing and counts every call."""
    return FaultyFilesystem(SimulatedFilesystem(), Fault(call=0))


# When a batch is acknowledged.


async def durable_values(disk: SimulatedFilesystem) -> list[bytes | None]:
    store = make_store(disk)
    return [record.value for record in (await store.log("a")).records()]


@in_loop
async def test_fsync_acknowledges_only_what_a_power_cut_leaves() -> None:
    disk, background = SimulatedFilesystem(), HeldExecutor()
    log = await make_store(disk, background=background).log("a")
    background.is_held = True
    append = asyncio.ensure_future(log.append(batch_of(b"v")))
    await turns()
    assert not append.done()
    assert log.end_offset == 0, "not shown before it is durable"
    background.let_go()
    assert (await append).offset == 0
    assert log.end_offset == 1
    assert await durable_values(disk.crash()) == [b"v"]


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.MEMORY])
@in_loop
async def test_disk_and_memory_wait_for_no_sync(durability: Durability) -> None:
    disk, background = SimulatedFilesystem(), HeldExecutor()
    store = make_store(disk, background=background)
    log = await store.log("a", config=LogConfig(durability=durability))
    background.is_held = True
    await log.append(batch_of(b"v"))
    await turns()
    assert background.waiting == 0
    assert await durable_values(disk.copy()) == [b"v"], "the kernel has it"


@in_loop
async def test_memory_acknowledges_before_anything_is_written() -> None:
    filesystem = counting()
    log = await make_store(filesystem).log("a", config=LogConfig(durability=Durability.MEMORY))
    appended = log.try_append(batch_of(b"v"))
    assert appended.done()
    assert appended.result().address is None
    assert not any(call.name == "write_at" and ".log" in call.path for call in filesystem.calls)


@in_loop
async def test_ephemeral_touches_no_disk() -> None:
    filesystem = counting()
    store = make_store(filesystem)
    before = len(filesystem.calls)
    log = await store.log("a", config=LogConfig(durability=Durability.EPHEMERAL))
    await log.append(batch_of(b"v"))
    assert [record.value for record in log.records()] == [b"v"]
    assert len(filesystem.calls) == before


# Group commit.


@in_loop
async def test_a_lone_append_is_committed_at_once_with_one_sync() -> None:
    filesystem = counting()
    log = await make_store(filesystem).log("a")
    for number in range(3):
        await log.append(batch_of(b"v"))
        assert syncs(filesystem) == number + 1


@in_loop
async def test_appends_that_wait_together_share_one_write_and_one_sync() -> None:
    filesystem = counting()
    log = await make_store(filesystem).log("a")
    results = await asyncio.gather(*(log.append(batch_of(b"%d" % n)) for n in range(64)))
    assert [appended.offset for appended in results] == list(range(64))
    assert syncs(filesystem) == 1
    assert log.counters.writes == 1


@in_loop
async def test_appends_during_a_commit_share_the_next_one() -> None:
    filesystem, background = counting(), HeldExecutor()
    log = await make_store(filesystem, background=background).log("a")
    background.is_held = True
    first = asyncio.ensure_future(log.append(batch_of(b"first")))
    await turns()
    rest = [asyncio.ensure_future(log.append(batch_of(b"r"))) for _ in range(10)]
    await turns()
    assert background.waiting == 1, "one commit of a log at a time"
    background.let_one_go()
    await turns()
    assert first.done()
    assert not any(append.done() for append in rest), "the sync began before they came"
    background.let_go()
    await asyncio.gather(*rest)
    assert syncs(filesystem) == 2


@in_loop
async def test_many_logs_are_committed_together() -> None:
    background = HeldExecutor(width=2)
    store = make_store(background=background)
    logs = [await store.log("a", number) for number in range(20)]
    background.is_held = True
    appends = [asyncio.ensure_future(log.append(batch_of(b"v"))) for log in logs]
    await turns()
    assert background.waiting == 2, "dealt out over the threads, not one after the other"
    background.let_go()
    await asyncio.gather(*appends)


@in_loop
async def test_a_batch_behind_a_roll_is_acknowledged_only_with_all_before_it() -> None:
    """The segment before got a batch after its last sync: the commit has to sync both."""

    disk, background, syncer = SimulatedFilesystem(), HeldExecutor(), HeldSyncer()
    config = LogConfig(segment_bytes_max=1024)
    store = make_store(disk, config=config, background=background, syncer=syncer)
    log = await store.log("a")
    await log.append(batch_of(b"first"))
    second = log.try_append(batch_of(b"second"))
    await turns()
    syncer.sync_now()
    rest = [log.try_append(batch_of(b"third")), log.try_append(batch_of(b"x" * 900))]
    background.is_held = True
    await turns()
    assert len(log.segments) == 2
    syncer.tell()
    await turns()
    assert [second.done(), rest[0].done()] == [True, False]
    background.let_one_go()  # The commit; the segment is sealed after it.
    await asyncio.gather(*rest)
    assert len(await durable_values(disk.crash())) == 4


@in_loop
async def test_a_segment_is_not_sealed_while_a_commit_syncs_it() -> None:
    """Of two syncs only one is told that bytes are lost: the seal would cover them."""

    disk, syncer = SimulatedFilesystem(), HeldSyncer()
    store = make_store(disk, config=LogConfig(segment_bytes_max=1024), syncer=syncer)
    log = await store.log("a")
    await log.append(batch_of(b"first"))
    pending = [log.try_append(batch_of(b"second"))]
    await turns()
    pending.append(log.try_append(batch_of(b"x" * 900)))
    await turns()
    assert len(log.segments) == 2
    assert not [name for name in disk.list("/data/topics/a/0") if name.endswith(".seal")]
    syncer.fail()
    for append in pending:
        with pytest.raises(LogOffline):
            await append
    await turns()
    assert not [name for name in disk.list("/data/topics/a/0") if name.endswith(".seal")]


# Backpressure.


TIGHT = LogConfig(unflushed_bytes_max=200)


@in_loop
async def test_an_append_beyond_the_bound_would_block_and_says_why() -> None:
    background = HeldExecutor()
    log = await make_store(config=TIGHT, background=background).log("a")
    background.is_held = True
    first = log.try_append(batch_of(b"x" * 100))
    with pytest.raises(WouldBlock, match="170 bytes are unflushed, limit is 200"):
        log.try_append(batch_of(b"x" * 100))
    assert sum(log.counters.refusals.values()) == 1
    await turns()
    background.let_go()
    await first
    assert (await log.try_append(batch_of(b"x" * 100))).offset == 1


@in_loop
async def test_waiting_appends_are_admitted_in_the_order_in_which_they_came() -> None:
    background = HeldExecutor()
    log = await make_store(config=TIGHT, background=background).log("a")
    background.is_held = True
    appends = [
        asyncio.ensure_future(log.append(batch_of(b"%d" % n * size)))
        for n, size in enumerate([100, 100, 1, 100, 1])
    ]
    await turns()
    with pytest.raises(WouldBlock, match="other batches wait before it"):
        log.try_append(batch_of(b"y"))
    while not all(append.done() for append in appends):
        background.let_one_go()
        await turns()
    assert [append.result().offset for append in appends] == [0, 1, 2, 3, 4]


@in_loop
async def test_a_deadline_ends_the_waiting_and_nothing_is_written() -> None:
    background = HeldExecutor()
    log = await make_store(config=TIGHT, background=background).log("a")
    background.is_held = True
    first = asyncio.ensure_future(log.append(batch_of(b"x" * 100)))
    await turns()
    with pytest.raises(DeadlineExceeded, match=r"not admitted within 0.001 s: 170 bytes"):
        await log.append(batch_of(b"late" * 30), timeout=0.001)
    background.let_go()
    await first
    assert (await log.append(batch_of(b"next"))).offset == 1
    assert [r.value for r in log.records()] == [b"x" * 100, b"next"]


@in_loop
async def test_a_deadline_does_not_cut_off_a_batch_that_was_admitted() -> None:
    background = HeldExecutor()
    log = await make_store(background=background).log("a")
    background.is_held = True
    append = asyncio.ensure_future(log.append(batch_of(b"v"), timeout=0.001))
    await asyncio.sleep(0.005)
    assert not append.done()
    background.let_go()
    assert (await append).offset == 0


@in_loop
async def test_an_appender_that_stops_waiting_does_not_hold_up_the_others() -> None:
    background = HeldExecutor()
    log = await make_store(config=TIGHT, background=background).log("a")
    background.is_held = True
    appends = [asyncio.ensure_future(log.append(batch_of(b"x" * 100))) for _ in range(3)]
    await turns()
    appends[1].cancel()
    await turns()
    while not appends[2].done():
        background.let_one_go()
        await turns()
    assert appends[2].result().offset == 1, "the cancelled one was never admitted"


@in_loop
async def test_the_bound_of_the_store_holds_for_all_logs_together() -> None:
    background = HeldExecutor()
    store = make_store(store_config=StoreConfig(unflushed_bytes_max=200), background=background)
    first, second = await store.log("a"), await store.log("b")
    background.is_held = True
    one = first.try_append(batch_of(b"x" * 100))
    with pytest.raises(WouldBlock, match="of all logs are unflushed"):
        second.try_append(batch_of(b"x" * 100))
    waiting = asyncio.ensure_future(second.append(batch_of(b"x" * 100)))
    await turns()
    background.let_go()
    await one
    assert (await waiting).offset == 0, "woken by the other log"


@in_loop
async def test_a_third_segment_is_not_begun_before_the_first_is_sealed() -> None:
    background = HeldExecutor()
    config = LogConfig(segment_bytes_max=1024, durability=Durability.DISK)
    log = await make_store(config=config, background=background).log("a")
    background.is_held = True
    appends = [asyncio.ensure_future(log.append(batch_of(b"x" * 600))) for _ in range(3)]
    await turns()
    assert [append.done() for append in appends] == [True, True, False]
    with pytest.raises(WouldBlock, match="two segments wait to be sealed"):
        log.try_append(batch_of(b"v"))
    background.let_go()
    await asyncio.gather(*appends)
    assert isinstance(log.segments[0], SealedSegment)


# When a segment ends.


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (LogConfig(segment_bytes_max=1024), [2, 2, 1]),
        (LogConfig(segment_records_max=3), [3, 2]),
        (LogConfig(segment_bytes_max=1024, segment_records_max=1), [1, 1, 1, 1, 1]),
        (LogConfig(), [5]),
    ],
    ids=["bytes", "records", "both", "neither"],
)
@in_loop
async def test_a_segment_ends_when_it_is_full(config: LogConfig, sizes: list[int]) -> None:
    log = await make_store(config=config).log("a")
    for _ in range(5):
        await log.append(batch_of(b"x" * 400))
    await turns(50)
    assert [s.next_offset - s.base_offset for s in log.segments] == sizes
    assert all(isinstance(segment, SealedSegment) for segment in log.segments[:-1])


@in_loop
async def test_a_segment_ends_when_it_is_old() -> None:
    clock = ManualClock()
    log = await make_store(config=LogConfig(segment_age_ms_max=1000), clock=clock).log("a")
    await log.append(batch_of(b"v"))
    clock.advance(1)
    await log.append(batch_of(b"v"))
    assert len(log.segments) == 1
    clock.advance(0.001)
    await log.append(batch_of(b"v"))
    assert len(log.segments) == 2


@in_loop
async def test_a_batch_larger_than_a_segment_has_one_of_its_own() -> None:
    log = await make_store(config=LogConfig(segment_bytes_max=1024)).log("a")
    for size in (10, 5000, 10):
        await log.append(batch_of(b"x" * size))
    assert [len(r.value or b"") for r in log.records()] == [10, 5000, 10]
    assert len(log.segments) == 3


@in_loop
async def test_sealing_gives_back_the_space_that_was_set_aside() -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk)
    log = await store.log("a")
    await log.append(batch_of(b"v"))
    size = log.segments[0].size
    assert disk.size("/data/topics/a/0/00000000000000000000.log") == size
    assert disk.bytes_used > size + 60_000, "space is set aside while it grows"
    await store.close()
    assert disk.bytes_used < size + SEAL_SIZE + 1000


# Epochs.


@in_loop
async def test_a_new_epoch_starts_a_segment_and_is_stamped_into_its_batches() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    await log.append(batch_of(b"old"))
    await log.begin_epoch(5)
    await log.append(batch_of(b"new"))
    assert [decode_header(log.read(n).data).leader_epoch for n in (0, 1)] == [0, 5]
    assert [segment.leader_epoch for segment in log.segments] == [0, 5]
    again = await make_store(disk.crash()).log("a")
    assert again.partition.leader_epoch == 5
    assert [r.value for r in again.records()] == [b"old", b"new"]


@in_loop
async def test_batches_that_arrive_while_an_epoch_begins_carry_it_from_its_start() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    before = [asyncio.ensure_future(log.append(batch_of(b"old"))) for _ in range(3)]
    await turns(1)
    epoch = asyncio.ensure_future(log.begin_epoch(1))
    after = []
    for _ in range(5):
        after.append(asyncio.ensure_future(log.append(batch_of(b"new"))))
        await turns(1)
    await asyncio.gather(*before, epoch, *after)
    epochs = [decode_header(log.read(n).data).leader_epoch for n in range(8)]
    assert epochs == [log.partition.epoch_at(n) for n in range(8)]
    assert set(epochs) == {0, 1}
    again = await make_store(disk.copy()).log("a")
    assert len(list(again.records())) == 8


@in_loop
async def test_an_epoch_that_outlived_what_came_before_it_begins_where_the_log_ends() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=LogConfig(durability=Durability.DISK)).log("a")
    for _ in range(4):
        await log.append(batch_of(b"lost"))
    await log.begin_epoch(1)
    disk = disk.crash()
    log = await make_store(disk).log("a")
    assert log.end_offset == 0
    assert log.partition.leader_epoch == 1
    await log.append(batch_of(b"new"))
    again = await make_store(disk.copy()).log("a")
    assert [record.value for record in again.records()] == [b"new"]


@in_loop
async def test_an_epoch_never_goes_back() -> None:
    log = await make_store().log("a")
    await log.begin_epoch(5)
    for number in (5, 4):
        with pytest.raises(RequestError, match=f"epoch must be greater than 5, got {number}"):
            await log.begin_epoch(number)


# What is refused.


def flip_a_bit(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def cut_short(batch: bytes) -> bytes:
    return batch[:-1]


def add_a_byte(batch: bytes) -> bytes:
    return batch + b"!"


def two_batches(batch: bytes) -> bytes:
    return batch + batch


def nothing(batch: bytes) -> bytes:
    return b""


def other_format(batch: bytes) -> bytes:
    return batch[:16] + b"\1" + batch[17:]


@pytest.mark.parametrize(
    "damage", [flip_a_bit, cut_short, add_a_byte, two_batches, nothing, other_format]
)
@in_loop
async def test_what_is_not_one_sound_batch_is_refused_and_no_offset_is_spent(damage) -> None:
    log = await make_store().log("a")
    with pytest.raises(InvalidBatch):
        await log.append(damage(batch_of(b"v", b"w")))
    assert (await log.append(batch_of(b"v"))).offset == 0


@in_loop
async def test_a_batch_that_leaves_offsets_out_is_refused() -> None:
    fields = list(_HEADER.unpack_from(batch_of(b"v")))
    fields[6] = 3  # last offset delta
    tail = _HEADER.pack(*fields)[21:] + batch_of(b"v")[61:]
    fields[4] = crc32c(tail)
    batch = _HEADER.pack(*fields)[:21] + tail

    log = await make_store().log("a")
    with pytest.raises(InvalidBatch, match="1 records in 4 offsets"):
        await log.append(batch)


@in_loop
async def test_a_batch_over_the_limit_is_refused_with_both_numbers() -> None:
    log = await make_store(config=LogConfig(batch_size_max=100)).log("a")
    with pytest.raises(BatchTooLarge, match="batch has 570 bytes, limit is 100"):
        await log.append(batch_of(b"x" * 500))


@in_loop
async def test_the_callers_bytes_are_stamped_on_the_disk_and_left_alone_in_memory() -> None:
    log = await make_store().log("a")
    batch = bytearray(batch_of(b"v"))
    before = bytes(batch)
    await log.append(batch_of(b"first"))
    await log.append(memoryview(batch))
    assert bytes(batch) == before
    assert bytes(log.read(1).data) == stamp(before, base_offset=1, leader_epoch=0)


@in_loop
async def test_a_closed_log_takes_no_appends_but_finishes_those_it_has() -> None:
    background = HeldExecutor()
    store = make_store(background=background)
    log = await store.log("a")
    background.is_held = True
    append = asyncio.ensure_future(log.append(batch_of(b"v")))
    await turns()
    closing = asyncio.ensure_future(log.close())
    await turns()
    with pytest.raises(LogClosed):
        await log.append(batch_of(b"late"))
    background.let_go()
    await closing
    assert (await append).offset == 0


@in_loop
async def test_a_short_write_is_finished_with_the_next() -> None:
    fault = Fault(call=1, kind="short write", forever=True, path=".log")
    log = await make_store(FaultyFilesystem(SimulatedFilesystem(), fault)).log("a")
    await log.append_records([Record(b"x" * 1000)])
    assert [r.value for r in log.records()] == [b"x" * 1000]
    assert len(fault.hits) > 1
