"""Durable appends: number of appends per sync, and latency of a lone one."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop
from measure.experiment import (
    Arm,
    Experiment,
    Figures,
    Row,
    Scale,
    at_least,
    ratio_at_least,
    ratio_at_most,
)

import millstream
from millstream import Durability, EmbeddedLog, Log, LogConfig
from subjects.log.common import KIB, MB, TOPIC, fresh_file, make_batch, median_us, opened

FSYNC = LogConfig(durability=Durability.FSYNC)
APPENDERS = 64


# Many at once.


@contextmanager
def _group_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(KIB)
    each = scale.pick(smoke=4, quick=200, full=1000)
    size = each * APPENDERS * len(batch)
    syncs = 1  # As many as ours needed in the same repetition.

    def ours() -> Figures:
        nonlocal syncs
        with opened(folder / "log", FSYNC) as store:
            log = store.log()
            elapsed = store.run(_append_together(log, batch, each))
            counters = log.counters
            syncs = counters.syncs
        shutil.rmtree(folder / "log")
        return {
            "rate": size / elapsed / MB,
            "appends per sync": counters.appends / syncs,
            "appends/s": counters.appends / elapsed,
        }

    def bare() -> Figures:
        elapsed = _write_bare(folder / "bare", bytes(size // syncs), syncs)
        return {"bare": size / elapsed / MB, "appenders": APPENDERS}

    def loop() -> Figures:
        return {"loop": APPENDERS * each / uvloop.run(_take_turns_on_loop(each))}

    yield ours, bare, loop


async def _append_together(log: Log, batch: bytes, each: int) -> float:
    async def append_each() -> None:
        for _ in range(each):
            await log.append(batch)

    started = time.perf_counter()
    await asyncio.gather(*(append_each() for _ in range(APPENDERS)))
    return time.perf_counter() - started


async def _take_turns_on_loop(each: int) -> float:
    """Wake as many tasks as often, each by a future of its own, and do nothing besides."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def wake() -> None:
        woken = waiting.copy()
        waiting.clear()
        for future in woken:
            future.set_result(None)

    async def wait_each() -> None:
        for _ in range(each):
            future = loop.create_future()
            if not waiting:
                loop.call_soon(wake)
            waiting.append(future)
            await future

    started = time.perf_counter()
    await asyncio.gather(*(wait_each() for _ in range(APPENDERS)))
    return time.perf_counter() - started


def _write_bare(path: Path, data: bytes, syncs: int) -> float:
    with fresh_file(path) as descriptor:
        started = time.perf_counter()
        for _ in range(syncs):
            os.write(descriptor, data)
            os.fdatasync(descriptor)
        return time.perf_counter() - started


GROUP_COMMIT = Experiment(
    title="group commit",
    note=(
        "64 tasks append batches of 1 KiB to one log of class `fsync`, each waiting for its own"
        " before the next. The limit writes the same bytes in as many syncs as ours needed."
        " `event loop` is what 64 tasks that only wake and wait reach on uvloop."
    ),
    rows=(
        Row(
            name="64 appenders, 1 KB, fsync: appends per fdatasync",
            unit="appends",
            ours="appends per sync",
            limit="appenders",
            limit_name="appenders (given)",
            goal=at_least(20),
        ),
        Row(
            name="64 appenders, 1 KB, fsync: throughput",
            unit="MB/s",
            ours="rate",
            limit="bare",
            limit_name="write + fdatasync, as many",
            goal=ratio_at_least(0.7),
        ),
        Row(
            name="64 appenders, 1 KB, fsync: appends",
            unit="per s",
            ours="appends/s",
            limit="loop",
            limit_name="event loop",
        ),
    ),
    arms=_group_arms,
    repetitions_quick=5,
    repetitions_full=9,
)


# One at a time.


@contextmanager
def _lone_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(KIB)
    count = scale.pick(smoke=4, quick=300, full=1000)

    def bare() -> Figures:
        return {"bare": median_us(_time_bare(folder / "bare", batch, count))}

    def ours() -> Figures:
        with opened(folder / "log", FSYNC) as store:
            times = store.run(_time_appends(store.log(), batch, count))
        shutil.rmtree(folder / "log")
        return {"async": median_us(times)}

    def embedded() -> Figures:
        with millstream.open(folder / "log") as store:
            times = _time_embedded(store.log(TOPIC), bytes(KIB), count)
        shutil.rmtree(folder / "log")
        return {"embedded": median_us(times)}

    yield bare, ours, embedded


def _time_bare(path: Path, batch: bytes, count: int) -> list[float]:
    times = []
    with fresh_file(path) as descriptor:
        for _ in range(count):
            started = time.perf_counter()
            os.write(descriptor, batch)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - started)
    return times


async def _time_appends(log: Log, batch: bytes, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await log.append(batch)
        times.append(time.perf_counter() - started)
    return times


def _time_embedded(log: EmbeddedLog, value: bytes, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        log.append(value)
        times.append(time.perf_counter() - started)
    return times


def _lone_row(name: str, ours: str, *, is_goal: bool = False) -> Row:
    return Row(
        name=f"lone append, 1 KB, fsync: p50{name}",
        unit="µs",
        ours=ours,
        limit="bare",
        limit_name="write + fdatasync, p50",
        goal=ratio_at_most(2) if is_goal else None,
    )


LONE_APPEND = Experiment(
    title="lone append",
    note=(
        "One batch of 1 KiB at a time to a log of class `fsync`, the next when the one before is"
        " acknowledged. `millstream.open` builds the batch from a record, too, and goes through a"
        " thread of its own."
    ),
    rows=(
        _lone_row("", "async", is_goal=True),
        _lone_row(", by `millstream.open`", "embedded"),
    ),
    arms=_lone_arms,
    repetitions_quick=5,
    repetitions_full=9,
)
