"""Memory of an idle connection: to the Kafka server, over HTTP, and of a watcher."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from subjects.http.load import ask, connect, post
from subjects.kafka.processes import limit
from subjects.memory.hold import TOPIC
from subjects.memory.processes import allowed_connections, held, running_node

KB = 1_000
CONNECTIONS_WANTED = 10_000

HTTP_SHARE = 0.4
"""Of its descriptors, a node gives so many to HTTP."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    wanted = scale.pick(smoke=20, quick=CONNECTIONS_WANTED, full=CONNECTIONS_WANTED)
    counts = {
        kind: allowed_connections(wanted, share)
        for kind, share in (("kafka", 1.0), ("http", HTTP_SHARE), ("sse", HTTP_SHARE))
    }
    numbers = itertools.count()

    def bare() -> Figures:
        with limit("idle") as server:
            with held("echo", server.port, 1):
                before = server.resident_bytes()
            with held("echo", server.port, counts["kafka"]) as connections:
                grown = server.resident_bytes() - before
            return {"bare": max(grown, 1) / connections / KB}

    def ours(kind: str) -> Figures:
        # A node of its own for each, since memory that was used once stays.
        with running_node(folder / str(next(numbers))) as node:
            with connect(node.http) as connection:
                ask(connection, post(f"/v1/topics/{TOPIC}/records", b'{"records":[{"value":1}]}'))
            port = node.kafka if kind == "kafka" else node.http
            with held(kind, port, 1):
                before = node.resident_bytes
            with held(kind, port, counts[kind]) as connections:
                node.settle()
                grown = node.resident_bytes - before
            return {kind: max(grown, 1) / connections / KB, f"{kind} count": connections}

    yield bare, lambda: ours("kafka"), lambda: ours("http"), lambda: ours("sse")


_row = partial(Row, unit="kB", limit="bare", limit_name="bare protocol on uvloop", goal=at_most(30))

CONNECTIONS = Experiment(
    title="idle connections",
    note=(
        "What resident memory grows by with 10,000 connections that wait, divided by their number:"
        " Kafka connections that made one request, kept-alive connections over HTTP that made one,"
        " and SSE watchers of a topic in which nothing happens. The clients are another process."
        " A node for each, in which one such connection was open before. What the kernel keeps for"
        " a socket is not in it. Where a process may not have 25,250 descriptors there are fewer"
        " connections: see their number. The limit is a protocol of asyncio on uvloop that sends"
        " back what it receives."
    ),
    rows=(
        _row(name="idle Kafka connection", ours="kafka"),
        _row(name="idle HTTP connection", ours="http"),
        _row(name="idle SSE watcher", ours="sse"),
        Row(name="idle Kafka connections: how many", unit="", ours="kafka count"),
        Row(name="idle HTTP connections, and watchers: how many", unit="", ours="http count"),
    ),
    arms=_arms,
    repetitions_quick=1,
    repetitions_full=5,
)
