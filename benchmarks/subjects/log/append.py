"""Appends of large batches, beside a bare loop of `os.write`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_least

from millstream import Durability, Log, LogConfig
from subjects.log.common import MB, MIB, fresh_file, make_batch, opened

DEFAULT = LogConfig(durability=Durability.DISK)
ONE_SEGMENT = LogConfig(durability=Durability.DISK, segment_bytes_max=2 * 1024 * MIB - 1)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(MIB)
    count = scale.pick(smoke=4, quick=1024, full=1024)

    def rate(elapsed: float) -> float:
        return count * len(batch) / elapsed / MB

    def bare() -> Figures:
        return {"bare": rate(_write_bare(folder / "bare", batch, count))}

    def bare_synced() -> Figures:
        return {"bare, synced": rate(_write_synced(folder / "bare", batch, count))}

    def checked() -> Figures:
        elapsed = _append(folder / "log", DEFAULT, batch, count, is_checked=False)
        return {"checked": rate(elapsed)}

    def unchecked() -> Figures:
        elapsed = _append(folder / "log", DEFAULT, batch, count, is_checked=True)
        return {"unchecked": rate(elapsed)}

    def one_segment() -> Figures:
        elapsed = _append(folder / "log", ONE_SEGMENT, batch, count, is_checked=True)
        return {"one segment": rate(elapsed)}

    yield bare, bare_synced, checked, unchecked, one_segment


def _write_bare(path: Path, batch: bytes, count: int) -> float:
    with fresh_file(path) as descriptor:
        started = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, batch)
        return time.perf_counter() - started


def _write_synced(folder: Path, batch: bytes, count: int) -> float:
    """Write files as large as segments, and sync each that is full while the next is written."""
    folder.mkdir()
    per_file = DEFAULT.segment_bytes_max // len(batch)
    with ExitStack() as stack:
        thread = stack.enter_context(ThreadPoolExecutor(1))
        syncs: list[Future[None]] = []
        started = time.perf_counter()
        for first in range(0, count, per_file):
            descriptor = stack.enter_context(fresh_file(folder / str(first)))
            for _ in range(first, min(first + per_file, count)):
                os.write(descriptor, batch)
            for sync in syncs:
                sync.result()  # As with a log, no more than two files have not been synced.
            syncs.append(thread.submit(os.fdatasync, descriptor))
        elapsed = time.perf_counter() - started
        thread.shutdown()
    folder.rmdir()
    return elapsed


def _append(
    folder: Path, config: LogConfig, batch: bytes, count: int, *, is_checked: bool
) -> float:
    with opened(folder, config) as store:
        elapsed = store.run(_append_each(store.log(), batch, count, is_checked=is_checked))
    shutil.rmtree(folder)
    return elapsed


async def _append_each(log: Log, batch: bytes, count: int, *, is_checked: bool) -> float:
    started = time.perf_counter()
    for _ in range(count):
        await log.append(batch, is_checked=is_checked)
    return time.perf_counter() - started


_row = partial(Row, unit="MB/s", limit="bare", limit_name="os.write")
_NAME = "append 1 MB batches, class disk"

APPEND = Experiment(
    title="append",
    note=(
        "Batches of 1 MiB one after the other into a fresh log of class `disk`, against `os.write`"
        " of the same bytes into a fresh file; nothing is synced before the clock stops, but a"
        " segment that is full is sealed, with its sync, while the next is written."
        " `sum trusted` is for callers that verified the checksum themselves; `one segment` has"
        " no sealing within the measured time. The loop that syncs does so as sealing does: each"
        " 256 MiB in a thread, while the next are written."
    ),
    rows=(
        _row(name=_NAME, ours="checked", goal=ratio_at_least(0.8)),
        _row(name=f"{_NAME}, sum trusted", ours="unchecked"),
        _row(name=f"{_NAME}, sum trusted, one segment", ours="one segment"),
        Row(
            name=f"{_NAME}, against a loop that syncs",
            unit="MB/s",
            ours="checked",
            limit="bare, synced",
            limit_name="os.write, each 256 MiB synced",
        ),
    ),
    arms=_arms,
    repetitions_full=9,
)
