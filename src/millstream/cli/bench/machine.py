"""Measurements of `millstream bench` on this machine: the disk, and a log on it.

Each measurement repeats one operation sequentially with the same bytes, a batch of 1,000 records of
100 bytes, until its time is over or it has written its maximum.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import millstream
from millstream.config.schema import Durability, LogConfig
from millstream.records.build import build_batch
from millstream.records.record import Record

RECORDS = 1_000
RECORD_SIZE = 100
BYTES_MAX = 256 * 1024 * 1024
"""Maximum bytes written by one measurement."""

WRITE = "disk: write"
SYNC = "disk: write, fdatasync"
_LIMITS = {
    Durability.EPHEMERAL: None,  # It writes nothing.
    Durability.MEMORY: WRITE,
    Durability.DISK: WRITE,
    Durability.FSYNC: SYNC,
}


class Measurement(NamedTuple):
    """Result of one measurement."""

    what: str
    bytes_per_second: float
    records_per_second: float
    p50_ms: float
    p99_ms: float
    limit: str | None = None
    """Name of the measurement that this one is compared with."""


class Stopwatch:
    """Counts operations and decides when a measurement is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = self._last = time.perf_counter()
        self._laps: list[float] = []
        self._bytes = self._records = 0

    @property
    def is_over(self) -> bool:
        """Return whether the time is over or the maximum was written. At least one lap is done."""
        is_late = self._last - self._began >= self._seconds
        return bool(self._laps) and (is_late or self._bytes >= BYTES_MAX)

    def skip(self) -> None:
        """Exclude the time since the last lap."""
        now = time.perf_counter()
        self._began += now - self._last
        self._last = now

    def lap(self, size: int, records: int) -> None:
        """Count operations completed since the last lap."""
        now = time.perf_counter()
        self._laps.append(now - self._last)
        self._last = now
        self._bytes += size
        self._records += records

    def measured(self, what: str, limit: str | None = None) -> Measurement:
        seconds = max(self._last - self._began, 1e-9)
        laps = sorted(self._laps)
        p50, p99 = (laps[int(len(laps) * share)] * 1e3 for share in (0.5, 0.99))
        return Measurement(what, self._bytes / seconds, self._records / seconds, p50, p99, limit)


def batch_of_bench() -> bytes:
    """Return the batch used by all measurements; its values do not repeat."""
    noise = os.urandom(RECORDS * RECORD_SIZE)
    values = (noise[at : at + RECORD_SIZE] for at in range(0, len(noise), RECORD_SIZE))
    return build_batch([Record(value) for value in values], now_ms=time.time_ns() // 1_000_000)


def measure_machine(directory: str, seconds: float) -> Iterator[Measurement]:
    """Measure the disk of a directory, and a log on it in each durability class."""
    batch = batch_of_bench()
    yield _measure_disk(directory, batch, seconds, syncs=False)
    yield _measure_disk(directory, batch, seconds, syncs=True)
    for durability in Durability:
        path = os.path.join(directory, durability.value)
        yield asyncio.run(_measure_log(path, batch, seconds, durability))


def _measure_disk(directory: str, batch: bytes, seconds: float, *, syncs: bool) -> Measurement:
    path = os.path.join(directory, "limit")
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        watch = Stopwatch(seconds)
        while not watch.is_over:
            os.write(number, batch)
            if syncs:
                os.fdatasync(number)
            watch.lap(len(batch), RECORDS)
    finally:
        os.close(number)
        os.unlink(path)
    return watch.measured(SYNC if syncs else WRITE)


async def _measure_log(
    path: str, batch: bytes, seconds: float, durability: Durability
) -> Measurement:
    async with millstream.open(path, config=LogConfig(durability=durability)) as store:
        log = await store.log("bench")
        watch = await _repeat(lambda: log.append(batch), len(batch), seconds)
    return watch.measured(f"log: {durability.value}", _LIMITS[durability])


async def _repeat(append: Callable[[], Awaitable[object]], size: int, seconds: float) -> Stopwatch:
    await append()  # The first makes files.
    watch = Stopwatch(seconds)
    while not watch.is_over:
        await append()
        watch.lap(size, RECORDS)
    return watch
