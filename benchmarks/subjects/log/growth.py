"""Whether the cost of an append or a read grows with the length of the log."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_most

from millstream import Durability, Log, LogConfig
from subjects.log.common import (
    KIB,
    MIB,
    OpenStore,
    UnsyncedFilesystem,
    fill,
    make_batch,
    median_us,
    opened,
)

BATCH_SIZE = 16 * KIB
SEGMENT_SIZE = MIB
BATCHES_PER_SEGMENT = SEGMENT_SIZE // BATCH_SIZE
PLACES = 256
SHORT, LONG = 4, 400
"""Segments of 256 MiB, the default, in a log of 1 GB and in one of 100 GB."""

FILLING = LogConfig(durability=Durability.DISK, segment_bytes_max=SEGMENT_SIZE)
CONFIG = LogConfig(durability=Durability.DISK)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=10, quick=4000, full=8000)
    long = scale.pick(smoke=8, quick=LONG, full=LONG)
    batch = make_batch(BATCH_SIZE)
    with ExitStack() as stack:
        arms: list[Arm] = []
        for name, segments in (("short", SHORT), ("long", long)):
            end = _fill(folder / name, batch, segments)
            store = stack.enter_context(opened(folder / name, CONFIG))
            # As many places in both, so that the processor's caches serve both alike.
            places = random.Random(7).sample(range(end), PLACES)
            arms.append(partial(_turn, name, store, batch, places, count))
        yield arms


def _fill(folder: Path, batch: bytes, segments: int) -> int:
    """Make the log, and return where it ends."""
    with opened(folder, FILLING, filesystem=UnsyncedFilesystem()) as store:
        log = store.log()
        store.run(fill(log, batch, segments * BATCHES_PER_SEGMENT, window=BATCHES_PER_SEGMENT))
        assert len(log.segments) >= segments
        return log.end_offset


def _turn(name: str, store: OpenStore, batch: bytes, places: Sequence[int], count: int) -> Figures:
    log = store.log()
    visits = random.Random(8).choices(places, k=count)
    _time_reads(log, places)  # Maps the segments.
    return {
        f"{name} append": median_us(store.run(_time_appends(log, batch, count))),
        f"{name} read": median_us(_time_reads(log, visits)),
    }


async def _time_appends(log: Log, batch: bytes, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await log.append(batch)
        times.append(time.perf_counter() - started)
    return times


def _time_reads(log: Log, offsets: Sequence[int]) -> list[float]:
    """Read the batch at each of `offsets`."""
    times = []
    for offset in offsets:
        started = time.thread_time()
        log.read(offset, size_max=BATCH_SIZE)
        times.append(time.thread_time() - started)
    return times


_row = partial(Row, unit="µs", limit_name="4 segments (1 GB)", goal=ratio_at_most(1.25))

GROWTH = Experiment(
    title="growth",
    note=(
        "Batches of 16 KiB appended one at a time, and read one at a time, in a log of 400"
        " segments against one of 4: as many as 100 GB and 1 GB have at the default size. The"
        " segments here are of 1 MiB, for what could grow is their number. Reads visit 256 places"
        " all over the log again and again, in any order, in time of the CPU."
    ),
    rows=(
        _row(name="append, p50, 400 segments (100 GB)", ours="long append", limit="short append"),
        _row(name="read anywhere, p50, 400 segments", ours="long read", limit="short read"),
    ),
    arms=_arms,
    repetitions_quick=5,
    repetitions_full=9,
)
