"""Opening a store that was closed cleanly."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Row, Scale, at_most

from millstream import Durability, LogConfig, Store
from millstream.storage.files.seal import SEAL_SIZE
from subjects.log.common import KIB, UnsyncedFilesystem, fill, log_files, make_batch, opened
from subjects.start.data import multiply_segment

CONFIG = LogConfig(durability=Durability.DISK, segment_records_max=1)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=4, quick=100, full=100)
    many, one = folder / "many", folder / "one"
    _multiply_log(_make_log(many, segments=count), count)
    multiply_segment(_make_log(one, segments=1), count**2)
    assert len(log_files(many)) == len(log_files(one)) == count**2
    yield (
        lambda: {"bare": _touch_bare(many)},
        lambda: {"many logs": _open(many)},
        lambda: {"bare, one log": _touch_bare(one)},
        lambda: {"one log": _open(one)},
    )


def _make_log(folder: Path, *, segments: int) -> Path:
    """Make a store with one log, and return the directory of the log."""
    with opened(folder, CONFIG, filesystem=UnsyncedFilesystem()) as store:
        store.run(fill(store.log(), make_batch(KIB), segments, window=1))
    return log_files(folder)[0].parent


def _multiply_log(first: Path, count: int) -> None:
    """Give a topic `count` partitions that are all like its first.

    Hard links: sealed files never change, and making and removing ten thousand real ones takes
    a minute if every freed block is discarded on the disk.
    """
    for number in range(1, count):
        other = first.with_name(str(number))
        other.mkdir()
        for path in first.iterdir():
            (other / path.name).hardlink_to(path)


def _touch_bare(folder: Path) -> float:
    """Ask for the size of every log and read every seal, as opening must at the least."""
    pairs = [(str(path), str(path.with_suffix(".seal"))) for path in log_files(folder)]
    started = time.perf_counter()
    for log, seal in pairs:
        os.stat(log)
        descriptor = os.open(seal, os.O_RDONLY)
        os.read(descriptor, SEAL_SIZE)
        os.close(descriptor)
    return time.perf_counter() - started


def _open(folder: Path) -> float:
    store = Store(str(folder), log_config=CONFIG)
    started = time.perf_counter()
    store.open()
    elapsed = time.perf_counter() - started
    assert not store.damage(), store.damage()
    asyncio.run(store.close())
    return elapsed


_row = partial(Row, unit="s", limit_name="stat, open, read, close", goal=at_most(2))

OPENING = Experiment(
    title="open 10,000 segments",
    note=(
        "Cleanly closed stores with 10,000 sealed segments of one batch of 1 KiB, in 100 logs of"
        " 100 and in one log; all is in the kernel's caches. Files that are the same in all logs,"
        " or in all segments, are hard links of one. The limit asks for the size of each `.log`"
        " and reads each `.seal`."
    ),
    rows=(
        _row(name="open 10,000 segments, 100 logs", ours="many logs", limit="bare"),
        _row(name="open 10,000 segments, one log", ours="one log", limit="bare, one log"),
    ),
    arms=_arms,
)
