"""Reads by offset, timestamp and address, and waiting for new records."""

from __future__ import annotations

import asyncio

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import (
    DamagedRecords,
    InvalidAddress,
    LogClosed,
    LogOffline,
    OffsetOutOfRange,
)
from millstream.records.batch import HEADER_SIZE, split
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.segment.reader import Address
from millstream.storage.segment.segment import GrowingSegment, SealedSegment
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.in_loop import in_loop

from .logs import HeldExecutor, batch_of, make_store, turns

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)
FIRST = "/data/topics/a/0/00000000000000000000.log"


async def filled(disk: SimulatedFilesystem | None = None, count: int = 20) -> Log:
    """A log of some sealed segments and a growing one; each batch holds two records."""
    log = await make_store(disk, config=SMALL).log("a")
    for number in range(count):
        await log.append(batch_of(b"%d" % number, b"x" * 100, timestamp_ms=number))
    await turns(50)
    assert isinstance(log.segments[0], SealedSegment)
    assert isinstance(log.segments[-1], GrowingSegment)
    return log


@in_loop
async def test_every_offset_is_found_in_the_batch_that_holds_it() -> None:
    log = await filled()
    for offset in range(40):
        header, _ = next(split(log.read(offset).data))
        assert header.base_offset == offset - offset % 2


@in_loop
async def test_a_read_returns_whole_batches_up_to_its_limit() -> None:
    log = await filled()
    one = len(log.read(0, size_max=1).data)
    for batches in (1, 2, 3):
        for spare in (0, 1, HEADER_SIZE, one - 10):
            found = log.read(0, size_max=batches * one + spare)
            assert found.next_offset == 2 * batches


@in_loop
async def test_a_batch_comes_back_even_where_it_exceeds_every_limit() -> None:
    log = await filled()
    for offset in (0, 39):
        found = log.read(offset, size_max=1, records_max=1)
        assert found.next_offset == offset - offset % 2 + 2


@in_loop
async def test_a_read_counts_records_too() -> None:
    log = await filled()
    assert [log.read(0, records_max=n).next_offset for n in (2, 3, 4, 5)] == [2, 2, 4, 4]


@in_loop
async def test_reading_on_from_where_a_read_ended_gives_everything_once() -> None:
    log = await filled()
    offset, offsets = 0, []
    while (found := log.read(offset, size_max=300)).data:
        offsets += [header.base_offset for header, _ in split(found.data)]
        offset = found.next_offset
    assert offsets == list(range(0, 40, 2))


@in_loop
async def test_reading_at_the_end_gives_nothing_and_beyond_it_an_error_with_the_range() -> None:
    log = await filled()
    assert log.read(40).data == b""
    for offset in (-1, 41, 2**63 - 1):
        with pytest.raises(OffsetOutOfRange, match=rf"between 0 and 40, got {offset}"):
            log.read(offset)


@in_loop
async def test_nothing_is_read_that_is_not_committed() -> None:
    background = HeldExecutor()
    log = await make_store(background=background).log("a")
    await log.append(batch_of(b"old"))
    background.is_held = True
    append = asyncio.ensure_future(log.append(batch_of(b"new")))
    await turns()
    assert log.read(0).next_offset == 1
    assert log.read(1).data == b""
    with pytest.raises(OffsetOutOfRange):
        log.read(2)
    assert log.find_timestamp(1) == (0, 1)
    background.let_go()
    await append
    assert log.read(0).next_offset == 2


@in_loop
async def test_bytes_of_a_sealed_segment_are_not_copied() -> None:
    log = await filled()
    first, second = log.read(0), log.read(0)
    assert first.data.obj is second.data.obj
    assert first.data.readonly


# By address.


@in_loop
async def test_a_batch_is_read_at_the_address_that_a_read_or_an_append_gave() -> None:
    log = await filled()
    appended = await log.append(batch_of(b"at the end"))
    assert appended.address is not None
    assert b"at the end" in bytes(log.read_at(appended.address).data)
    found = log.read(0, size_max=1)
    again = log.read_at(found.address)
    assert (bytes(again.data), again.next_offset) == (bytes(found.data), found.next_offset)
    assert log.read_at(found.next_address).next_offset == 4


@pytest.mark.parametrize(
    "address",
    [Address(0, 1), Address(0, -1), Address(0, 10**9), Address(1, 0), Address(-5, 0)],
    ids=["inside a batch", "negative", "past the end", "no segment", "negative segment"],
)
@in_loop
async def test_an_address_at_which_no_batch_starts_is_refused(address: Address) -> None:
    log = await filled()
    with pytest.raises(InvalidAddress):
        log.read_at(address)


@in_loop
async def test_every_position_inside_a_batch_is_refused_as_an_address() -> None:
    log = await filled()
    size = len(log.read(0, size_max=1).data)
    for position in range(1, size):
        with pytest.raises(InvalidAddress):
            log.read_at(Address(0, position))


# By time.


@in_loop
async def test_a_time_is_found_exactly_though_timestamps_jump() -> None:
    times = [50, 10, 90, 20, 20, 95, 5, 100, 1, 60]
    log = await make_store(config=SMALL).log("a")
    for time in times:
        records = [Record(b"x" * 150, timestamp_ms=time - 1), Record(b"", timestamp_ms=time)]
        await log.append_records(records)
    await turns(50)
    stamps = [(r.offset, r.timestamp_ms) for r in log.records()]
    for wanted in range(102):
        expected = next(((o, t) for o, t in stamps if t >= wanted), None)
        assert log.find_timestamp(wanted) == expected
        between = [r.offset for r in log.records_between(wanted, wanted + 7)]
        assert between == [o for o, t in stamps if wanted <= t < wanted + 7]


