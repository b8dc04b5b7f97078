"""Damage in a segment costs the batches that are damaged, and moves no end."""

from __future__ import annotations

import struct

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import DamagedRecords
from millstream.records.batch import HEADER_SIZE, split
from millstream.storage.log import Log
from millstream.storage.segment.damage import BatchPosition, find_next_batch
from millstream.storage.store import Store
from millstream.testing import SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import batch_of, make_store

PATH = "/data/topics/a/0/00000000000000000000.log"
COUNT = 12
SPARSE = LogConfig(index_interval_bytes=100_000)
"""One entry in the index: everything else is found by walking over the batches."""


async def filled(
    *, is_closed: bool, config: LogConfig | None = None, values: list[bytes] | None = None
) -> SimulatedFilesystem:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=config)
    log = await store.log("a")
    for value in values or [b"%d" % number * 30 for number in range(COUNT)]:
        await log.append(batch_of(value))
    if is_closed:
        await store.close()
    return disk.copy()


async def opened(disk: SimulatedFilesystem, config: LogConfig | None = None) -> tuple[Store, Log]:
    store = make_store(disk, config=config)
    return store, await store.log("a")


def position_of(disk: SimulatedFilesystem, number: int) -> int:
    batches = [batch for _, batch in split(disk.content(PATH))]
    return sum(map(len, batches[:number]))


def readable(log: Log, offset: int) -> list[int]:
    return [header.base_offset for header, _ in split(log.read(offset).data)]


STATES = pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
CONFIGS = pytest.mark.parametrize("config", [None, SPARSE], ids=["dense", "sparse"])

BYTES = {"base offset": 7, "length": 11, "epoch": 15, "magic": 16, "delta": 26, "record": 65}


@pytest.mark.parametrize("at", BYTES.values(), ids=list(BYTES))
@STATES
@CONFIGS
@in_loop
async def test_a_damaged_batch_is_alone(at: int, is_closed: bool, config: LogConfig | None) -> None:
    disk = await filled(is_closed=is_closed, config=config)
    disk.flip_bit(PATH, 8 * (position_of(disk, 5) + at))
    store, log = await opened(disk, config)
    assert readable(log, 0) == [0, 1, 2, 3, 4], "what is before it is served first"
    with pytest.raises(DamagedRecords, match="offset 5 is lost") as raised:
        log.read(5)
    assert (raised.value.from_offset, raised.value.to_offset) == (5, 5)
    for offset in range(6, COUNT):
        assert readable(log, offset) == list(range(offset, COUNT))
    assert (log.start_offset, log.end_offset) == (0, COUNT)
    [[damage]] = store.damage().values()
    assert "offset 5 is lost" in str(damage)


@STATES
@in_loop
async def test_a_damaged_last_batch_does_not_move_the_end(is_closed: bool) -> None:
    disk = await filled(is_closed=is_closed)
    disk.flip_bit(PATH, 8 * (position_of(disk, COUNT - 1) + 65))
    _, log = await opened(disk)
    assert log.end_offset == COUNT
    assert readable(log, 0) == list(range(COUNT - 1))
    with pytest.raises(DamagedRecords):
        log.read(COUNT - 1)
    assert not log.read(COUNT).data


@in_loop
async def test_damage_that_a_reader_meets_is_reported_once() -> None:
    disk = await filled(is_closed=True)
    disk.flip_bit(PATH, 8 * (position_of(disk, 5) + 65))
    store, log = await opened(disk)
    assert store.damage() == {}, "a clean start scans nothing"
    for _ in range(3):
        with pytest.raises(DamagedRecords):
            log.read(5)
    assert [len(found) for found in store.damage().values()] == [1]
    await log.delete_before(6)
    assert store.damage() == {}, "what is deleted is no problem"


@in_loop
async def test_appends_go_to_a_new_segment_behind_known_damage() -> None:
    """In the old one they would be lost with the proof of where it ends."""
    disk = await filled(is_closed=True)
    disk.flip_bit(PATH, 8 * (position_of(disk, COUNT - 1) + 65))
    _, log = await opened(disk)
    with pytest.raises(DamagedRecords):
        log.read(COUNT - 1)
    assert (await log.append(batch_of(b"more"))).offset == COUNT
    assert [segment.base_offset for segment in log.segments] == [0, COUNT]
    _, log = await opened(disk.copy())
    assert log.offline is None
    assert readable(log, COUNT) == [COUNT]


@in_loop
async def test_two_damaged_batches_leave_what_is_between_them() -> None:
    disk = await filled(is_closed=True)
    for number in (3, 7):
        disk.flip_bit(PATH, 8 * (position_of(disk, number) + 65))
    _, log = await opened(disk)
    assert readable(log, 4) == [4, 5, 6]
    assert readable(log, 8) == [8, 9, 10, 11]


@in_loop
async def test_a_batch_inside_a_value_is_not_taken_for_one_of_the_log() -> None:
    """A value may hold the bytes of a batch that fits, and only the length in front is damaged."""
    inner = bytearray(batch_of(b"inner"))
    struct.pack_into(">q", inner, 0, 2)
    disk = await filled(is_closed=True, config=SPARSE, values=[b"0", bytes(inner), b"2", b"3"])
    position = position_of(disk, 1)
    for bit in (8 * (position + 8) + 2, 8 * (position + 11)):
        broken = disk.copy()
        broken.flip_bit(PATH, bit)
        _, log = await opened(broken, SPARSE)
        assert [record.value for record in log.records(2)] == [b"2", b"3"]
        with pytest.raises(DamagedRecords, match="offset 1 is lost"):
            log.read(1)


def test_the_search_ends_at_the_next_known_position() -> None:
    data = memoryview(bytes(HEADER_SIZE * 5))
    end = BatchPosition(len(data), 9)
    found = find_next_batch(
        lambda first, last: data[first:last], BatchPosition(0, 4), end=end, leader_epoch=0
    )
    assert found == end


@in_loop
async def test_a_search_by_time_says_that_it_may_have_missed_something() -> None:
    disk = await filled(is_closed=True)
    disk.flip_bit(PATH, 8 * (position_of(disk, 5) + 65))
    _, log = await opened(disk)
    last = max(record.timestamp_ms for record in log.records(6))
    with pytest.raises(DamagedRecords):
        list(log.records_between(0, last))
    first = log.find_timestamp(0)
    assert first is not None
    assert first.offset == 0
