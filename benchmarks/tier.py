"""Appends while eight readers replay a cold store, and while that store hangs.

    python benchmarks/tier.py --seconds 20

One log of class `fsync` takes appends of 1 KiB, one after the other. In the same run: alone, beside
eight replays of local segments, beside eight replays of the same segments in a cold store (a
directory), and beside eight readers of a cold store that does not answer. The second is the limit
for the third: readers share the event loop with appends. The fourth should be as the first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import threading
import time
from pathlib import Path

from millstream.config.schema import LogConfig, StoreConfig, TierConfig
from millstream.errors import TierUnavailable
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.store import Store
from millstream.storage.tier.cold_store import DirectoryStore

READERS = 8
MIB = 1024 * 1024


class Slow(DirectoryStore):
    """A store that can be told not to answer."""

    hangs = False

    def read(self, key: str, start: int, size: int) -> bytes:
        if self.hangs:
            threading.Event().wait(3600)
        return super().read(key, start, size)


async def append(log: Log, seconds: float) -> list[float]:
    took, end = [], time.perf_counter() + seconds
    record = [Record(b"x" * 1024)]
    while time.perf_counter() < end:
        began = time.perf_counter()
        await log.append_records(record)
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.001)
    return took


async def replay(store: Store, log: Log, end: int, counts: list[int]) -> None:
    """Read the cold part of a log again and again, as a fetch does."""
    while True:
        offset = 0
        while offset < end:
            await store.prefetcher.prefetch(store.prefetcher.cold_ranges(log.segments, offset, MIB))
            try:
                found = log.read(offset, size_max=MIB)
            except TierUnavailable:
                await asyncio.sleep(0.05)
                continue
            counts[0] += len(found.data)
            offset = found.next_offset
            await asyncio.sleep(0)


def told(name: str, took: list[float], more: str = "") -> None:
    took = sorted(took)
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    print(
        f"{name:28} {len(took):7} appends  p50 {p50 * 1e3:6.2f} ms  p99 {p99 * 1e3:6.2f} ms"
        f"  max {took[-1] * 1e3:6.1f} ms  {more}"
    )


async def measure(path: str, seconds: float, size: int) -> None:
    cold = Path(path) / "cold"
    cold.mkdir()
    slow = Slow(str(cold))
    store = Store(
        str(Path(path) / "data"),
        config=StoreConfig(upkeep_interval_ms=0),
        log_config=LogConfig(segment_bytes_max=16 * MIB, is_tiered=True),
        tier=TierConfig(store=str(cold), bytes_per_second_max=0),
        cold_store=slow,
    )
    async with store:
        log = await store.log("t")
        record = Record(b"y" * 10_000)
        for _ in range(size // (100 * 10_000)):
            await log.append_records([record] * 100)
        told("alone", await append(log, seconds))
        counts, end = [0], log.segments[-2].base_offset
        async with contextlib.AsyncExitStack() as stack:
            _start(stack, store, log, end, counts)
            took = await append(log, seconds)
        told(f"{READERS} local replays", took, f"{counts[0] / MIB / seconds:.0f} MiB/s read")
        await store.relocator.run_once()
        moved = [s for s in log.segments if isinstance(s, ColdSegment)]
        print(f"{len(moved)} segments, {sum(s.size for s in moved) / MIB:.0f} MiB moved")
        end = moved[-1].next_offset
        counts = [0]
        async with contextlib.AsyncExitStack() as stack:
            _start(stack, store, log, end, counts)
            took = await append(log, seconds)
        told(f"{READERS} cold replays", took, f"{counts[0] / MIB / seconds:.0f} MiB/s read")
        slow.hangs = True
        # What the cache holds is answered, so begin with an empty one.
        store.cold_reader._pieces.clear()  # noqa: SLF001
        store.cold_reader._cached_bytes = 0  # noqa: SLF001
        async with contextlib.AsyncExitStack() as stack:
            _start(stack, store, log, end, counts)
            took = await append(log, seconds)
        told(f"{READERS} readers, store hangs", took)
        began = time.perf_counter()
    print(f"stopped in {time.perf_counter() - began:.2f} s")


def _start(
    stack: contextlib.AsyncExitStack, store: Store, log: Log, end: int, counts: list[int]
) -> None:
    for _ in range(READERS):
        task = asyncio.ensure_future(replay(store, log, end, counts))
        stack.callback(task.cancel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of the four")
    parser.add_argument("--bytes", type=int, default=512 * MIB, help="size of the log")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as path:
        asyncio.run(measure(path, given.seconds, given.bytes))


if __name__ == "__main__":
    main()
