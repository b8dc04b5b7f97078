"""What readers of a damaged partition see: every record, or an error at it, and the same end.

A reader with default settings must not take a damaged log for a shorter one, or for an empty one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest

from millstream.broker.partition.record_page import read_page
from millstream.clients.partition import Isolation
from millstream.config.schema import LogConfig
from millstream.errors import DamagedRecords, MillstreamError
from millstream.records.batch import HEADER_SIZE
from millstream.records.iterate import read_all
from millstream.records.record import StoredRecord
from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.data_directory import DataDirectory
from millstream.storage.files.names import LOCK_FILE
from millstream.testing import SimulatedFilesystem
from tests.broker.partitions import DIRECTORY, Bench, Config, append, batch

FLIPS = 150
"""On each of the two disks."""

CONFIG = Config(log=LogConfig(segment_bytes_max=1024, index_interval_bytes=200))
BATCHES = [
    (b"one",),
    (b"two" * 20,),
    (b"three", b"four"),
    (b"five" * 30,),
    (b"six",),
    (b"seven" * 40, b"eight", b"nine"),
    *((b"%d" % number * 50,) for number in range(10, 18)),
]
VALUES = [value for values in BATCHES for value in values]
END = len(VALUES)
WHERE = TopicPartition("t", 0)


def make_disk(*, is_closed: bool) -> SimulatedFilesystem:
    async def fill() -> SimulatedFilesystem:
        bench = Bench(config=CONFIG)
        await bench.partition.open()
        for values in BATCHES:
            await append(bench.partition, batch(*values))
        if is_closed:
            await bench.close()
        return bench.filesystem.copy()  # As a killed process leaves it, unless it is closed.

    return asyncio.run(fill())


DISKS = {"closed": make_disk(is_closed=True), "killed": make_disk(is_closed=False)}


Reader = Callable[[Bench, int], "asyncio.Future[list[StoredRecord]]"]


async def fetch(bench: Bench, offset: int) -> list[StoredRecord]:
    parts = bench.partition.reader.read(offset, size_max=1 << 20).parts
    return [record for part in parts for record in read_all(part)]


async def fetch_little(bench: Bench, offset: int) -> list[StoredRecord]:
    parts = bench.partition.reader.read(offset, size_max=1).parts
    return [record for part in parts for record in read_all(part)]


async def fetch_committed(bench: Bench, offset: int) -> list[StoredRecord]:
    reader = bench.partition.reader
    parts = reader.read(offset, size_max=1 << 20, is_committed_only=True).parts
    return [record for part in parts for record in read_all(part)]


async def page(bench: Bench, offset: int) -> list[StoredRecord]:
    return list((await read_page(bench.partition, offset, limit=1000, size_max=1 << 20)).records)


async def short_page(bench: Bench, offset: int) -> list[StoredRecord]:
    return list((await read_page(bench.partition, offset, limit=2, size_max=1 << 20)).records)


async def embedded(bench: Bench, offset: int) -> list[StoredRecord]:
    return _prefix(bench.store.get("t").records(offset))


async def in_place(bench: Bench, offset: int) -> list[StoredRecord]:
    directory = DataDirectory("/data", filesystem=bench.filesystem)
    directory.bounds([WHERE], isolation=Isolation.READ_COMMITTED)
    return _prefix(
        record
        for chunk in directory.chunks(WHERE, offset, END, isolation=Isolation.READ_COMMITTED)
        for record in read_all(chunk.data)
    )


def _prefix(records: Iterator[StoredRecord]) -> list[StoredRecord]:
    """Return the records before an error; raise it if there are none."""
    found: list[StoredRecord] = []
    try:
        found.extend(records)
    except MillstreamError:
        if not found:
            raise
    return found


READERS = (fetch, fetch_little, fetch_committed, page, short_page, embedded, in_place)


async def lost_offsets(bench: Bench, reader: Reader, what: str) -> set[int]:
    """Read from every offset; return those at which the reader gets an error."""
    lost = set()
    for offset in range(0, END, 5 if reader is in_place else 1):
        try:
            found = [record for record in await reader(bench, offset) if record.offset >= offset]
        except MillstreamError:
            lost.add(offset)
            continue
        assert found, f"{what}: an empty success at {offset}"
        offsets = [record.offset for record in found]
        assert offsets == list(range(offset, offset + len(found))), (
            f"{what}: not what is at {offset}"
        )
        values = VALUES[offset : offset + len(found)]
        assert [record.value for record in found] == values, f"{what}: other bytes at {offset}"
    return lost


async def check(disk: SimulatedFilesystem, what: str, *, is_local: bool) -> None:
    try:
        bench = Bench(disk, config=CONFIG)
        await bench.partition.open()
    except MillstreamError:
        if is_local:
            raise
        return
    partition = bench.partition
    assert (partition.high_watermark, partition.last_stable_offset) == (END, END), what
    assert partition.offsets.latest().offset == END
    for reader in READERS:
        lost = await lost_offsets(bench, reader, f"{what}, {reader.__name__}")
        if is_local and reader is not in_place:
            batches = [
                set(range(first, first + len(values))) for first, values in _batches() if lost
            ]
            assert not lost or lost in batches, f"{what}, {reader.__name__}: {lost} are lost"
            assert not lost or bench.store.damage(), f"{what}: nobody is told"


def _batches() -> Iterator[tuple[int, tuple[bytes, ...]]]:
    first = 0
    for values in BATCHES:
        yield first, values
        first += len(values)


@pytest.mark.parametrize("state", DISKS)
def test_a_flipped_bit_costs_one_batch_and_every_reader_is_told(state: str) -> None:
    disk = DISKS[state]
    paths = [path for path in disk.paths() if path.startswith(DIRECTORY)]
    bits = [(path, bit) for path in paths for bit in range(len(disk.content(path)) * 8)]
    for path, bit in random.Random(1).sample(bits, FLIPS):
        broken = disk.copy()
        broken.flip_bit(path, bit)
        asyncio.run(check(broken, f"bit {bit} of {path}", is_local=path.endswith(".log")))


@pytest.mark.parametrize("state", DISKS)
def test_every_field_of_a_header_can_be_wrong(state: str) -> None:
    """Also those that lead to the next batch: its length and its number of offsets."""
    disk = DISKS[state]
    path = max(path for path in disk.paths() if path.endswith(".log"))
    for bit in range(0, 8 * HEADER_SIZE, 3):
        broken = disk.copy()
        broken.flip_bit(path, bit)
        asyncio.run(check(broken, f"bit {bit} of {path}", is_local=True))


@pytest.mark.parametrize("state", DISKS)
def test_a_file_that_is_cut_or_gone_leaves_the_end_where_it_was(state: str) -> None:
    disk = DISKS[state]
    for path in disk.paths():
        if not path.endswith(".log") or path.endswith(LOCK_FILE):
            continue
        size = len(disk.content(path))
        for cut in (0, 1, 60, size // 2, size - 1):
            broken = disk.copy()
            broken.cut(path, cut)
            asyncio.run(check(broken, f"{path} cut to {cut} of {size} bytes", is_local=False))
        broken = disk.copy()
        broken.remove(path)
        asyncio.run(check(broken, f"{path} removed", is_local=False))


def test_a_zeroed_page_is_passed_over() -> None:
    for state, disk in DISKS.items():
        path = min(path for path in disk.paths() if path.endswith(".log"))
        broken = disk.copy()
        content = bytearray(disk.content(path))
        content[100:400] = bytes(300)
        broken.replace_content(path, bytes(content))
        asyncio.run(check(broken, f"{state}: zeroes in {path}", is_local=False))


def test_a_search_by_time_does_not_skip_lost_records() -> None:
    async def go() -> None:
        disk = DISKS["closed"].copy()
        path = min(path for path in disk.paths() if path.endswith(".log"))
        disk.flip_bit(path, 8 * 65)
        bench = Bench(disk, config=CONFIG)
        await bench.partition.open()
        bench.background.is_held = False
        with pytest.raises(DamagedRecords, match="offset 0 is lost"):
            bench.store.get("t").find_timestamp(0)

    asyncio.run(go())
