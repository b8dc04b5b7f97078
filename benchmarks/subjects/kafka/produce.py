"""Production: server cost of a byte and of a request, beside the lowest possible cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import (
    Arm,
    Experiment,
    Figures,
    Row,
    Scale,
    ratio_at_least,
    ratio_at_most,
)

from subjects.kafka.client import (
    LONE_SIZE,
    answer_size,
    connect,
    delete_topic,
    make_topic,
    produce_frame,
    send_in_turns,
    send_pipelined,
)
from subjects.kafka.processes import ServerProcess, limit, node
from subjects.log.common import KIB, MIB, make_batch

GB = 1_000_000_000

ALL = -1
LEADER = 1


def _bytes_arms(size: int) -> Callable[[Scale, Path], object]:
    """Prepare the arms that compare bytes for batches of `size`."""

    @contextmanager
    def arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
        batch = make_batch(size)
        total = scale.pick(smoke=4 * MIB, quick=512 * MIB, full=1024 * MIB)
        count = max(4, total // len(batch))
        window = max(4, min(64, 4 * MIB // len(batch)))
        with ExitStack() as stack:
            server = stack.enter_context(node(folder / "data"))
            floor = stack.enter_context(limit("floor", str(folder / "floor")))

            def bare() -> Figures:
                frame = produce_frame("x", batch, acks=LEADER)
                used = floor.cpu_seconds()
                with connect(floor.port) as connection:
                    for _ in range(count):
                        connection.sendall(frame)
                    connection.shutdown(1)
                    connection.recv(1)
                return {"floor": (floor.cpu_seconds() - used) / (count * len(frame)) * GB}

            def ours(acks: int, name: str) -> Figures:
                topic = make_topic(server.port)
                frame = produce_frame(topic, batch, acks=acks)
                answer = answer_size(server.port, frame)
                used, began = server.cpu_seconds(), time.perf_counter()
                send_pipelined(server.port, frame, count, answer=answer, window=window)
                elapsed = time.perf_counter() - began
                cpu = server.cpu_seconds() - used
                delete_topic(server.port, topic)
                size_all = count * len(frame)
                return {
                    name: cpu / size_all * GB,
                    f"{name} each": cpu / count * 1000,
                    f"{name} rate": size_all / elapsed / 1e6,
                }

            yield (
                bare,
                lambda: ours(LEADER, "acks=1"),
                lambda: ours(ALL, "acks=all"),
            )

    return arms


def _bytes_experiment(size: int, name: str, bound: float) -> Experiment:
    return Experiment(
        title=f"produce {name} batches",
        note=(
            f"Batches of {name}, pipelined on one connection, into a topic of class `fsync`. CPU is"
            " that of the server's process, all threads; the floor receives the same bytes from"
            " the same client and writes them to a file, in a blocking loop. The kernel's own"
            " threads, which write back and sync, are counted for neither."
        ),
        rows=(
            Row(
                name=f"produce {name} batches, acks=1, server CPU",
                unit="s/GB",
                ours="acks=1",
                limit="floor",
                limit_name="recv + write",
                goal=ratio_at_most(bound),
            ),
            Row(
                name=f"produce {name} batches, acks=all, server CPU",
                unit="s/GB",
                ours="acks=all",
                limit="floor",
                limit_name="recv + write",
            ),
            Row(
                name=f"produce {name} batches, acks=1, server CPU by request",
                unit="s per 1,000",
                ours="acks=1 each",
            ),
            Row(
                name=f"produce {name} batches, acks=all, server CPU by request",
                unit="s per 1,000",
                ours="acks=all each",
            ),
            Row(name=f"produce {name} batches, acks=1", unit="MB/s", ours="acks=1 rate"),
            Row(name=f"produce {name} batches, acks=all", unit="MB/s", ours="acks=all rate"),
        ),
        arms=_bytes_arms(size),  # type: ignore[arg-type]
    )


PRODUCE_1_MB = _bytes_experiment(MIB, "1 MB", 1.5)
PRODUCE_16_KB = _bytes_experiment(16 * KIB, "16 KB", 3.0)


@contextmanager
def _request_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=200, quick=20_000, full=50_000)
    connections = 32
    batch = make_batch(LONE_SIZE, value_size=100)
    with ExitStack() as stack:
        server = stack.enter_context(node(folder / "data"))
        topic = make_topic(server.port)
        frame = produce_frame(topic, batch, acks=LEADER)
        answer = answer_size(server.port, frame)
        echo = stack.enter_context(limit("echo", str(answer)))

        def requests(target: ServerProcess, name: str) -> Figures:
            used, began = target.cpu_seconds(), time.perf_counter()
            send_in_turns(target.port, frame, count, answer=answer, connections=connections)
            elapsed = time.perf_counter() - began
            cpu = target.cpu_seconds() - used
            return {
                name: count / cpu / 1000,
                f"{name} each": cpu / count * 1000,
                f"{name} rate": count / elapsed / 1000,
            }

        yield lambda: requests(echo, "echo"), lambda: requests(server, "ours")


REQUESTS = Experiment(
    title="small requests",
    note=(
        "Produce requests of one 100-byte record, acks=1, from 32 connections with one request in"
        " flight each. Requests per second of the server's CPU, which is what a process can do when"
        " nothing else holds it up; an echo server on the same loop cuts the same frames and"
        " answers with as many bytes. The rate as seen is bounded by the client, which is Python"
        " too, and is given for information."
    ),
    rows=(
        Row(
            name="small requests",
            unit="thousand per CPU second",
            ours="ours",
            limit="echo",
            limit_name="echo on uvloop",
            goal=ratio_at_least(0.5),
        ),
        Row(
            name="small requests, server CPU",
            unit="s per 1,000",
            ours="ours each",
            limit="echo each",
            limit_name="echo on uvloop",
        ),
        Row(
            name="small requests, as seen by the client",
            unit="thousand/s",
            ours="ours rate",
            limit="echo rate",
            limit_name="echo on uvloop",
        ),
    ),
    arms=_request_arms,
)


@contextmanager
def _durable_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batch = make_batch(MIB)
    count = scale.pick(smoke=4, quick=128, full=256)
    producers = 4
    with node(folder / "data") as server:

        def produce(acks: int, name: str) -> Figures:
            topic = make_topic(server.port, partitions=producers)
            frames = [
                produce_frame(topic, batch, acks=acks, partition=number)
                for number in range(producers)
            ]
            answers = [answer_size(server.port, frame) for frame in frames]
            threads = [
                threading.Thread(
                    target=send_pipelined,
                    args=(server.port, frame, count),
                    kwargs={"answer": answer, "window": 5},
                )
                for frame, answer in zip(frames, answers, strict=True)
            ]
            used, began = server.cpu_seconds(), time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            elapsed, cpu = time.perf_counter() - began, server.cpu_seconds() - used
            delete_topic(server.port, topic)
            size = producers * count * len(batch)
            return {name: size / elapsed / 1e6, f"{name} CPU": cpu / size * GB}

        yield lambda: produce(LEADER, "acks=1"), lambda: produce(ALL, "acks=all")


DURABLE = Experiment(
    title="acks=all beside acks=1",
    note=(
        "Four producers, each with batches of 1 MB to a partition of its own and five in flight,"
        " into a topic of class `fsync`: acks=1 is answered when the kernel has the batch, acks=all"
        " when the disk has it."
    ),
    rows=(
        Row(
            name="produce 1 MB batches, 4 producers, acks=all",
            unit="MB/s",
            ours="acks=all",
            limit="acks=1",
            limit_name="acks=1",
            goal=ratio_at_least(0.75),
        ),
        Row(
            name="produce 1 MB batches, 4 producers, acks=all, server CPU",
            unit="s/GB",
            ours="acks=all CPU",
            limit="acks=1 CPU",
            limit_name="acks=1",
        ),
    ),
    arms=_durable_arms,
)
