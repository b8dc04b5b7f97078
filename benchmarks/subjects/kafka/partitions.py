"""A thousand partitions at once through the Kafka server, all of class `fsync`."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from subjects.kafka.client import answer_size, connect, make_topic, produce_frame
from subjects.kafka.processes import node
from subjects.log.common import make_batch, quantile

RECORD_SIZE = 200
CONNECTIONS = 32
SYNC_THREADS = 4
"""As many as a node has."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=10, quick=1_000, full=1_000)
    rounds = scale.pick(smoke=2, quick=5, full=20)
    period = scale.pick(smoke=0.1, quick=1.0, full=1.0)
    batch = make_batch(RECORD_SIZE)
    with node(folder / "data") as server:
        topic = make_topic(server.port, partitions=count)
        frames = [produce_frame(topic, batch, acks=-1, partition=n) for n in range(count)]
        sizes = [answer_size(server.port, frame) for frame in frames]  # Creates the files.
        answer = max(sizes)
        assert min(sizes) == answer, "a response of another size cannot be identified"

        def bare() -> Figures:
            return _figures("bare", _write_paced(folder, batch, count * rounds, period / count))

        def ours() -> Figures:
            used = server.cpu_seconds()
            took = _send_paced(server.port, frames * rounds, period / count, answer)
            cpu = server.cpu_seconds() - used
            return _figures("ours", took) | {"CPU": cpu / len(took) * 1000}

        yield bare, ours


def _figures(name: str, took: Sequence[float]) -> Figures:
    return {
        f"{name} p50": quantile(took, 0.5) * 1e3,
        f"{name} p99": quantile(took, 0.99) * 1e3,
        f"{name} max": max(took) * 1e3,
    }


def _send_paced(port: int, frames: Sequence[bytes], pause: float, answer: int) -> list[float]:
    """Send each frame when its time has come, whether or not those before are answered.

    Returns how long each took, from when it was due: a client that is late itself is counted too.
    """
    sockets = [connect(port) for _ in range(CONNECTIONS)]
    waiting: dict[socket.socket, deque[float]] = {one: deque() for one in sockets}
    received = dict.fromkeys(sockets, 0)
    took: list[float] = []
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
        began = time.perf_counter()
        sent = 0
        while len(took) < len(frames):
            now = time.perf_counter()
            while sent < len(frames) and (due := began + sent * pause) <= now:
                one = sockets[sent % CONNECTIONS]
                waiting[one].append(due)
                one.sendall(frames[sent])
                sent += 1
            patience = began + sent * pause - now if sent < len(frames) else None
            for key, _ in selector.select(patience):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                received[one] += len(one.recv(65_536))
                now = time.perf_counter()
                while received[one] >= answer:
                    received[one] -= answer
                    took.append(now - waiting[one].popleft())
    for one in sockets:
        one.close()
    return took


def _write_paced(folder: Path, batch: bytes, count: int, pause: float) -> list[float]:
    """Write to a thousand files, each write synced by one of a few threads, at the same pace."""
    files = [
        os.open(folder / f"bare-{n}", os.O_RDWR | os.O_CREAT, 0o600)
        for n in range(min(count, 1_000))
    ]
    took: list[float] = []
    lock = threading.Lock()

    def write(descriptor: int, due: float) -> None:
        os.write(descriptor, batch)
        os.fdatasync(descriptor)
        with lock:
            took.append(time.perf_counter() - due)

    with ThreadPoolExecutor(SYNC_THREADS) as threads:
        began = time.perf_counter()
        for number in range(count):
            due = began + number * pause
            time.sleep(max(0.0, due - time.perf_counter()))
            threads.submit(write, files[number % len(files)], due)
    for descriptor in files:
        os.close(descriptor)
    return took


_row = partial(Row, unit="ms", limit_name="write + fdatasync, 4 threads")

PARTITIONS = Experiment(
    title="1,000 partitions",
    note=(
        "One record of 200 bytes each second to each of 1,000 partitions of class `fsync`,"
        " acks=all, evenly spread over the second, from 32 connections. A record is sent when it is"
        " due, whether or not those before are answered, and its time counts from then. The limit"
        " writes as much to 1,000 files at the same pace, and syncs each with four threads."
    ),
    rows=(
        _row(
            name="1,000 partitions, 1 record/s each, acks=all, p99",
            ours="ours p99",
            limit="bare p99",
            goal=at_most(50),
        ),
        _row(
            name="1,000 partitions, 1 record/s each, acks=all, p50",
            ours="ours p50",
            limit="bare p50",
        ),
        _row(
            name="1,000 partitions, 1 record/s each, acks=all, slowest",
            ours="ours max",
            limit="bare max",
        ),
        Row(
            name="1,000 partitions, 1 record/s each, acks=all, server CPU",
            unit="s per 1,000",
            ours="CPU",
        ),
    ),
    arms=_arms,
    repetitions_full=5,
)
