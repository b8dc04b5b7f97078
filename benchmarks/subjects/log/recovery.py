"""Opening a store whose process was killed: time to check the end of its log."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypedDict

import uvloop
from crc32c import crc32c
from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from millstream import LogConfig, Store
from millstream.storage.files.names import CHECKPOINT_FILE
from subjects.log.common import KIB, MB, MIB, TOPIC, fill, log_files, make_batch, seconds

CONFIG = LogConfig(segment_bytes_max=2 * 1024 * MIB - 1)
"""Class `fsync`, and one segment that takes it all."""

CHUNK = MIB
GB = 1000 * MB
_processes = multiprocessing.get_context("spawn")


class _Size(TypedDict):
    """Bytes of the tail."""

    smoke: int
    quick: int
    full: int


@contextmanager
def _arms(batch_size: int, size: _Size, scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    _write_and_kill(folder, batch_size, scale.pick(**size))
    (path,) = log_files(folder)
    assert not path.with_suffix(".seal").exists(), "the tail must be unclean"
    gigabytes = path.stat().st_size / GB
    checkpoint = path.with_name(CHECKPOINT_FILE)
    kept = checkpoint.read_bytes()

    def sum_all() -> Figures:
        return {"sum": seconds(lambda: _sum_mapped(path)) / gigabytes, "size": gigabytes}

    def recover() -> Figures:
        checkpoint.write_bytes(kept)
        return {"recovery": _time_open(folder) / gigabytes}

    def recover_without_checkpoint() -> Figures:
        checkpoint.unlink()
        return {"no checkpoint": _time_open(folder) / gigabytes}

    yield sum_all, recover, recover_without_checkpoint


def _write_and_kill(folder: Path, batch_size: int, size: int) -> None:
    """Have a process append until `size` bytes are acknowledged, and kill it as it goes on."""
    receiver, sender = _processes.Pipe(duplex=False)
    process = _processes.Process(
        target=_append_until_killed, args=(str(folder), batch_size, size, sender), daemon=True
    )
    process.start()
    sender.close()
    try:
        receiver.recv()
    finally:
        process.kill()
        process.join()


def _append_until_killed(folder: str, batch_size: int, size: int, sender: Connection) -> None:
    batch = make_batch(batch_size)
    window = max(1, 4 * MIB // batch_size)

    async def append() -> None:
        async with Store(folder, log_config=CONFIG) as store:
            log = await store.log(TOPIC)
            await fill(log, batch, size // len(batch) + 1, window=window)
            sender.send("written")
            for _ in itertools.count():
                await fill(log, batch, 1)

    uvloop.run(append())


def _time_open(folder: Path) -> float:
    """Time the opening in a process that then goes without closing, so the tail stays unclean."""
    receiver, sender = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_open, args=(str(folder), sender), daemon=True)
    process.start()
    sender.close()
    elapsed: float = receiver.recv()
    process.join()
    return elapsed


def _open(folder: str, sender: Connection) -> None:
    store = Store(folder, log_config=CONFIG)
    started = time.perf_counter()
    store.open()
    elapsed = time.perf_counter() - started
    assert not store.damage(), store.damage()
    sender.send(elapsed)
    sender.close()
    os._exit(0)


def _sum_mapped(path: Path) -> None:
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for start in range(0, len(mapped), CHUNK):
        crc32c(mapped[start : start + CHUNK])


def _experiment(batch_size: int, batches: str, size: _Size, *, is_goal: bool) -> Experiment:
    name = f"recover an unclean tail, {batches}"
    row = partial(Row, unit="s/GB", limit="sum", limit_name="crc32c of the bytes")
    return Experiment(
        title=name,
        note=(
            "A process that appends to a log of class `fsync` is killed by SIGKILL, with 1 GB in"
            " a segment that has no seal, or less with 1 KB batches; see its size. The time is that"
            " of `Store.open` in a process of its own, with the file in the page cache. Without its"
            " checkpoint, as after a power cut, all of the tail is written and synced once more."
        ),
        rows=(
            row(name=name, ours="recovery", goal=at_most(2) if is_goal else None),
            row(name=f"{name}, no checkpoint", ours="no checkpoint"),
            Row(name=f"{name}: size", unit="GB", ours="size"),
        ),
        arms=partial(_arms, batch_size, size),
        repetitions_quick=3,
        repetitions_full=5,
    )


RECOVERY_16_KB = _experiment(
    16 * KIB, "16 KB batches", _Size(smoke=4 * MB, quick=GB, full=GB), is_goal=True
)
# Making a tail of a million batches takes a minute, recovering it a second or two.
RECOVERY_1_KB = _experiment(
    KIB, "1 KB batches", _Size(smoke=MB, quick=100 * MB, full=500 * MB), is_goal=False
)
