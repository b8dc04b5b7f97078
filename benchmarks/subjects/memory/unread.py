"""Memory for clients that send many requests and read no response."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale

from subjects.log.common import MB
from subjects.memory.hold import REQUESTS
from subjects.memory.processes import held, running_node


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    clients = scale.pick(smoke=5, quick=200, full=200)
    each = scale.pick(smoke=1_000, quick=10_000, full=10_000)
    numbers = itertools.count()

    def ours(kind: str) -> Figures:
        with running_node(folder / str(next(numbers))) as node:
            port = node.kafka if kind == "kafka" else node.http
            with held(kind, port, clients):
                before = node.resident_bytes
            with held(f"flood-{kind}", port, clients, each) as taken:
                node.settle()
                grown = node.peak_bytes - before
            return {
                kind: max(grown, 1) / MB,
                f"{kind} taken": max(taken, 1) / MB,
                f"{kind} sent": clients * each * len(REQUESTS[kind]) / MB,
            }

    yield lambda: ours("http"), lambda: ours("kafka")


_row = partial(Row, unit="MB", limit_name="all of their requests")

UNREAD = Experiment(
    title="clients that do not read",
    note=(
        "200 clients send 10,000 small requests each, as fast as they are taken, and read nothing:"
        " the peak memory of the node, less its memory with 200 idle"
        " connections. The limit is the size of all requests. Part of what the clients could send"
        " is in the kernel."
    ),
    rows=(
        _row(name="200 clients that do not read, HTTP", ours="http", limit="http sent"),
        _row(name="200 clients that do not read, Kafka", ours="kafka", limit="kafka sent"),
        Row(name="what they could send, HTTP", unit="MB", ours="http taken"),
        Row(name="what they could send, Kafka", unit="MB", ours="kafka taken"),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_quick=1,
    repetitions_full=5,
)
