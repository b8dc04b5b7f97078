"""The latest record, and batches with their headers: exact, and only committed ones."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config.schema import LogConfig
from millstream.errors import DamagedRecords, OffsetOutOfRange
from millstream.records.batch import check_batch, decode_header, with_append_time
from millstream.records.build import build_batch
from millstream.records.control import build_marker
from millstream.records.record import Record
from millstream.storage.segment.reader import _WALK_BYTES
from millstream.testing import SimulatedFilesystem
from tests.in_loop import in_loop

from .logs import HeldExecutor, batch_of, make_store, turns

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)


def dated(*stamps: int, size: int = 10) -> bytes:
    return build_batch([Record(b"x" * size, timestamp_ms=at) for at in stamps], now_ms=0)


def boasting(batch: bytes, claimed_ms: int) -> bytes:
    """A batch whose header speaks of a later record than it holds."""
    claim = bytearray(batch)
    claim[35:43] = claimed_ms.to_bytes(8, "big", signed=True)
    claim[17:21] = crc32c(bytes(claim[21:])).to_bytes(4, "big")
    return bytes(claim)


# The latest record.


@in_loop
async def test_an_empty_log_has_no_latest_record():
    assert (await make_store().log("a")).find_latest() is None


@pytest.mark.parametrize(
    ("batches", "latest"),
    [
        ([(5,)], (0, 5)),
        ([(5, 9, 7)], (1, 9)),
        ([(5,), (9,), (9,), (7,)], (1, 9)),
        ([(5, 5, 5)], (0, 5)),
        ([(-9, -5, -7)], (1, -5)),
        ([(1,), (-1,), (2**62,), (3,)], (2, 2**62)),
    ],
)
@in_loop
async def test_of_several_that_are_equally_late_the_first_is_found(batches, latest):
    log = await make_store(config=SMALL).log("a")
    for stamps in batches:
        await log.append(dated(*stamps))
    assert log.find_latest() == latest


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=25),
    st.integers(10, 400),
)
def test_the_latest_is_what_looking_at_all_records_finds(batches, size):
    @in_loop
    async def check() -> None:
        log = await make_store(config=SMALL).log("a")
        for stamps in batches:
            await log.append(dated(*stamps, size=size))
        stamps = [at for batch in batches for at in batch]
        assert log.find_latest() == (stamps.index(max(stamps)), max(stamps))

    check()


@in_loop
async def test_what_is_not_committed_is_not_found_though_it_is_later():
    background = HeldExecutor()
    log = await make_store(background=background, config=SMALL).log("a")
    for at in (5, 8, 6):
        await log.append(dated(at))
    background.is_held = True
    later = log.submit(dated(9))
    await turns()
    assert log.segments[-1].timestamp_max == 9
    assert log.find_latest() == (1, 8)
    background.let_go()
    await later
    assert log.find_latest() == (3, 9)


@in_loop
async def test_a_header_that_boasts_misleads_no_one():
    log = await make_store(config=SMALL).log("a")
    await log.append(dated(5))
    await log.append(boasting(dated(7, 6), 1000))
    await log.append(dated(8))
    await log.append(boasting(dated(3), 900))
    assert log.find_latest() == (3, 8)
    assert log.find_timestamp(7) == (1, 7)
    assert log.find_timestamp(9) is None


@in_loop
async def test_the_latest_of_a_segment_that_boasts_is_compared_with_the_others():
    log = await make_store(config=SMALL).log("a")
    await log.append(boasting(dated(5, size=900), 1000))
    await log.append(dated(7, size=900))
    await log.append(boasting(dated(7, size=900), 500))
    assert len(log.segments) == 3
    assert log.find_latest() == (1, 7)


@in_loop
async def test_the_time_of_appending_overrules_what_records_say():
    log = await make_store().log("a")
    await log.append(dated(5, 9_000))
    await log.append(with_append_time(dated(1, 2), 10_000))
    assert log.find_latest() == (2, 10_000)


@in_loop
async def test_the_latest_is_found_across_more_than_is_read_at_once():
    log = await make_store(config=LogConfig(index_interval_bytes=64)).log("a")
    await log.append(boasting(dated(1), 10**6))
    for at in range(5):
        await log.append(dated(at + 5, size=_WALK_BYTES // 2))
    assert log.find_latest() == (5, 9)


@in_loop
async def test_a_damaged_batch_is_not_passed_over():
    disk = SimulatedFilesystem()
    store = make_store(disk)
    log = await store.log("a")
    await log.append(dated(9))
    await log.append(dated(5))
    path = "/data/topics/a/0/00000000000000000000.log"
    disk.flip_bit(path, 8 * 65)
    with pytest.raises(DamagedRecords):
        log.find_latest()


# Headers.


@in_loop
async def test_headers_come_with_their_batches_in_order_markers_too():
    log = await make_store(config=SMALL).log("a")
    marker = build_marker(7, 1, is_commit=True, coordinator_epoch=0, now_ms=5)
    for _ in range(6):
        await log.append(batch_of(b"x" * 100, b"y"))
        await log.append(marker)
    assert len(log.segments) > 1
    found = list(log.headers(0))
    assert [header.base_offset for header, _ in found] == [n for n in range(18) if n % 3 != 1]
    assert [header.is_control for header, _ in found] == [False, True] * 6
    for header, batch in found:
        assert decode_header(batch) == header
        check_batch(header, batch)


@pytest.mark.parametrize(
    ("offset", "until", "bases"),
    [
        (0, None, [0, 2, 4]),
        (1, None, [0, 2, 4]),
        (2, 4, [2]),
        (3, 5, [2, 4]),
        (5, 5, []),
        (6, None, []),
        (0, 0, []),
        (0, 100, [0, 2, 4]),
    ],
)
@in_loop
async def test_headers_start_with_the_batch_that_holds_the_offset(offset, until, bases):
    log = await make_store().log("a")
    for _ in range(3):
        await log.append(batch_of(b"a", b"b"))
    found = [header.base_offset for header, _ in log.headers(offset, until=until)]
    assert found == bases


@in_loop
async def test_headers_of_what_is_not_committed_are_not_shown():
    background = HeldExecutor()
    log = await make_store(background=background).log("a")
    await log.append(batch_of(b"a"))
    background.is_held = True
    later = log.submit(batch_of(b"b"))
    await turns()
    assert len(list(log.headers(0))) == 1
    assert list(log.headers(1, until=5)) == []
    background.let_go()
    await later
    assert len(list(log.headers(0))) == 2


@in_loop
async def test_headers_outside_the_log_are_refused():
    log = await make_store().log("a")
    await log.append(batch_of(b"a"))
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange):
            list(log.headers(offset, until=10))


@in_loop
async def test_a_damaged_batch_ends_the_headers_with_an_error():
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    await log.append(batch_of(b"a"))
    disk.flip_bit("/data/topics/a/0/00000000000000000000.log", 8 * 65)
    with pytest.raises(DamagedRecords):
        list(log.headers(0))
