"""Cost of an append, a read, a lookup and opening, by the length of a log."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_most

from millstream import Durability, Log, LogConfig, Store
from subjects.growth.sparse import make_long_log, timestamp_of
from subjects.log.common import KIB, log_files, make_batch, median_us, opened

BATCH_SIZE = 16 * KIB
PLACES = 256
SHORT, LONG = 1_000, 100_000
"""Batches of 1 MiB: 1 GB and 100 GB."""

CONFIG = LogConfig(durability=Durability.DISK)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=10, quick=1_000, full=8_000)
    short = scale.pick(smoke=10, quick=SHORT, full=SHORT)
    long = scale.pick(smoke=300, quick=LONG, full=LONG)
    batch = make_batch(BATCH_SIZE)
    arms: list[Arm] = []
    for name, batches in (("short", short), ("long", long)):
        make_long_log(folder / name, batches)
        # As many places in both, so that the processor's caches serve both alike.
        places = random.Random(7).sample(range(batches), min(PLACES, batches))
        arms.append(partial(_turn, name, folder / name, batch, places, count))
    yield arms


def _turn(name: str, folder: Path, batch: bytes, places: Sequence[int], count: int) -> Figures:
    visits = random.Random(8).choices(places, k=count)
    figures = {
        f"{name} segments": float(len(log_files(folder))),
        f"{name} open": _time_open(folder),
    }
    with opened(folder, CONFIG) as store:
        log = store.log()
        reads = partial(log.read, size_max=BATCH_SIZE, is_checked=False)
        lookups = lambda offset: log.find_timestamp(timestamp_of(offset))  # noqa: E731
        _time_each(reads, places)  # Maps the segments.
        _time_each(lookups, places)
        used = time.process_time()
        appends = store.run(_time_appends(log, batch, count))
        cpu = time.process_time() - used
        return figures | {
            f"{name} append": median_us(appends),
            f"{name} append CPU": cpu / count * 1e6,
            f"{name} read": median_us(_time_each(reads, visits)),
            f"{name} lookup": median_us(_time_each(lookups, visits)),
        }


def _time_open(folder: Path) -> float:
    """Return how long opening takes, in milliseconds of the CPU."""
    store = Store(str(folder), log_config=CONFIG)
    started = time.process_time()
    store.open()
    elapsed = time.process_time() - started
    assert not store.damage(), store.damage()
    asyncio.run(store.close())
    return elapsed * 1e3


async def _time_appends(log: Log, batch: bytes, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await log.append(batch)
        times.append(time.perf_counter() - started)
    return times


def _time_each(work: Callable[[int], object], offsets: Sequence[int]) -> list[float]:
    """Do something at each of `offsets`; return the CPU time of each."""
    times = []
    for offset in offsets:
        started = time.thread_time()
        work(offset)
        times.append(time.thread_time() - started)
    return times


_row = partial(Row, unit="µs", limit_name="1 GB", goal=ratio_at_most(1.25))

ENGINE = Experiment(
    title="a log of 100 GB",
    note=(
        "A log of 100 GB in segments of the default size beside one of 1 GB, embedded. Both were"
        " written by the engine, in batches of one record of 1 MB of zeros that became holes in the"
        " files: names, sizes, indexes, seals, timestamps and checksums are as if written in full."
        " Batches of 16 KB are appended one at a time (class `disk`); reads and lookups of a"
        " timestamp visit 256 places all over the log, in any order, in time of the CPU. Reads do"
        " not verify the checksum of their megabyte, which would hide what finding it costs."
        " Opening looks at every segment once, so it grows with their number."
    ),
    rows=(
        _row(name="append, p50, 100 GB", ours="long append", limit="short append"),
        _row(name="append, CPU, 100 GB", ours="long append CPU", limit="short append CPU"),
        _row(name="read anywhere, p50, 100 GB", ours="long read", limit="short read"),
        _row(name="find a timestamp, p50, 100 GB", ours="long lookup", limit="short lookup"),
        Row(
            name="open, closed cleanly, 100 GB, CPU",
            unit="ms",
            ours="long open",
            limit="short open",
            limit_name="1 GB",
        ),
        Row(
            name="segments of the long log",
            unit="",
            ours="long segments",
            limit="short segments",
            limit_name="1 GB",
        ),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_quick=3,
    repetitions_full=9,
)
