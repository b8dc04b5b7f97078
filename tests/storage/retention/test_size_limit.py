"""A log that rejects batches at its size limit, exactly, and before they get an offset."""

from __future__ import annotations

import asyncio
import errno

import pytest

from millstream.config.schema import Discard, Durability, LogConfig
from millstream.errors import DiskFull, LogFull
from millstream.records.build import build_batch
from millstream.records.control import build_marker
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.keyed import clean, fill, filled, offsets
from tests.storage.logs import HeldExecutor, batch_of, make_store, turns

BATCH = batch_of(b"x" * 39)
SIZE = len(BATCH)


def rejecting(**limits: int) -> LogConfig:
    return LogConfig(segment_bytes_max=1024, discard=Discard.REJECT, **limits)


async def append_until_full(log: Log, *, limit: int = 1000) -> int:
    for count in range(limit):
        try:
            await log.append(BATCH)
        except LogFull:
            return count
    raise AssertionError


# Batches that fit.


@pytest.mark.parametrize("durability", Durability)
@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({"retention_bytes": 25 * SIZE}, 25),
        ({"retention_bytes": 25 * SIZE - 1}, 24),
        ({"retention_records": 25}, 25),
        ({"retention_records": 25, "retention_bytes": 7 * SIZE}, 7),
        ({"retention_records": 7, "retention_bytes": 25 * SIZE}, 7),
        ({"retention_bytes": 0}, 0),
        ({"retention_records": 0}, 0),
    ],
    ids=str,
)
@in_loop
async def test_as_much_is_taken_as_fits_and_not_one_batch_more(limits, fits, durability):
    config = LogConfig(
        segment_bytes_max=1024, discard=Discard.REJECT, durability=durability, **limits
    )
    log = await make_store().log("a", config=config)
    assert await append_until_full(log) == fits
    await turns(50)
    assert (log.end_offset, log.next_offset) == (fits, fits)


@in_loop
async def test_what_is_on_its_way_counts_too():
    background = HeldExecutor()
    log = await make_store(config=rejecting(retention_bytes=10 * SIZE), background=background).log(
        "a"
    )
    await log.append(BATCH)
    background.is_held = True
    futures = [log.submit(BATCH) for _ in range(4)]
    await turns()
    futures += [log.submit(BATCH) for _ in range(10)]
    background.let_go()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(result, LogFull) for result in results] == [False] * 9 + [True] * 5
    await turns()
    assert log.end_offset == 10


@in_loop
async def test_records_on_their_way_count_too():
    log = await make_store(config=rejecting(retention_records=10)).log("a")
    three = build_batch([Record(b"v")] * 3, now_ms=1)
    futures = [log.submit(three) for _ in range(5)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(result, LogFull) for result in results] == [False] * 3 + [True] * 2
    assert (await log.append(BATCH)).offset == 9, "a smaller one fits"


@in_loop
async def test_the_error_says_how_much_there_is_and_how_much_may_be():
    log = await make_store(config=rejecting(retention_bytes=3 * SIZE)).log("a")
    await append_until_full(log)
    with pytest.raises(LogFull, match=f"at most {3 * SIZE} bytes, has {3 * SIZE}"):
        await log.append(BATCH)


# A rejected batch takes no capacity.


@in_loop
async def test_what_is_refused_takes_no_offset_and_its_appender_is_not_asked():
    log = await make_store(config=rejecting(retention_records=2)).log("a")
    asked: list[int] = []
    await log.submit(BATCH, on_admit=asked.append)
    large = build_batch([Record(b"v")] * 2, now_ms=1)
    refused = log.submit(large, on_admit=asked.append)
    with pytest.raises(LogFull):
        await refused
    assert (await log.submit(BATCH, on_admit=asked.append)).offset == 1
    assert asked == [0, 1]
    assert log.unflushed_bytes == 0


@in_loop
async def test_whoever_waits_for_admission_is_refused_when_its_turn_comes():
    background = HeldExecutor()
    config = LogConfig(discard=Discard.REJECT, retention_records=2, unflushed_bytes_max=1)
    log = await make_store(config=config, background=background).log("a")
    background.is_held = True
    futures = [log.submit(BATCH) for _ in range(4)]
    await turns()
    background.let_go()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(result, LogFull) for result in results] == [False, False, True, True]


