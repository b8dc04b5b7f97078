"""A node and Apache Kafka under the same load, from the same client with the same settings."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
    ratio_at_most,
)

from subjects.kafka.client import (
    LONE_SIZE,
    answer_size,
    await_leader,
    delete_topic,
    make_topic,
    produce_frame,
    send_one_by_one,
    send_pipelined,
)
from subjects.kafka.confluent import PARTITIONS, consume_all, produce_for, topic
from subjects.kafka.processes import ServerProcess, node
from subjects.log.common import KIB, make_batch

PEER = "kafka"
GB = 1e9
BATCHES = {"16 KB": 16 * KIB, "1 MB": 1_000_000}


class Promise(NamedTuple):
    """Guarantee of an acknowledgement, and the settings of both servers for it."""

    acks: str
    durability: str
    """The class of our topic."""
    kafka_name: str
    kafka_configs: Mapping[str, str]

    def __str__(self) -> str:
        return f"acks={self.acks}, {self.durability}"


DEFAULT, FLUSHED = "Kafka, default", "Kafka, flush.messages=1"
PROMISES = (
    Promise("1", "disk", DEFAULT, {}),
    Promise("all", "disk", DEFAULT, {}),
    Promise("all", "fsync", FLUSHED, {"flush.messages": "1"}),
)
DURABILITY_NOTE = (
    " Class `disk` and Kafka's default acknowledge a write to the page cache: it survives a crash"
    " of the process and not a power failure. Class `fsync` and Kafka's flush.messages=1"
    " acknowledge after a sync."
)

Server = ServerProcess | PeerServer


def _bootstrap(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


@functools.cache
def _warm(server: PeerServer, seconds: float) -> None:
    """Let the JVM compile what the load needs, once: else Kafka would look far too slow."""
    for size in BATCHES.values():
        for configs in ({}, {"flush.messages": "1"}):
            with topic(_bootstrap(server), configs) as name:
                load = {"size": KIB, "batch_size": size, "acks": "all"}
                moved = produce_for(seconds / 4, _bootstrap(server), name, **load)  # type: ignore[arg-type]
                consume_all(_bootstrap(server), name, moved.records)


def warm(scale: Scale, server: PeerServer) -> None:
    _warm(server, scale.pick(smoke=0.2, quick=8.0, full=40.0))


def _produce(
    server: Server, name: str, seconds: float, configs: Mapping[str, str], **load: object
) -> Figures:
    with topic(_bootstrap(server), configs) as target:
        used = server.cpu_seconds()
        moved = produce_for(seconds, _bootstrap(server), target, **load)  # type: ignore[arg-type]
        cpu = server.cpu_seconds() - used
    return {name: moved.records / moved.seconds / 1e3, f"{name} CPU": cpu / moved.bytes * GB}


def _produce_turns(server: Server, size: int, scale: Scale, *, is_ours: bool) -> list[Arm]:
    seconds = scale.pick(smoke=0.02, quick=0.3, full=3.0)
    who = "ours" if is_ours else PEER
    return [
        partial(
            _produce,
            server,
            f"{who} {batch} {promise}",
            seconds,
            {"millstream.durability": promise.durability} if is_ours else promise.kafka_configs,
            size=size,
            batch_size=BATCHES[batch],
            acks=promise.acks,
        )
        for batch in BATCHES
        for promise in PROMISES
    ]


def _produce_experiment(size: int, name: str) -> Experiment:
    @contextmanager
    def ours(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
        with node(folder / "data") as server:
            yield _produce_turns(server, size, scale, is_ours=True)

    @contextmanager
    def theirs(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
        warm(scale, server)
        yield _produce_turns(server, size, scale, is_ours=False)

    return Experiment(
        title=f"produce {name} records, beside Kafka",
        note=(
            f"Four producers of confluent-kafka, each with a partition of its own, send {name}"
            " records as fast as they can, not compressed; the batch size is the client's"
            " batch.size, with linger.ms=5. The client, whose cost is the same for both, shares the"
            " machine with the server: CPU is that of the server alone."
            " Kafka is warmed up first." + DURABILITY_NOTE
        ),
        rows=tuple(
            row
            for batch in BATCHES
            for promise in PROMISES
            for row in _rows(
                f"produce {name} records, {batch} batches, {promise}",
                f"{batch} {promise}",
                promise.kafka_name,
            )
        ),
        arms=ours,
        peers=(PeerArms(peer=PEER, arms=theirs),),
    )


def _rows(name: str, figure: str, peer_name: str) -> tuple[Row, Row]:
    def row(what: str, unit: str, suffix: str, *, is_more_better: bool) -> Row:
        goal = ratio_at_least(1) if is_more_better else ratio_at_most(1)
        against = Against(peer=PEER, name=peer_name, figure=f"{PEER} {figure}{suffix}", goal=goal)
        return Row(name=what, unit=unit, ours=f"ours {figure}{suffix}", peers=(against,))

    return (
        row(name, "thousand records/s", "", is_more_better=True),
        row(f"{name}, server CPU", "s/GB", " CPU", is_more_better=False),
    )


PRODUCE_BESIDE_KAFKA = (
    _produce_experiment(100, "100 B"),
    _produce_experiment(KIB, "1 KB"),
    _produce_experiment(10 * KIB, "10 KB"),
)


@contextmanager
def _consume_turns(server: Server, scale: Scale, who: str) -> Iterator[Sequence[Arm]]:
    batches = scale.pick(smoke=1, quick=75, full=250)
    batch = make_batch(BATCHES["1 MB"])
    records = PARTITIONS * (batches + 1) * (int.from_bytes(batch[23:27]) + 1)
    with topic(_bootstrap(server), {}) as name:
        for partition in range(PARTITIONS):
            frame = produce_frame(name, batch, acks=-1, partition=partition)
            await_leader(server.port, frame)  # Which produces it for the first time.
            answer = answer_size(server.port, frame)
            send_pipelined(server.port, frame, batches - 1, answer=answer, window=4)

        def turn() -> Figures:
            used = server.cpu_seconds()
            moved = consume_all(_bootstrap(server), name, records)
            cpu = server.cpu_seconds() - used
            rate = moved.records / moved.seconds / 1e3
            return {f"{who} consume": rate, f"{who} consume CPU": cpu / moved.bytes * GB}

        yield (turn,)


@contextmanager
def _consume_ours(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    with node(folder / "data") as server, _consume_turns(server, scale, "ours") as arms:
        yield arms


@contextmanager
def _consume_theirs(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    warm(scale, server)
    with _consume_turns(server, scale, PEER) as arms:
        yield arms


CONSUME_BESIDE_KAFKA = Experiment(
    title="consume 1 KB records, beside Kafka",
    note=(
        "A topic of 4 partitions with 1 KB records in batches of 1 MB, in the page cache, is read"
        " from its start by one consumer of confluent-kafka, which does not check checksums. We"
        " verify them before we serve a batch, Kafka does not."
    ),
    rows=_rows("consume 1 KB records", "consume", DEFAULT),
    arms=_consume_ours,
    peers=(PeerArms(peer=PEER, arms=_consume_theirs),),
)


def _lone_turn(server: Server, promise: Promise, count: int, *, is_ours: bool) -> Figures:
    batch = make_batch(LONE_SIZE, value_size=100)
    configs = {"millstream.durability": promise.durability} if is_ours else promise.kafka_configs
    name = make_topic(server.port, configs=configs)
    acks = -1 if promise.acks == "all" else int(promise.acks)
    frame = produce_frame(name, batch, acks=acks)
    await_leader(server.port, frame)
    took = send_one_by_one(server.port, frame, count)
    delete_topic(server.port, name)
    figure = f"{'ours' if is_ours else PEER} lone {promise}"
    ordered = sorted(took)
    return {
        figure: statistics.median(ordered) * 1e3,
        f"{figure} p99": ordered[int(len(ordered) * 0.99)] * 1e3,
    }


def _lone_turns(server: Server, scale: Scale, *, is_ours: bool) -> list[Arm]:
    count = scale.pick(smoke=20, quick=500, full=3000)
    return [partial(_lone_turn, server, each, count, is_ours=is_ours) for each in PROMISES]


@contextmanager
def _lone_ours(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    with node(folder / "data") as server:
        yield _lone_turns(server, scale, is_ours=True)


@contextmanager
def _lone_theirs(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    warm(scale, server)
    for arm in (arms := _lone_turns(server, scale, is_ours=False)):
        arm()  # Small requests have a path of their own to be compiled.
    yield arms


LONE_BESIDE_KAFKA = Experiment(
    title="one request in flight, beside Kafka",
    note=(
        "One record of 100 bytes at a time, on one connection: how long until it is acknowledged."
        " The client is a socket that sends the same bytes again and again, for both."
        + DURABILITY_NOTE
    ),
    rows=tuple(
        Row(
            name=f"lone 100 B record, {promise}, {what}",
            unit="ms",
            ours=f"ours lone {promise}{suffix}",
            peers=(
                Against(
                    peer=PEER,
                    name=promise.kafka_name,
                    figure=f"{PEER} lone {promise}{suffix}",
                    goal=ratio_at_most(1),
                ),
            ),
        )
        for promise in PROMISES
        for what, suffix in (("p50", ""), ("p99", " p99"))
    ),
    arms=_lone_ours,
    peers=(PeerArms(peer=PEER, arms=_lone_theirs),),
)
