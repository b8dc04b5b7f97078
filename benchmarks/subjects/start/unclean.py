"""Start of a node that was killed: time until it serves again."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c
from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from subjects.kafka.client import answer_size, make_topic, produce_frame, send_pipelined
from subjects.kafka.processes import node_command, running
from subjects.log.common import KIB, MB, MIB, log_files, make_batch
from subjects.start.processes import IMPORTS, started, time_start

GB = 1000 * MB
BATCH_SIZE = 16 * KIB
SEGMENT_SIZE_MAX = 2**31 - 1
"""One segment takes it all, so that all of it is the tail."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    size = scale.pick(smoke=4 * MB, quick=GB, full=GB)
    data, usual = folder / "data", folder / "usual"
    _produce_and_kill(data, size, {"segment.bytes": str(SEGMENT_SIZE_MAX)})
    _produce_and_kill(usual, size, {})
    (path,) = log_files(data / "topics")
    assert path.stat().st_size >= size, "all of it must be in one segment"
    assert not path.with_suffix(".seal").exists(), "the tail must be unclean"

    def bare() -> Figures:
        with started(IMPORTS) as start:
            began = time.perf_counter()
            _sum_mapped(path)
            return {"bare": start.seconds + time.perf_counter() - began}

    def ours(name: str, where: Path) -> Figures:
        # Killed again, so that the next turn finds it as unclean.
        return time_start(node_command(where), name, end=signal.SIGKILL)

    def cold() -> Figures:
        _forget(path)
        return ours("cold", data)

    yield bare, lambda: ours("tail", data), cold, lambda: ours("usual", usual)


def _produce_and_kill(data: Path, size: int, configs: dict[str, str]) -> None:
    """Have a node take `size` bytes, all acknowledged as durable, and kill it."""
    batch = make_batch(BATCH_SIZE)
    with running(node_command(data), "kafka 127.0.0.1:", end=signal.SIGKILL) as server:
        topic = make_topic(server.port, configs=configs)
        frame = produce_frame(topic, batch, acks=-1)
        answer = answer_size(server.port, frame)
        send_pipelined(server.port, frame, size // len(batch) + 1, answer=answer, window=64)


def _sum_mapped(path: Path) -> None:
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for start in range(0, len(mapped), MIB):
        crc32c(mapped[start : start + MIB])


def _forget(path: Path) -> None:
    """Have the kernel drop what it keeps of a file in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


UNCLEAN = Experiment(
    title="start, killed",
    note=(
        "A node takes 1 GB in batches of 16 KB, acks=all, and is killed by SIGKILL. Then"
        " `millstream serve` again, to `ready`: every batch without a seal is read and its checksum"
        " verified. In one segment all of the 1 GB is such a tail; with segments of the default"
        " size all but the last two were sealed while it ran. `Not in the page cache`: the file"
        " was dropped from the page cache and is read from the disk. The limit imports the same"
        " modules, and computes the checksum of the same bytes."
    ),
    rows=(
        Row(
            name="start, unclean tail of 1 GB",
            unit="s",
            ours="tail",
            limit="bare",
            limit_name="same imports + crc32c",
            goal=at_most(2),
        ),
        Row(
            name="start, unclean tail of 1 GB, not in the page cache",
            unit="s",
            ours="cold",
            limit="bare",
            limit_name="same imports + crc32c, cached",
        ),
        Row(
            name="start, killed after 1 GB, segments of the default size",
            unit="s",
            ours="usual",
            limit="bare",
            limit_name="same imports + crc32c",
        ),
        Row(name="start, unclean tail of 1 GB, CPU", unit="s", ours="tail CPU"),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_quick=3,
    repetitions_full=5,
)
