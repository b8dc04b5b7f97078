"""Small data directories: closed cleanly, or left by a killed process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.config.schema import LogConfig
from millstream.errors import MillstreamError
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes_max=1024, index_interval_bytes=256)

Work = Callable[[Store], Awaitable[None]]
T = TypeVar("T")


class Inline:
    """Runs blocking work immediately, so that every test run is the same."""

    width = 1

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(work())
        except (OSError, MillstreamError) as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


def run_store(filesystem: SimulatedFilesystem, path: str, work: Work) -> None:
    """Open a store, run some work and close it cleanly."""

    async def run() -> None:
        store = Store(
            path,
            log_config=CONFIG,
            filesystem=filesystem,
            clock=ManualClock(),
            background=Inline(),
        )
        store.open()
        await work(store)
        await store.close()

    asyncio.run(run())


async def append(
    log: Log, count: int, *, size: int = 100, value: bytes = b"", codec: Codec = Codec.NONE
) -> None:
    """Append batches of two records each, with timestamps that are not monotonic."""
    for _ in range(count):
        at = NOW + (log.end_offset * 7919) % 1000
        text = value.ljust(size, b".")
        record = Record(text, key=b"key", headers=(("h", b"1"),), timestamp_ms=at)
        batch = build_batch([record, Record(b"\xff\x00")], now_ms=at, codec=codec)
        await log.append(batch)


async def fill(store: Store) -> None:
    """Write several segments, two epochs and two topics."""
    orders = await store.log("orders")
    await append(orders, 12)
    await orders.begin_epoch(3)
    await append(orders, 9)
    await append(await store.log("orders", 1), 3, codec=Codec.ZSTD)
    await append(await store.log("events"), 7, size=10)


def clean_store(path: str = "/data") -> SimulatedFilesystem:
    """Return a disk with a data directory that was closed cleanly."""
    filesystem = SimulatedFilesystem()
    run_store(filesystem, path, fill)
    return filesystem.copy()


def killed_store(path: str = "/data") -> SimulatedFilesystem:
    """Return a disk with the data directory of a killed process and a reopened segment."""
    filesystem = SimulatedFilesystem()
    run_store(filesystem, path, fill)
    copies = []

    async def go_on(store: Store) -> None:
        for name in store.names():
            await append(await store.log(*name), 2)
        copies.append(filesystem.copy())

    run_store(filesystem, path, go_on)
    return copies[0]


def put_on_disk(filesystem: SimulatedFilesystem, path: str) -> None:
    """Copy a data directory from `/data` of a simulated disk to the real one."""
    for name, content in filesystem.contents().items():
        target = path + name.removeprefix("/data")
        if content is None:
            os.makedirs(target, exist_ok=True)
        else:
            with open(target, "wb") as file:
                file.write(content)
