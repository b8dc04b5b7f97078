"""Work queues over HTTP: claiming and acking in batches, beside a server that does nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least

from subjects.http.load import ask, connect, post
from subjects.http.processes import empty, load, node
from subjects.kafka.processes import ServerProcess

BATCH = 100
CLIENTS = 4
JOB_SIZE = 100
FILL = 1_000


def _put(server: ServerProcess, queue: str) -> None:
    request = post(f"/v1/queues/{queue}", b"{}").replace(b"POST", b"PUT", 1)
    with connect(server.port) as connection:
        ask(connection, request)


def _fill(server: ServerProcess, queue: str, jobs: int) -> None:
    value = {"value": "x" * (JOB_SIZE - 2)}
    request = post(f"/v1/topics/{queue}/records", json.dumps({"records": [value] * FILL}).encode())
    with connect(server.port) as connection:
        for _ in range(jobs // FILL):
            ask(connection, request)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    jobs = scale.pick(smoke=2_000, quick=80_000, full=240_000)
    numbers = count()
    share = jobs // CLIENTS // BATCH * BATCH
    with ExitStack() as stack:
        server = stack.enter_context(node(folder / "data"))
        queue = "sizes"
        _put(server, queue)
        _fill(server, queue, FILL)
        claim = post(f"/v1/queues/{queue}/claim", b'{"max":%d,"lease_ms":600000}' % BATCH)
        with connect(server.port) as connection:
            answer = ask(connection, claim)
        # An ack goes up as a claim comes down; what it is answered is next to nothing.
        limit = stack.enter_context(empty(len(answer) // 2))
        file = folder / "request"
        file.write_bytes(post("/claim", bytes(len(answer) // 4)))

        def bare() -> Figures:
            client = ("post", limit.port, file, 2 * share // BATCH, 1)
            took = load(limit, [client] * CLIENTS)
            done = share * CLIENTS
            return {"empty": done / took.seconds, "empty CPU": done / took.cpu_seconds}

        def ours() -> Figures:
            queue = f"work-{next(numbers)}"
            _put(server, queue)
            _fill(server, queue, jobs)
            took = load(server, [("work", server.port, queue, share, BATCH)] * CLIENTS)
            done = share * CLIENTS
            return {"ours": done / took.seconds, "ours CPU": done / took.cpu_seconds}

        yield bare, ours


PAIRS = Experiment(
    title="claim and ack in batches",
    note=(
        f"Four client processes claim {BATCH} jobs of {JOB_SIZE} bytes at a time and ack them, each"
        " with one request in flight, in a queue whose topic is of class `fsync`: that a job was"
        " handed out, and that it is done, are both on the disk before they are answered. The empty"
        " server takes two POSTs for each batch by the same listener, and answers with about as"
        " many bytes."
    ),
    rows=(
        Row(
            name="claim and ack, 100 in a request",
            unit="pairs/s",
            ours="ours",
            limit="empty",
            limit_name="two empty POSTs",
            goal=at_least(30_000),
        ),
        Row(
            name="claim and ack, 100 in a request, server CPU",
            unit="pairs per CPU second",
            ours="ours CPU",
            limit="empty CPU",
            limit_name="two empty POSTs",
        ),
    ),
    arms=_arms,
)

EXPERIMENTS = (PAIRS,)
