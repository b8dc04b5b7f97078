"""Consumption, and the latency of a lone durable record."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_least, ratio_at_most

from subjects.kafka.client import (
    LONE_SIZE,
    answer_size,
    fetch_all,
    make_topic,
    pour,
    produce_frame,
    send_one_by_one,
    send_pipelined,
)
from subjects.kafka.processes import limit, node
from subjects.log.common import MIB, make_batch

FETCH_SIZE = 8 * MIB


@contextmanager
def _consume_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(MIB)
    count = scale.pick(smoke=8, quick=600, full=1000)
    with ExitStack() as stack:
        server = stack.enter_context(node(folder / "data"))
        source = stack.enter_context(limit("pour"))
        topic = make_topic(server.port)
        frame = produce_frame(topic, batch, acks=-1)
        answer = answer_size(server.port, frame)
        send_pipelined(server.port, frame, count, answer=answer, window=8)
        (delta,) = (int.from_bytes(batch[23:27]),)
        records = (count + 1) * (delta + 1)
        total = (count + 1) * len(batch)

        def ours() -> Figures:
            used, began = server.cpu_seconds(), time.perf_counter()
            came = fetch_all(server.port, topic, records=records, size_max=FETCH_SIZE)
            elapsed = time.perf_counter() - began
            cpu = server.cpu_seconds() - used
            return {"ours": came / elapsed / 1e6, "ours cpu": cpu / came * 1e9}

        def bare() -> Figures:
            turns = [FETCH_SIZE] * (total // FETCH_SIZE)
            used, began = source.cpu_seconds(), time.perf_counter()
            pour(source.port, total, turns)
            elapsed = time.perf_counter() - began
            cpu = source.cpu_seconds() - used
            came = sum(turns)
            return {"tcp": came / elapsed / 1e6, "tcp cpu": cpu / max(came, 1) * 1e9}

        fetch_all(server.port, topic, records=records, size_max=FETCH_SIZE)
        yield bare, ours


CONSUME = Experiment(
    title="consume",
    note=(
        "A topic of 1 MB batches that is in the page cache is read from its start with fetches of"
        " 8 MB, one in flight; checksums are verified by the node. The limit sends as many bytes"
        " from memory, 8 MB for each request."
    ),
    rows=(
        Row(
            name="consume, cached",
            unit="MB/s",
            ours="ours",
            limit="tcp",
            limit_name="loopback TCP",
            goal=ratio_at_least(0.6),
        ),
        Row(
            name="consume, cached, server CPU",
            unit="s/GB",
            ours="ours cpu",
            limit="tcp cpu",
            limit_name="loopback TCP",
        ),
    ),
    arms=_consume_arms,
)


@contextmanager
def _lone_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=20, quick=500, full=2000)
    batch = make_batch(LONE_SIZE, value_size=100)
    with ExitStack() as stack:
        server = stack.enter_context(node(folder / "data"))
        topic = make_topic(server.port)
        durable = produce_frame(topic, batch, acks=-1)
        quick = produce_frame(topic, batch, acks=1)
        answer = answer_size(server.port, durable)
        echo = stack.enter_context(limit("echo", str(answer)))
        path = folder / "bare"

        def bare() -> Figures:
            trips = send_one_by_one(echo.port, durable, count)
            syncs = _write_and_sync(path, batch, count)
            return {"bare": (statistics.median(trips) + statistics.median(syncs)) * 1e3}

        def ours() -> Figures:
            took = send_one_by_one(server.port, durable, count)
            return {"ours": statistics.median(took) * 1e3}

        def early() -> Figures:
            took = send_one_by_one(server.port, quick, count)
            return {"acks=1": statistics.median(took) * 1e3}

        yield bare, ours, early


def _write_and_sync(path: Path, batch: bytes, count: int) -> list[float]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 16 * MIB)
    os.fsync(descriptor)
    took = []
    for _ in range(count):
        started = time.perf_counter()
        os.write(descriptor, batch)
        os.fdatasync(descriptor)
        took.append(time.perf_counter() - started)
    os.close(descriptor)
    return took


LONE = Experiment(
    title="lone durable record",
    note=(
        "One record of 100 bytes at a time, acks=all, into a topic of class `fsync`: the median."
        " The limit is the median of a write with its fdatasync, plus that of a round trip to an"
        " echo server."
    ),
    rows=(
        Row(
            name="lone record, acks=all, p50",
            unit="ms",
            ours="ours",
            limit="bare",
            limit_name="write + fdatasync + round trip",
            goal=ratio_at_most(2.0),
        ),
        Row(name="lone record, acks=1, p50", unit="ms", ours="acks=1"),
    ),
    arms=_lone_arms,
)