@in_loop
async def test_what_the_disk_refused_does_not_count():
    fault = Fault(call=2, error=errno.ENOSPC, only={"write_at"}, path=".log")
    filesystem = FaultyFilesystem(SimulatedFilesystem(), fault)
    log = await make_store(filesystem, config=rejecting(retention_bytes=3 * SIZE)).log("a")
    await log.append(BATCH)
    with pytest.raises(DiskFull):
        await log.append(BATCH)
    assert await append_until_full(log) == 2
    assert offsets(log) == [0, 1, 2]


@in_loop
async def test_a_full_log_still_takes_the_ends_of_transactions():
    """Without the markers its readers would wait forever."""
    log = await make_store(config=rejecting(retention_records=3)).log("a")
    assert await append_until_full(log) == 3
    marker = build_marker(1, 0, is_commit=False, coordinator_epoch=0, now_ms=1)
    assert (await log.append(marker)).offset == 3
    with pytest.raises(LogFull):
        await log.append(BATCH)
    assert log.counters.refusals["limit"] == 2


# Freed capacity.


@in_loop
async def test_deleting_from_the_front_makes_room_though_the_file_stays():
    log = await make_store(config=rejecting(retention_records=20)).log("a")
    assert await append_until_full(log) == 20
    await log.delete_before(5)
    assert await append_until_full(log) == 5
    await log.delete_before(25)
    assert await append_until_full(log) == 20


@in_loop
async def test_deleting_all_makes_room_for_as_many_bytes_as_before():
    config = LogConfig(discard=Discard.REJECT, retention_bytes=10 * SIZE, index_interval_bytes=64)
    log = await make_store(config=config).log("a")
    assert await append_until_full(log) == 10
    await log.delete_before(4)
    assert await append_until_full(log) == 4, "all lie in one file, which stays"
    await log.delete_before(14)
    assert await append_until_full(log) == 10


@in_loop
async def test_reclaiming_what_was_deleted_by_key_makes_room():
    config = LogConfig(segment_bytes_max=1024, discard=Discard.REJECT, retention_records=36)
    _, store, log = await filled(36, config)
    with pytest.raises(LogFull):
        await fill(log, 3)
    assert await log.delete_keys(key=b"k1") == 7
    with pytest.raises(LogFull):
        await fill(log, 3)
    await log.roll()
    assert await clean(store, log)
    await fill(log, 6)
    with pytest.raises(LogFull):
        await fill(log, 3)


# Settings.


@in_loop
async def test_other_settings_hold_from_the_next_batch_on():
    log = await make_store(config=rejecting(retention_records=3)).log("a")
    assert await append_until_full(log) == 3
    await log.reconfigure(rejecting(retention_records=5))
    assert await append_until_full(log) == 2
    await log.reconfigure(LogConfig(retention_records=5))
    await log.append(BATCH)
    await log.reconfigure(rejecting(retention_records=5))
    with pytest.raises(LogFull):
        await log.append(BATCH)


@pytest.mark.parametrize(
    "config",
    [
        LogConfig(retention_records=1, retention_bytes=1),
        LogConfig(discard=Discard.REJECT),
        LogConfig(discard=Discard.REJECT, retention_ms=0),
    ],
    ids=["old ones go", "no limit", "only age"],
)
@in_loop
async def test_nothing_is_refused_by_a_log_that_has_no_such_limit(config):
    log = await make_store(config=config).log("a")
    for _ in range(5):
        await log.append(BATCH)
    assert log._queue._size_limit is None, "it costs nothing where it is not asked for"


@pytest.mark.parametrize("count", [1, 9, 10, 11, 30])
@in_loop
async def test_after_a_start_what_is_there_counts(count):
    config = rejecting(retention_records=30, retention_bytes=30 * SIZE)
    disk, store, log = await filled(0, config)
    for _ in range(count):
        await log.append(BATCH)
    await store.close()
    log = await make_store(disk, config=config).log("a")
    assert await append_until_full(log) == 30 - count