@in_loop
async def test_a_record_older_than_its_batch_is_found() -> None:
    """Timestamps in a batch are deltas, and these may be negative."""

    log = await make_store().log("a")
    records = [Record(b"late", timestamp_ms=1000), Record(b"early", timestamp_ms=10)]
    await log.append_records(records)
    assert [r.value for r in log.records_between(5, 15)] == [b"early"]


# Damage.


@in_loop
async def test_a_read_that_meets_damage_names_file_and_position() -> None:
    disk = SimulatedFilesystem()
    await filled(disk)
    broken = disk.copy()
    broken.flip_bit(FIRST, 8 * 300)
    log = await make_store(broken, config=SMALL).log("a")
    position = len(log.read(0, size_max=1).data)
    with pytest.raises(DamagedRecords, match=f"{FIRST}: byte {position}: batch checksum is"):
        log.read(2)


@in_loop
async def test_damage_in_the_middle_does_not_hide_what_follows() -> None:
    disk = SimulatedFilesystem()
    await filled(disk)
    broken = disk.copy()
    broken.flip_bit(FIRST, 8 * 300)
    log = await make_store(broken, config=SMALL).log("a")
    assert log.read(0, size_max=1).next_offset == 2
    with pytest.raises(DamagedRecords):
        log.read(2)
    assert [r.offset for r in log.records(4)] == list(range(4, 40))
    assert (await log.append(batch_of(b"on"))).offset == 40


@in_loop
async def test_an_unchecked_read_still_refuses_what_does_not_belong_there() -> None:
    disk = SimulatedFilesystem()
    await filled(disk)
    for byte in (0, 7, 12, 15):  # Base offset and leader epoch, which no checksum covers.
        broken = disk.copy()
        broken.flip_bit(FIRST, 8 * byte)
        log = await make_store(broken, config=SMALL).log("a")
        with pytest.raises(DamagedRecords):
            log.read(0, is_checked=False)


@in_loop
async def test_a_segment_that_lost_its_end_is_read_up_to_there() -> None:
    disk = SimulatedFilesystem()
    await filled(disk)
    broken = disk.copy()
    size = len(broken.content(FIRST))
    broken.cut(FIRST, size - 1)
    store = make_store(broken, config=SMALL)
    log = await store.log("a")
    assert f"has {size - 1} bytes, its seal says {size}" in str(store.damage())
    last = log.segments[0].next_offset - 1
    assert log.read(0, size_max=1).next_offset == 2
    with pytest.raises(DamagedRecords):
        log.read(last)
    assert next(log.records(last + 1)).offset == last + 1


@in_loop
async def test_a_missing_segment_is_a_hole_with_an_error_in_it() -> None:
    disk = SimulatedFilesystem()
    log = await filled(disk)
    second = log.segments[1]
    broken = disk.copy()
    for suffix in ("log", "index", "seal"):
        broken.remove(second.path.removesuffix("log") + suffix)
    store = make_store(broken, config=SMALL)
    log = await store.log("a")
    assert "have no segment" in str(store.damage())
    with pytest.raises(DamagedRecords, match="a segment is missing; offsets 10 to 19 are lost"):
        log.read(second.base_offset)
    assert log.read(second.next_offset).data


@in_loop
async def test_an_index_that_is_missing_or_damaged_is_derived_and_written_back() -> None:
    disk = SimulatedFilesystem()
    await filled(disk)
    path = FIRST.removesuffix("log") + "index"
    intact = disk.content(path)
    for number in range(3):
        broken = disk.copy()
        if number == 0:
            broken.remove(path)
        else:
            broken.flip_bit(path, 8 * (number * 40))
        log = await make_store(broken, config=SMALL).log("a")
        assert log.read(2).data
        assert broken.content(path) == intact


# Following.


@in_loop
async def test_a_follower_wakes_with_each_commit_and_misses_nothing() -> None:
    log = await make_store(config=SMALL).log("a")
    seen: list[int] = []

    async def follow() -> None:
        async for found in log.follow(0):
            seen.extend(header.base_offset for header, _ in split(found.data))

    task = asyncio.create_task(follow())
    for number in range(30):
        await log.append(batch_of(b"x" * 200))
        await turns()
        assert seen == list(range(number + 1))
    task.cancel()


@in_loop
async def test_a_thousand_followers_all_wake() -> None:
    log = await make_store().log("a")
    waiting = [asyncio.create_task(log.wait_for(0)) for _ in range(1000)]
    await turns()
    waiting[0].cancel()
    await log.append(batch_of(b"v"))
    await asyncio.gather(*waiting[1:])


@in_loop
async def test_a_follower_of_the_past_catches_up_first() -> None:
    log = await filled()
    offsets = []
    async for found in log.follow(3):
        offsets += [header.base_offset for header, _ in split(found.data)]
        if found.next_offset == 40:
            break
    assert offsets == list(range(2, 40, 2))


@in_loop
async def test_a_follower_learns_that_the_log_was_closed_or_failed() -> None:
    log = await make_store().log("a")
    waiting = asyncio.create_task(log.wait_for(0))
    await turns()
    await log.close()
    with pytest.raises(LogClosed):
        await waiting

    fault = Fault(call=1, only=["sync"], path=".log")
    broken = await make_store(FaultyFilesystem(SimulatedFilesystem(), fault)).log("a")
    waiting = asyncio.create_task(broken.wait_for(0))
    await turns()
    with pytest.raises(LogOffline):
        await broken.append(batch_of(b"v"))
    with pytest.raises(LogOffline):
        await waiting


@in_loop
async def test_following_from_beyond_the_end_is_refused() -> None:
    log = await filled()
    with pytest.raises(OffsetOutOfRange):
        await anext(log.follow(41))
