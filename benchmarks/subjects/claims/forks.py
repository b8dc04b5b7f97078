"""How long it takes to fork a stream of 100 MB, beside a copy of the bytes."""

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
from subjects.log.common import KIB, MB, MIB, fresh_file, make_batch
from subjects.memory.processes import Doors, running_node

BATCH_SIZE = MIB
SMALL = 100
LARGE = 256 * KIB


def _put(doors: Doors, stream: str, *headers: str) -> None:
    head = [f"PUT /v1/streams/{stream} HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 0", *headers]
    with connect(doors.http) as connection:
        ask(connection, "\r\n".join([*head, "\r\n"]).encode())


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    size = scale.pick(smoke=2 * MB, quick=100 * MB, full=100 * MB)
    numbers = itertools.count()
    with running_node(folder / "data") as doors:
        for name, value_size in (("small", SMALL), ("large", LARGE)):
            _put(doors, name, "Content-Type: application/octet-stream")
            batch = make_batch(BATCH_SIZE - 4 * KIB, value_size=value_size)
            frame = produce_frame(name, batch, acks=-1)
            answer = answer_size(doors.kafka, frame)
            count = size // len(batch)
            send_pipelined(doors.kafka, frame, count, answer=answer, window=8)

        def bare() -> Figures:
            data = bytes(MB)
            with fresh_file(folder / "copy") as descriptor:
                began = time.perf_counter()
                for _ in range(size // MB):
                    os.write(descriptor, data)
                os.fdatasync(descriptor)
                return {"bare": time.perf_counter() - began}

        def ours(name: str) -> Figures:
            began = time.perf_counter()
            _put(doors, f"fork-{next(numbers)}", f"Stream-Forked-From: /v1/streams/{name}")
            return {name: time.perf_counter() - began}

        yield bare, partial(ours, "large"), partial(ours, "small")


_row = partial(Row, unit="s", limit="bare", limit_name="write + one fdatasync")

FORKS = Experiment(
    title="fork of a stream",
    note=(
        "A stream of 100 MB is forked whole, in records of 256 KB and in records of 100 bytes. The"
        " limit writes as many bytes from memory and syncs them once."
    ),
    rows=(
        _row(name="fork of 100 MB, large records", ours="large"),
        _row(name="fork of 100 MB, small records", ours="small"),
    ),
    arms=_arms,
)
