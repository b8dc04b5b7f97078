"""Stores with a tier, for tests: small segments, and calls to the cold store in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from millstream.config.schema import LogConfig, StoreConfig, TierConfig
from millstream.records.record import Record, StoredRecord
from millstream.storage.log import Log
from millstream.storage.segment.cold_segment import ColdMiss, ColdSegment
from millstream.storage.store import Store
from millstream.storage.tier.cold_store import ColdStore, DirectoryStore
from millstream.testing import ManualClock
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer

TIERED = LogConfig(segment_bytes_max=1024, index_interval_bytes=64, is_tiered=True)


class InlineThreads:
    """Calls of the cold store, made at once."""

    hanging = 0

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - passed on, as threads do.
            future.set_exception(error)
        return future

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        pass


class BadStore:
    """A store that does what it is told, wrong."""

    def __init__(self, store: ColdStore) -> None:
        self.store = store
        self.uri = store.uri
        self.on_put: Callable[[str, list[bytes]], list[bytes]] = lambda _key, pieces: pieces
        self.on_read: Callable[[str, bytes], bytes] = lambda _key, data: data
        self.on_delete: Callable[[str], None] = lambda _key: None
        self.on_list: Callable[[list[str]], list[str]] = lambda keys: keys
        self.reads = 0

    def put(self, key: str, pieces: Iterable[bytes]) -> str:
        return self.store.put(key, self.on_put(key, list(pieces)))

    def read(self, key: str, start: int, size: int) -> bytes:
        self.reads += 1
        return self.on_read(key, self.store.read(key, start, size))

    def size(self, key: str) -> int:
        return self.store.size(key)

    def delete(self, key: str) -> None:
        self.on_delete(key)
        self.store.delete(key)

    def list(self, prefix: str) -> Iterator[str]:
        return iter(self.on_list(list(self.store.list(prefix))))


def make_store(
    filesystem: object,
    *,
    seed: int = 0,
    config: LogConfig = TIERED,
    clock: ManualClock | None = None,
    cold: object = None,
    hot_segments: int = 2,
) -> Store:
    filesystem.make_directory("/cold")
    filesystem.sync_directory("/")
    return Store(
        "/data",
        log_config=config,
        config=StoreConfig(cleaning_bytes_per_second_max=0),
        tier=TierConfig(store="/cold", hot_segments=hot_segments, bytes_per_second_max=0),
        cold_store=cold or DirectoryStore("/cold", filesystem),
        tier_threads=InlineThreads(),
        filesystem=filesystem,
        clock=clock or ManualClock(),
        background=SeededBackground(seed),
        syncer=SeededSyncer(seed),
    )


async def fill(log: Log, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        await log.append_records([Record(b"%d" % number + b"x" * 200, timestamp_ms=number)])


def cold(log: Log) -> list[ColdSegment]:
    return [segment for segment in log.segments if isinstance(segment, ColdSegment)]


def values(log: Log, offset: int | None = None) -> list[bytes]:
    """All values from an offset on, however often a piece has to be fetched first."""
    position = log.start_offset if offset is None else offset
    found: list[bytes] = []
    tries = 0
    while position < log.end_offset:
        try:
            for record in log.records(position):
                assert isinstance(record, StoredRecord)
                assert record.offset == position, "no offset is left out"
                found.append(record.value[:-200] if record.value else b"")
                position = record.offset + 1
        except ColdMiss:
            tries += 1
            assert tries < 1000
    return found


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]
