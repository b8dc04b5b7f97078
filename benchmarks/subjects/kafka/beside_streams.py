"""1 KB records in batches: a node beside Redis Streams and NATS JetStream.

Each server is driven the way that suits it best: many records in a request for us, pipelines for
the others. Their requests are made before, by a client that costs next to nothing. Ours are so too,
and, in rows of their own, made by the client that applications use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
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
    ratio_at_least,
)
from peers import nats, redis
from peers.lines import Pipe, connect, pump

from subjects.kafka.client import answer_size, produce_frame
from subjects.kafka.confluent import PARTITIONS, end_of, produce_for, topic
from subjects.kafka.processes import ServerProcess, node
from subjects.log.common import KIB, make_batch

SIZE = KIB
CONNECTIONS = 8
IN_A_PIECE = 125
"""Two pieces are in flight on each connection: 2,000 records in all."""
GB = 1e9
BATCH_SIZE = 1_000_000

REDIS_SYNCS = ("everysec", "always")
STREAM = "bench"


def _seconds(scale: Scale) -> float:
    return scale.pick(smoke=0.02, quick=0.5, full=3.0)


def _figures(name: str, records: int, seconds: float, cpu: float) -> Figures:
    return {name: records / seconds / 1e3, f"{name} CPU": cpu / (records * SIZE) * GB}


@contextmanager
def _ours(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    with node(folder / "data") as server:
        yield [
            partial(turn, server, each, _seconds(scale))
            for turn in (_our_turn, _our_ready_turn)
            for each in ("disk", "fsync")
        ]


def _our_turn(server: ServerProcess, durability: str, seconds: float) -> Figures:
    bootstrap = f"127.0.0.1:{server.port}"
    with topic(bootstrap, {"millstream.durability": durability}) as name:
        used = server.cpu_seconds()
        moved = produce_for(seconds, bootstrap, name, size=SIZE, batch_size=BATCH_SIZE, acks="all")
        cpu = server.cpu_seconds() - used
    return _figures(f"ours {durability}", moved.records, moved.seconds, cpu)


def _our_ready_turn(server: ServerProcess, durability: str, seconds: float) -> Figures:
    bootstrap = f"127.0.0.1:{server.port}"
    batch = make_batch(BATCH_SIZE, value_size=SIZE)
    records = int.from_bytes(batch[23:27]) + 1
    with topic(bootstrap, {"millstream.durability": durability}) as name, ExitStack() as stack:
        pipes = [
            _ready_pipe(stack, server, name, partition, batch) for partition in range(PARTITIONS)
        ]
        found = _pumped(server, f"ours {durability} ready", pipes, seconds)
        taken = sum(pipe.sent for pipe in pipes) + records * PARTITIONS
        assert end_of(bootstrap, name) == taken, "some batch was refused"
    return found


def _ready_pipe(
    stack: ExitStack, server: ServerProcess, name: str, partition: int, batch: bytes
) -> Pipe:
    """Return a connection that sends the same batch again and again; it was sent once already."""
    frame = produce_frame(name, batch, acks=-1, partition=partition)
    size = answer_size(server.port, frame)
    records = int.from_bytes(batch[23:27]) + 1
    received = 0

    def answers(data: bytes) -> int:
        nonlocal received
        received += len(data)
        whole, received = divmod(received, size)
        return whole * records

    return Pipe(stack.enter_context(connect(server.port)), frame, records, answers)


@contextmanager
def _redis_arms(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    yield [partial(_redis_turn, server, sync, _seconds(scale)) for sync in REDIS_SYNCS]


def _redis_turn(server: PeerServer, sync: str, seconds: float) -> Figures:
    redis.ask(server.port, "CONFIG", "SET", "appendfsync", sync)
    value = os.urandom(SIZE)
    with ExitStack() as stack:
        pipes = [
            Pipe(
                stack.enter_context(connect(server.port)),
                redis.command("XADD", f"bench-{number}", "*", "v", value) * IN_A_PIECE,
                IN_A_PIECE,
                redis.ids,
            )
            for number in range(CONNECTIONS)
        ]
        found = _pumped(server, f"redis {sync}", pipes, seconds)
    redis.ask(server.port, "FLUSHALL")  # They are in memory too.
    return found


def _nats_arms(
    name: str,
) -> Callable[[Scale, Path, PeerServer], AbstractContextManager[Sequence[Arm]]]:
    @contextmanager
    def arms(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
        yield (partial(_nats_turn, server, name, _seconds(scale)),)

    return arms


def _nats_turn(server: PeerServer, name: str, seconds: float) -> Figures:
    stream = {"name": STREAM, "subjects": [f"{STREAM}.>"], "storage": "file"}
    nats.ask(server.port, f"$JS.API.STREAM.CREATE.{STREAM}", stream)
    value = os.urandom(SIZE)
    with ExitStack() as stack:
        pipes = [
            Pipe(
                stack.enter_context(nats.open_connection(server.port, f"_INBOX.{number}")),
                nats.publication(f"{STREAM}.{number}", value, f"_INBOX.{number}") * IN_A_PIECE,
                IN_A_PIECE,
                nats_answers,
                edge=len(nats.ANSWER) - 1,
            )
            for number in range(CONNECTIONS)
        ]
        found = _pumped(server, name, pipes, seconds)
    nats.ask(server.port, f"$JS.API.STREAM.DELETE.{STREAM}", {})
    return found


def nats_answers(data: bytes) -> int:
    if b'"error"' in data:
        raise RuntimeError(f"JetStream answers {data[:200]!r}")
    return data.count(nats.ANSWER)


def _pumped(
    server: ServerProcess | PeerServer, name: str, pipes: Sequence[Pipe], seconds: float
) -> Figures:
    used = server.cpu_seconds()
    pumped = pump(pipes, seconds)
    cpu = server.cpu_seconds() - used
    return _figures(name, pumped.requests, pumped.seconds, cpu)


def _rows(durability: str, *against: tuple[str, str, str]) -> Iterator[Row]:
    """Yield rows for rate and CPU against peers, each given with its name and figure."""
    for client, suffix in (("confluent-kafka", ""), ("ready-made batches", " ready")):
        name = f"1 KB records, batched, {durability}, {client}"
        ours = f"ours {durability}{suffix}"
        yield Row(
            name=name,
            unit="thousand records/s",
            ours=ours,
            peers=tuple(
                Against(peer=peer, name=title, figure=figure, goal=ratio_at_least(3))
                for peer, title, figure in against
            ),
        )
        yield Row(
            name=f"{name}, server CPU",
            unit="s/GB",
            ours=f"{ours} CPU",
            peers=tuple(
                Against(peer=peer, name=title, figure=f"{figure} CPU")
                for peer, title, figure in against
            ),
        )


RECORDS_BESIDE_PEERS = Experiment(
    title="1 KB records, beside Redis and NATS",
    note=(
        "Ours twice, each with batches of 1 MB to four partitions and acks=all: by four producers"
        " of confluent-kafka, which make their batches within the time that is measured and on the"
        " same cores; and ready-made, by a client that only counts answers. Redis: XADD, pipelined."
        " NATS: publications to JetStream, each acknowledged; both with 8 connections and 2,000"
        " records in flight, and ready-made too. What an acknowledgement means: class `disk`, the"
        " kernel has it; Redis everysec, it is in memory, and on the disk within about two seconds;"
        " NATS by default, the kernel has it, synced every two minutes. Class `fsync`, Redis always"
        " and NATS sync_interval=always: it was synced."
    ),
    rows=(
        *_rows(
            "disk",
            ("redis", "Redis, everysec", "redis everysec"),
            ("nats", "NATS, default", "nats"),
        ),
        *_rows(
            "fsync",
            ("redis", "Redis, always", "redis always"),
            ("nats sync_interval=always", "NATS, sync_interval=always", "nats always"),
        ),
    ),
    arms=_ours,
    peers=(
        PeerArms(peer="redis", arms=_redis_arms),
        PeerArms(peer="nats", arms=_nats_arms("nats")),
        PeerArms(peer="nats sync_interval=always", arms=_nats_arms("nats always")),
    ),
)
