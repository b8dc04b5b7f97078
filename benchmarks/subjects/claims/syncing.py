"""Commit latency with asynchronous I/O and with a thread, and the cost of the checkpoint."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale

from millstream import Durability, Log, LogConfig
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem
from millstream.storage.files.checkpoint import CHECKPOINT_SIZE
from subjects.log.common import KIB, fresh_file, make_batch, median_us, opened

FSYNC = LogConfig(durability=Durability.FSYNC)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(KIB)
    count = scale.pick(smoke=10, quick=500, full=2_000)

    def bare() -> Figures:
        return {"bare": median_us(_write_bare(folder, batch, count, is_noted=False))}

    def noted() -> Figures:
        return {"noted": median_us(_write_bare(folder, batch, count, is_noted=True))}

    def ours(name: str, filesystem: Filesystem | None) -> Figures:
        with opened(folder / "log", FSYNC, filesystem=filesystem) as store:
            times = store.run(_time_appends(store.log(), batch, count))
        shutil.rmtree(folder / "log")
        return {name: median_us(times)}

    # A store that was given its file system does not look for what the kernel can do.
    yield (
        bare,
        noted,
        lambda: ours("kernel", None),
        lambda: ours("threads", OsFilesystem()),
    )


def _write_bare(folder: Path, batch: bytes, count: int, *, is_noted: bool) -> list[float]:
    note = bytes(CHECKPOINT_SIZE)
    times = []
    with fresh_file(folder / "bare") as log, fresh_file(folder / "checkpoint") as checkpoint:
        for _ in range(count):
            started = time.perf_counter()
            os.write(log, batch)
            os.fdatasync(log)
            if is_noted:
                os.pwrite(checkpoint, note, 0)
            times.append(time.perf_counter() - started)
    return times


async def _time_appends(log: Log, batch: bytes, count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await log.append(batch)
        times.append(time.perf_counter() - started)
    return times


def _row(name: str, ours: str) -> Row:
    return Row(name=name, unit="µs", ours=ours, limit="bare", limit_name="write + fdatasync, p50")


SYNCING = Experiment(
    title="who syncs a commit",
    note=(
        "Lone appends of 1 KB to a log of class `fsync`, at the median, with commits that the"
        " kernel syncs and with commits that a thread syncs. The checkpoint is a small write after"
        " each commit that is not synced: what it adds to a bare write and sync."
    ),
    rows=(
        _row("lone append, synced by the kernel, p50", "kernel"),
        _row("lone append, synced by a thread, p50", "threads"),
        _row("bare write + fdatasync with a checkpoint, p50", "noted"),
    ),
    arms=_arms,
    repetitions_quick=5,
)
