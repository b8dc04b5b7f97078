"""Produce with acks=all to three replicas: rate and CPU, beside Kafka and NATS."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
    ratio_at_most,
)
from peers import nats
from peers.cluster_processes import PeerCluster
from peers.lines import Pipe, pump

from subjects.cluster.nodes import (
    DEFAULT,
    DURABILITY_NOTE,
    FLUSHED,
    FSYNC,
    KAFKA,
    KAFKA_CONFIGS,
    NATS,
    REPLICAS,
    AnyCluster,
    node_cluster,
    unique_name,
    wait_until_in_sync,
)
from subjects.kafka.beside_streams import nats_answers
from subjects.kafka.confluent import PARTITIONS, produce_for, topic
from subjects.log.common import KIB

SIZE = KIB
GB = 1e9
BATCHES = {"1 KB": SIZE, "16 KB": 16 * KIB, "1 MB": 1_000_000}
"""Sizes of batches: the first has one record."""
NATS_CONNECTIONS = 2 * PARTITIONS
IN_A_PIECE = 125


def _seconds(scale: Scale) -> float:
    return scale.pick(smoke=0.05, quick=1.5, full=5.0)


def _produce(
    cluster: AnyCluster, name: str, configs: Mapping[str, str], batch_size: int, seconds: float
) -> Figures:
    bootstrap = cluster.bootstrap
    with topic(bootstrap, configs, replicas=REPLICAS) as target:
        wait_until_in_sync(bootstrap, target)
        used = cluster.cpu_seconds()
        moved = produce_for(
            seconds, bootstrap, target, size=SIZE, batch_size=batch_size, acks="all"
        )
        cpu = cluster.cpu_seconds() - used
    return {name: moved.records / moved.seconds / 1e3, f"{name} CPU": cpu / moved.bytes * GB}


@contextmanager
def _ours(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    with node_cluster(folder) as cluster:
        turns = [
            partial(_produce, cluster, f"ours {batch}", FSYNC, size, _seconds(scale))
            for batch, size in BATCHES.items()
        ]
        turns[1]()  # Connections between the nodes, and modules that are loaded when needed.
        yield turns


@functools.cache
def warm(cluster: PeerCluster, seconds: float) -> None:
    """Let the JVMs compile what the load needs, once: else Kafka would look far too slow."""
    for size in BATCHES.values():
        for configs in KAFKA_CONFIGS.values():
            _produce(cluster, "warm", configs, size, seconds / 6)


def warm_seconds(scale: Scale) -> float:
    return scale.pick(smoke=0.3, quick=18.0, full=60.0)


@contextmanager
def _kafka(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    assert isinstance(server, PeerCluster)
    warm(server, warm_seconds(scale))
    yield [
        partial(_produce, server, f"{name} {batch}", configs, size, _seconds(scale))
        for batch, size in BATCHES.items()
        for name, configs in KAFKA_CONFIGS.items()
    ]


@contextmanager
def _nats(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    assert isinstance(server, PeerCluster)
    yield (partial(_publish, server, _seconds(scale)),)


def _publish(cluster: PeerCluster, seconds: float) -> Figures:
    value = os.urandom(SIZE)
    names = [unique_name("produce") for _ in range(PARTITIONS)]
    ports = [nats_stream(cluster, name) for name in names]
    with ExitStack() as stack:
        pipes = []
        for number in range(NATS_CONNECTIONS):
            name, port = names[number % PARTITIONS], ports[number % PARTITIONS]
            inbox = f"_INBOX.{name}.{number}"
            pipes.append(
                Pipe(
                    stack.enter_context(nats.open_connection(port, inbox)),
                    nats.publication(f"{name}.{number}", value, inbox) * IN_A_PIECE,
                    IN_A_PIECE,
                    nats_answers,
                    edge=len(nats.ANSWER) - 1,
                )
            )
        used = cluster.cpu_seconds()
        pumped = pump(pipes, seconds)
        cpu = cluster.cpu_seconds() - used
    for name in names:
        nats.ask(cluster.port, f"$JS.API.STREAM.DELETE.{name}", {})
    size = pumped.requests * SIZE
    return {"nats": pumped.requests / pumped.seconds / 1e3, "nats CPU": cpu / size * GB}


def nats_stream(cluster: PeerCluster, name: str) -> int:
    """Create a stream with three replicas, and return the port of the server that leads it."""
    stream = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": REPLICAS}
    made = nats.ask(cluster.port, f"$JS.API.STREAM.CREATE.{name}", stream)
    return cluster.node(made["cluster"]["leader"]).port


def _rows(batch: str) -> Iterator[Row]:
    name = f"produce 1 KB records, {batch} batches, acks=all, 3 replicas"
    goals = {FLUSHED: 1.0, DEFAULT: 0.8}
    against_nats = Against(peer=NATS, name="NATS, default", figure="nats")
    yield Row(
        name=name,
        unit="thousand records/s",
        ours=f"ours {batch}",
        peers=(
            *(
                Against(
                    peer=KAFKA, name=kafka, figure=f"{kafka} {batch}", goal=ratio_at_least(goal)
                )
                for kafka, goal in goals.items()
            ),
            against_nats,
        ),
    )
    yield Row(
        name=f"{name}, CPU of all nodes",
        unit="s/GB",
        ours=f"ours {batch} CPU",
        peers=(
            *(
                Against(
                    peer=KAFKA, name=kafka, figure=f"{kafka} {batch} CPU", goal=ratio_at_most(1)
                )
                for kafka in goals
            ),
            Against(peer=NATS, name="NATS, default", figure="nats CPU"),
        ),
    )


PRODUCE = Experiment(
    title="produce to three replicas",
    note=(
        "Four producers of confluent-kafka, each with a partition of its own, send 1 KB records as"
        " fast as they can to a topic with three replicas, not compressed; the batch size is the"
        " client's batch.size, with linger.ms=5. All nodes and the client share the machine. CPU"
        " is that of all nodes, for ours with etcd. Kafka is warmed up first. NATS has four streams"
        " and gets prepared publications, at the servers that lead them, from a client that only"
        " counts answers: its library for Python would be slower than the servers, so this favours"
        " NATS." + DURABILITY_NOTE
    ),
    rows=tuple(row for batch in BATCHES for row in _rows(batch)),
    arms=_ours,
    peers=(PeerArms(peer=KAFKA, arms=_kafka), PeerArms(peer=NATS, arms=_nats)),
)
