"""Appends over HTTP, in batches and one by one, beside a server that does nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least, ratio_at_least

from subjects.http.load import ask, connect, post, size_of
from subjects.http.processes import empty, load, node
from subjects.kafka.processes import ServerProcess

BATCH = 100
RECORD_SIZE = 1024
TOPIC = "bench"
CLIENTS = 2


def append_request(records: int, size: int) -> bytes:
    """Return a request that appends so many records, each with a value of `size` bytes of JSON."""
    value = "x" * (size - 2)
    body = json.dumps({"records": [{"value": value}] * records}).encode()
    return post(f"/v1/topics/{TOPIC}/records", body)


def answer_size(server: ServerProcess, request: bytes) -> int:
    """Make a request once; return how many bytes its answer has behind its head."""
    with connect(server.port) as connection:
        answer = ask(connection, request)
    return size_of(answer) - answer.index(b"\r\n\r\n") - 4


@contextmanager
def _batch_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=20, quick=1_000, full=4_000)
    with _arms(folder, append_request(BATCH, RECORD_SIZE), count, connections=4, unit=BATCH) as one:
        yield one


@contextmanager
def _single_arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=100, quick=4_000, full=20_000)
    with _arms(folder, append_request(1, 100), count, connections=32, unit=1) as one:
        yield one


@contextmanager
def _arms(
    folder: Path, request: bytes, count: int, *, connections: int, unit: int
) -> Iterator[Sequence[Arm]]:
    """Prepare a node and an empty server that get the same requests from the same clients."""
    file = folder / "request"
    file.write_bytes(request)
    with ExitStack() as stack:
        server = stack.enter_context(node(folder / "data"))
        limit = stack.enter_context(empty(answer_size(server, request)))

        def send(target: ServerProcess, name: str) -> Figures:
            share = count // CLIENTS
            client = ("post", target.port, file, share, connections // CLIENTS)
            took = load(target, [client] * CLIENTS)
            done = share * CLIENTS * unit
            requests = share * CLIENTS
            return {
                name: done / took.seconds,
                f"{name} CPU": done / took.cpu_seconds,
                f"{name} each": took.cpu_seconds / requests * 1000,
                f"{name} bytes": took.cpu_seconds / (requests * len(request)) * 1e9,
            }

        yield lambda: send(limit, "empty"), lambda: send(server, "ours")


APPENDS = Experiment(
    title="appends of 1 KB in batches",
    note=(
        f"{BATCH} records of 1 KB in each POST, as JSON, into a topic of class `fsync`, over four"
        " connections of two client processes, each with one request in flight; answered when they"
        " are on the disk. The empty server takes the same requests by the same listener, reads"
        " each body to its end and answers with as many bytes: no routing of ours, no JSON, no log."
        " With two cores, clients and server share them; records per CPU second are what the"
        " process could do with a core of its own."
    ),
    rows=(
        Row(
            name="appends of 1 KB, 100 in a request",
            unit="records/s",
            ours="ours",
            limit="empty",
            limit_name="empty server, same bodies",
            goal=at_least(100_000),
        ),
        Row(
            name="appends of 1 KB, 100 in a request, server CPU",
            unit="records per CPU second",
            ours="ours CPU",
            limit="empty CPU",
            limit_name="empty server, same bodies",
        ),
        Row(
            name="appends of 1 KB, 100 in a request, server CPU by request",
            unit="s per 1,000",
            ours="ours each",
            limit="empty each",
            limit_name="empty server, same bodies",
        ),
        Row(
            name="appends of 1 KB, 100 in a request, server CPU by size",
            unit="s/GB",
            ours="ours bytes",
            limit="empty bytes",
            limit_name="empty server, same bodies",
        ),
    ),
    arms=_batch_arms,
)

SINGLE = Experiment(
    title="one record in a request",
    note=(
        "One record of 100 bytes in each POST, into a topic of class `fsync`, over 32 connections"
        " of two client processes, each with one request in flight. The empty server takes the same"
        " POST by the same listener, and answers with as many bytes from a handler that does"
        " nothing."
    ),
    rows=(
        Row(
            name="one record in a request",
            unit="requests/s",
            ours="ours",
            limit="empty",
            limit_name="empty POST",
            goal=ratio_at_least(0.7),
        ),
        Row(
            name="one record in a request, server CPU",
            unit="requests per CPU second",
            ours="ours CPU",
            limit="empty CPU",
            limit_name="empty POST",
        ),
        Row(
            name="one record in a request, server CPU by request",
            unit="s per 1,000",
            ours="ours each",
            limit="empty each",
            limit_name="empty POST",
        ),
    ),
    arms=_single_arms,
)
