"""Limits of the machine, on which all ratios depend, so that runs can be compared."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from crc32c import crc32c
from measure.experiment import Arm, Experiment, Figures, Row, Scale

from subjects.kafka.client import LONE_SIZE, pour, produce_frame, send_one_by_one
from subjects.kafka.processes import limit
from subjects.log.common import KIB, MB, MIB, fresh_file, make_batch

TURN = 8 * MIB
SYNCED = 4 * MIB
ANSWER_SIZE = 69
"""What a node answers to a produce of one batch."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    size = scale.pick(smoke=16 * MIB, quick=512 * MIB, full=1024 * MIB)
    count = scale.pick(smoke=20, quick=500, full=2_000)
    data = bytes(MIB)
    frame = produce_frame("x", make_batch(LONE_SIZE, value_size=100), acks=1)
    with ExitStack() as stack:
        source = stack.enter_context(limit("pour"))
        echo = stack.enter_context(limit("echo", str(ANSWER_SIZE)))

        def memory() -> Figures:
            target, view = bytearray(MIB), memoryview(data)
            started = time.perf_counter()
            for _ in range(size // MIB):
                target[:] = view
            copied = time.perf_counter()
            for _ in range(size // MIB):
                crc32c(data)
            summed = time.perf_counter()
            return {
                "copy": size / (copied - started) / MB,
                "sum": size / (summed - copied) / MB,
            }

        def network() -> Figures:
            started = time.perf_counter()
            pour(source.port, size, [TURN] * (size // TURN))
            poured = size / (time.perf_counter() - started) / MB
            trips = send_one_by_one(echo.port, frame, count)
            return {"tcp": poured, "trip": statistics.median(trips) * 1e3}

        def disk() -> Figures:
            return {
                "write": _write(folder, data, size // MIB, is_synced=False),
                "synced": _write(folder, bytes(SYNCED), size // SYNCED, is_synced=True),
                "sync": _sync_ms(folder, bytes(KIB), count),
            }

        yield memory, network, disk


def _write(folder: Path, data: bytes, count: int, *, is_synced: bool) -> float:
    """Return megabytes per second."""
    with fresh_file(folder / "file") as descriptor:
        started = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, data)
            if is_synced:
                os.fdatasync(descriptor)
        return count * len(data) / (time.perf_counter() - started) / MB


def _sync_ms(folder: Path, data: bytes, count: int) -> float:
    """Return how long a small write with its sync takes, at the median."""
    took = []
    with fresh_file(folder / "file") as descriptor:
        for _ in range(count):
            started = time.perf_counter()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - started)
    return statistics.median(took) * 1e3


MACHINE = Experiment(
    title="limits of the machine",
    note=(
        "What bare Python reaches here, one thread each: copying a megabyte in memory and its"
        " CRC-32C, both from the processor's cache; bytes over a TCP connection of loopback; a"
        " round trip of a small request to an echo server on uvloop; writes of 1 MB to the page"
        " cache, of 4 MB with fdatasync, and of 1 KB with fdatasync. Other subjects measure the"
        " limits of their own rows again, in turns with ours."
    ),
    rows=(
        Row(name="copy in memory", unit="MB/s", ours="copy"),
        Row(name="CRC-32C", unit="MB/s", ours="sum"),
        Row(name="loopback TCP", unit="MB/s", ours="tcp"),
        Row(name="echo, p50", unit="ms", ours="trip"),
        Row(name="page-cache write", unit="MB/s", ours="write"),
        Row(name="write + fdatasync, 4 MB", unit="MB/s", ours="synced"),
        Row(name="write + fdatasync, 1 KB, p50", unit="ms", ours="sync"),
    ),
    arms=_arms,
)

EXPERIMENTS = (MACHINE,)
