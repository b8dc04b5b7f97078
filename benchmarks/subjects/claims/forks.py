"""Time to fork a stream of 100 MB, beside a copy of its bytes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale

from subjects.http.load import ask, connect
from subjects.kafka.client import answer_size, produce_frame, send_pipelined
from subjects.kafka.processes import ServerProcess
from subjects.log.common import KIB, MB, MIB, fresh_file, make_batch
from subjects.memory.processes import NodeProcess, running_node

BATCH_SIZE = MIB
SIZES = {"large": 256 * KIB, "1 KB": KIB, "100 B": 100}
SHARE = 10
"""Of records of 100 bytes only a tenth is forked, for each record takes the node a while."""


def _put(node: NodeProcess, stream: str, *headers: str) -> None:
    head = [f"PUT /v1/streams/{stream} HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 0", *headers]
    with connect(node.http) as connection:
        ask(connection, "\r\n".join([*head, "\r\n"]).encode())


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    size = scale.pick(smoke=2 * MB, quick=100 * MB, full=100 * MB)
    numbers = itertools.count()
    with running_node(folder / "data") as node:
        streams = {name: f"source-{number}" for number, name in enumerate(SIZES)}
        for name, value_size in SIZES.items():
            _put(node, streams[name], "Content-Type: application/octet-stream")
            batch = make_batch(BATCH_SIZE - 4 * KIB, value_size=value_size)
            frame = produce_frame(streams[name], batch, acks=-1)
            answer = answer_size(node.kafka, frame)
            count = size // len(batch) // (SHARE if name == "100 B" else 1)
            send_pipelined(node.kafka, frame, count, answer=answer, window=8)

        def bare() -> Figures:
            data = bytes(MB)
            with fresh_file(folder / "copy") as descriptor:
                began = time.perf_counter()
                for _ in range(size // MB):
                    os.write(descriptor, data)
                os.fdatasync(descriptor)
                return {"bare": time.perf_counter() - began}

        def ours(name: str) -> Figures:
            server = ServerProcess(node.pid, 0)
            used, began = server.cpu_seconds(), time.perf_counter()
            source = f"Stream-Forked-From: /v1/streams/{streams[name]}"
            _put(node, f"fork-{next(numbers)}", source)
            took = time.perf_counter() - began
            return {name: took, f"{name} CPU": server.cpu_seconds() - used}

        yield bare, *(partial(ours, name) for name in SIZES)


_row = partial(Row, unit="s", limit="bare", limit_name="write 100 MB + one fdatasync")

FORKS = Experiment(
    title="fork of a stream",
    note=(
        "A stream of 100 MB is forked whole, in records of 256 KB and of 1 KB; with records of 100"
        " bytes it is 10 MB, since every record is read. The limit writes 100 MB from memory"
        " and syncs them once."
    ),
    rows=(
        _row(name="fork of 100 MB, records of 256 KB", ours="large"),
        _row(name="fork of 100 MB, records of 1 KB", ours="1 KB"),
        Row(name="fork of 100 MB, records of 1 KB, server CPU", unit="s", ours="1 KB CPU"),
        Row(name="fork of 10 MB, records of 100 bytes", unit="s", ours="100 B"),
        Row(name="fork of 10 MB, records of 100 bytes, server CPU", unit="s", ours="100 B CPU"),
    ),
    arms=_arms,
)
