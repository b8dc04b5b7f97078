"""Many logs at once, all of class `fsync`."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from millstream import Log, LogConfig, StoreConfig
from subjects.log.common import OpenStore, make_batch, opened, quantile

CONFIG = LogConfig()
STORE_CONFIG = StoreConfig()
RECORD_SIZE = 200


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=10, quick=1000, full=1000)
    rounds = scale.pick(smoke=1, quick=1, full=4)
    period = scale.pick(smoke=0.1, quick=1.0, full=1.0)
    batch = make_batch(RECORD_SIZE)
    with opened(folder / "log", CONFIG) as store:
        logs = store.logs(count)
        store.run(_burst(logs, batch))  # Creates the files.

        def bare() -> Figures:
            times = [each for _ in range(rounds) for each in _write_bare(folder, batch, count)]
            return _figures("bare", times)

        def burst() -> Figures:
            times = [each for _ in range(rounds) for each in store.run(_burst(logs, batch))]
            return _figures("burst", times) | {
                "descriptors": len(os.listdir("/proc/self/fd")),
                "threads": len(os.listdir("/proc/self/task")),
            }

        def paced() -> Figures:
            return _figures("paced", _paced(store, logs, batch, rounds=rounds, period=period))

        yield bare, burst, paced


def _figures(name: str, times: Sequence[float]) -> dict[str, float]:
    return {
        f"{name} p50": quantile(times, 0.5) * 1e3,
        f"{name} p99": quantile(times, 0.99) * 1e3,
    }


async def _append(log: Log, batch: bytes) -> float:
    started = time.perf_counter()
    await log.append(batch)
    return time.perf_counter() - started


async def _burst(logs: Sequence[Log], batch: bytes) -> list[float]:
    """Append to all logs in the same instant."""
    started = time.perf_counter()

    async def append(log: Log) -> float:
        await log.append(batch)
        return time.perf_counter() - started

    return await asyncio.gather(*(append(log) for log in logs))


def _paced(
    store: OpenStore, logs: Sequence[Log], batch: bytes, *, rounds: int, period: float
) -> list[float]:
    """Append to every log once in a period, evenly spread, while each of them is followed."""

    async def run() -> list[float]:
        followers = [asyncio.create_task(_follow(log)) for log in logs]
        loop = asyncio.get_running_loop()
        began = loop.time()
        appends = []
        for number, log in enumerate(log for _ in range(rounds) for log in logs):
            due = began + number * period / len(logs)
            await asyncio.sleep(max(0.0, due - loop.time()))
            appends.append(asyncio.create_task(_append(log, batch)))
        times = await asyncio.gather(*appends)
        for follower in followers:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower
        return times

    return store.run(run())


async def _follow(log: Log) -> None:
    async for _ in log.follow(log.end_offset):
        pass


def _write_bare(folder: Path, batch: bytes, count: int) -> list[float]:
    """Write to as many files in the same instant, with as many threads to sync them."""
    place = folder / "bare"
    place.mkdir()
    files = [os.open(place / str(n), os.O_RDWR | os.O_CREAT, 0o600) for n in range(count)]
    started = time.perf_counter()

    def write(descriptor: int) -> float:
        os.write(descriptor, batch)
        os.fdatasync(descriptor)
        return time.perf_counter() - started

    with ThreadPoolExecutor(STORE_CONFIG.sync_threads) as threads:
        times = list(threads.map(write, files))
    for descriptor in files:
        os.close(descriptor)
    shutil.rmtree(place)
    return times


_row = partial(Row, unit="ms", limit_name="write + fdatasync, 4 threads")

PARTITIONS = Experiment(
    title="1,000 logs",
    note=(
        "One batch of 200 bytes to each of 1,000 logs of class `fsync`. `at once`: all appends"
        " are issued in the same instant, and so are the writes of the limit. `1 per second"
        " each`: evenly spread over a second, while a follower reads every log. Settings are the"
        " defaults: 512 files open for writing, 4 threads that sync."
    ),
    rows=(
        _row(name="1,000 logs at once, fsync: ack p50", ours="burst p50", limit="bare p50"),
        _row(name="1,000 logs at once, fsync: ack p99", ours="burst p99", limit="bare p99"),
        Row(name="1,000 logs, 1 per second each, followed: ack p50", unit="ms", ours="paced p50"),
        Row(
            name="1,000 logs, 1 per second each, followed: ack p99",
            unit="ms",
            ours="paced p99",
            goal=at_most(50),
        ),
        Row(name="1,000 logs: descriptors in use", unit="", ours="descriptors"),
        Row(name="1,000 logs: threads in use", unit="", ours="threads"),
    ),
    arms=_arms,
    repetitions_full=5,
)
