"""Sequential reads of sealed segments, beside copying the same bytes."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_least

from millstream import Durability, Log, LogConfig
from subjects.log.common import KIB, MB, MIB, fill, log_files, make_batch, opened

CONFIG = LogConfig(durability=Durability.DISK)
READ_SIZE = MIB


@contextmanager
def _arms(batch_size: int, scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(batch_size)
    count = scale.pick(smoke=4 * MIB, quick=512 * MIB, full=1024 * MIB) // batch_size
    size = count * len(batch)
    with opened(folder, CONFIG) as store:
        store.run(fill(store.log(), batch, count))

    def copy() -> Figures:
        started = time.thread_time()
        for path in log_files(folder):
            _copy_mapped(path)
        return {"copy": size / (time.thread_time() - started) / MB}

    def read(name: str, *, is_checked: bool) -> Figures:
        with opened(folder, CONFIG) as store:
            elapsed = _read_all(store.log(), is_checked=is_checked)
        return {name: size / elapsed / MB}

    copy()  # Once for the page cache.
    yield (
        copy,
        lambda: read("checked", is_checked=True),
        lambda: read("unchecked", is_checked=False),
    )


def _copy_mapped(path: Path) -> None:
    """Copy a file out of the page cache, piece by piece into the same buffer."""
    target = memoryview(bytearray(READ_SIZE))
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for start in range(0, os.path.getsize(path), READ_SIZE):
        piece = mapped[start : start + READ_SIZE]
        target[: len(piece)] = piece


def _read_all(log: Log, *, is_checked: bool) -> float:
    started = time.thread_time()
    offset, end = log.start_offset, log.end_offset
    while offset < end:
        offset = log.read(offset, size_max=READ_SIZE, is_checked=is_checked).next_offset
    return time.thread_time() - started


def _experiment(batch_size: int, batches: str) -> Experiment:
    name = f"read sealed segments, {batches}"
    row = partial(Row, unit="MB/s", limit="copy", limit_name="copy out of a map")
    return Experiment(
        title=name,
        note=(
            "The whole log in order, 1 MiB at a time, from the page cache; every repetition maps"
            " the files again, ours and the limit, so both take the page faults. Ours verifies all"
            " sums and returns views of the map, without a copy. Nothing waits here, so the time is"
            " that of the CPU: a neighbour on the machine does not count."
        ),
        rows=(
            row(name=name, ours="checked", goal=ratio_at_least(0.7)),
            row(name=f"{name}, sums not verified", ours="unchecked"),
        ),
        arms=partial(_arms, batch_size),
        repetitions_quick=5,
        repetitions_full=9,
    )


READ_1_MB = _experiment(MIB, "1 MB batches")
READ_16_KB = _experiment(16 * KIB, "16 KB batches")
