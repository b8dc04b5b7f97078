"""Work queues over HTTP: claims and acks in batches, beside a server that does nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from measure.experiment import (
    Against,
    Arm,
    Experiment,
    Figures,
    PeerArms,
    PeerServer,
    Row,
    Scale,
    at_least,
)
from peers import redis
from peers.lines import Pipe, pipelined
from peers.lines import connect as connect_lines

from subjects.http.load import ask, connect, post
from subjects.http.processes import Load, empty, load, node
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


def _jobs(scale: Scale) -> int:
    return scale.pick(smoke=2_000, quick=80_000, full=240_000)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    jobs = _jobs(scale)
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
        # An ack is as large as the response to a claim; its own response is tiny.
        limit = stack.enter_context(empty(len(answer) // 2))
        file = folder / "request"
        file.write_bytes(post("/claim", bytes(len(answer) // 4)))

        def bare() -> Figures:
            client = ("post", limit.port, file, 2 * share // BATCH, 1)
            took = load(limit, [client] * CLIENTS)
            done = share * CLIENTS
            return _figures("empty", took, done)

        def ours() -> Figures:
            queue = f"work-{next(numbers)}"
            _put(server, queue)
            _fill(server, queue, jobs)
            took = load(server, [("work", server.port, queue, share, BATCH)] * CLIENTS)
            done = share * CLIENTS
            return _figures("ours", took, done)

        yield bare, ours


@contextmanager
def _redis_arms(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    jobs = _jobs(scale)
    share = jobs // CLIENTS // BATCH * BATCH
    numbers = count()

    def turn() -> Figures:
        stream = f"work-{next(numbers)}"
        _fill_redis(server, stream, jobs)
        redis.ask(server.port, "XGROUP", "CREATE", stream, stream, "0")
        redis.ask(server.port, "CONFIG", "SET", "appendfsync", "always")
        took = load(server, [("group", server.port, stream, share, BATCH)] * CLIENTS)
        redis.ask(server.port, "FLUSHALL")
        return _figures("redis", took, share * CLIENTS)

    yield (turn,)


def _fill_redis(server: PeerServer, stream: str, jobs: int) -> None:
    redis.ask(server.port, "CONFIG", "SET", "appendfsync", "everysec")
    piece = redis.command("XADD", stream, "*", "v", "x" * JOB_SIZE) * FILL
    with connect_lines(server.port) as connection:
        pipelined(Pipe(connection, piece, FILL, redis.ids), jobs // FILL)


def _figures(name: str, took: Load, done: int) -> Figures:
    return {
        name: done / took.seconds,
        f"{name} CPU": done / took.cpu_seconds,
        f"{name} each": took.cpu_seconds / (2 * done / BATCH) * 1000,
        f"{name} bytes": took.cpu_seconds / (done * JOB_SIZE) * 1e9,
    }


def _against(figure: str) -> tuple[Against, ...]:
    return (Against(peer="redis", name="Redis group, always", figure=figure),)


PAIRS = Experiment(
    title="claim and ack in batches",
    note=(
        f"Four client processes claim {BATCH} jobs of {JOB_SIZE} bytes at a time and ack them, each"
        " with one request in flight, in a queue whose topic is of class `fsync`: that a job was"
        " handed out, and that it is done, are both on the disk before they are answered. The empty"
        " server takes two POSTs for each batch by the same listener, and answers with about as"
        " many bytes. Redis has a stream with a consumer group, appendfsync always, and a client as"
        " lean: XREADGROUP of 100 entries, then XACK of all of them. It promises less: an entry is"
        " with its consumer until another asks for it by name, and no lease ends by itself."
    ),
    rows=(
        Row(
            name="claim and ack, 100 in a request",
            unit="pairs/s",
            ours="ours",
            limit="empty",
            limit_name="two empty POSTs",
            goal=at_least(30_000),
            peers=_against("redis"),
        ),
        Row(
            name="claim and ack, 100 in a request, server CPU",
            unit="pairs per CPU second",
            ours="ours CPU",
            limit="empty CPU",
            limit_name="two empty POSTs",
            peers=_against("redis CPU"),
        ),
        Row(
            name="claim and ack, 100 in a request, server CPU by request",
            unit="s per 1,000",
            ours="ours each",
            limit="empty each",
            limit_name="empty POST",
            peers=_against("redis each"),
        ),
        Row(
            name="claim and ack, 100 in a request, server CPU by size of the jobs",
            unit="s/GB",
            ours="ours bytes",
            limit="empty bytes",
            limit_name="two empty POSTs",
            peers=_against("redis bytes"),
        ),
    ),
    arms=_arms,
    peers=(PeerArms(peer="redis", arms=_redis_arms),),
)

EXPERIMENTS = (PAIRS,)
