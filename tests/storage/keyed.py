"""Logs whose records have keys, for tests of deletion and compaction."""

from __future__ import annotations

from millstream.config.schema import LogConfig
from millstream.records.compression import Codec
from millstream.records.iterate import read_all
from millstream.records.record import Gap, Record
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import SimulatedFilesystem
from tests.storage.logs import make_store, turns

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)
DIRECTORY = "/data/topics/a/0"
KEYS = 5
PER_BATCH = 3


def key_of(offset: int) -> bytes:
    """`k0` to `k4`, over and over."""
    return b"k%d" % (offset % KEYS)


def value_of(offset: int) -> bytes:
    """Return a value that occurs only once."""
    return b"value-%05d-" % offset + b"x" * 60


def stamp_of(offset: int) -> int:
    return 1000 * (offset // PER_BATCH) + offset % PER_BATCH


async def fill(log: Log, count: int, *, codec: Codec = Codec.NONE) -> None:
    """Append batches of three records, three batches to a small segment."""
    for first in range(log.end_offset, log.end_offset + count, PER_BATCH):
        records = [
            Record(value_of(offset), key=key_of(offset), timestamp_ms=stamp_of(offset))
            for offset in range(first, first + PER_BATCH)
        ]
        await log.append_records(records, codec=codec)


async def filled(
    count: int = 36, config: LogConfig = SMALL, *, codec: Codec = Codec.NONE, **options: object
) -> tuple[SimulatedFilesystem, Store, Log]:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=config, **options)
    log = await store.log("a")
    await fill(log, count, codec=codec)
    await turns(50)
    return disk, store, log


def offsets(log: Log, offset: int | None = None) -> list[int]:
    """The offsets of all records that can be read, none of which was evicted."""
    found = list(log.records(offset))
    assert not any(isinstance(each, Gap) for each in found), found
    return [each.offset for each in found]


def walk(log: Log, offset: int, *, size_max: int) -> list[int]:
    """Read from `offset` to the end, as a consumer would; return the records."""
    seen: list[int] = []
    while offset < log.end_offset:
        found = log.read(offset, size_max=size_max)
        seen += [r.offset for r in read_all(found.data) if r.offset >= offset]
        assert found.next_offset > offset
        offset = found.next_offset
    return seen


async def clean(store: Store, log: Log, *, is_forced: bool = True) -> object:
    """Compact, reclaim and merge all that can be."""
    return await log.clean(
        background=store._background,
        throttle=IoThrottle(),
        memory_bytes_max=2**20,
        seed=7,
        is_forced=is_forced,
    )
