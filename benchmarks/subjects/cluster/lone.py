"""Latency of a lone record that is acknowledged by three replicas."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    ratio_at_most,
)
from peers import nats
from peers.cluster_processes import PeerCluster

from subjects.cluster.nodes import (
    DURABILITY_NOTE,
    FSYNC,
    KAFKA,
    KAFKA_CONFIGS,
    NATS,
    REPLICAS,
    leaders,
    node_cluster,
    unique_name,
    wait_until_in_sync,
)
from subjects.cluster.produce import nats_stream, warm, warm_seconds
from subjects.kafka.client import LONE_SIZE, await_leader, produce_frame, send_one_by_one
from subjects.kafka.confluent import topic
from subjects.kafka.processes import node
from subjects.log.common import make_batch

VALUE_SIZE = 100


def _count(scale: Scale) -> int:
    return scale.pick(smoke=20, quick=1000, full=5000)


def percentiles(name: str, took: Sequence[float]) -> Figures:
    """Return median and 99th percentile, in milliseconds."""
    ordered = sorted(took)
    return {
        f"{name} p50": statistics.median(ordered) * 1e3,
        f"{name} p99": ordered[int(len(ordered) * 0.99)] * 1e3,
    }


def _turn(
    name: str, bootstrap: str, configs: Mapping[str, str], replicas: int, count: int
) -> Figures:
    batch = make_batch(LONE_SIZE, value_size=VALUE_SIZE)
    with topic(bootstrap, configs, partitions=1, replicas=replicas) as target:
        wait_until_in_sync(bootstrap, target)
        _, port = leaders(bootstrap, target)[0]
        frame = produce_frame(target, batch, acks=-1)
        await_leader(port, frame)
        send_one_by_one(port, frame, count // 10)
        took = send_one_by_one(port, frame, count)
    return percentiles(name, took)


@contextmanager
def _ours(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = _count(scale)
    with node_cluster(folder) as cluster, node(folder / "lone") as alone:
        bootstrap = f"127.0.0.1:{alone.port}"
        turns = [
            partial(_turn, "lone node", bootstrap, FSYNC, 1, count),
            partial(_turn, "ours", cluster.bootstrap, FSYNC, REPLICAS, count),
        ]
        yield turns


@contextmanager
def _kafka(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    assert isinstance(server, PeerCluster)
    warm(server, warm_seconds(scale))
    turns: list[Callable[[], Figures]] = [
        partial(_turn, name, server.bootstrap, configs, REPLICAS, _count(scale))
        for name, configs in KAFKA_CONFIGS.items()
    ]
    for turn in turns:
        turn()  # Small requests have a path of their own to be compiled.
    yield turns


@contextmanager
def _nats(scale: Scale, _: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
    assert isinstance(server, PeerCluster)
    yield (partial(_publish, server, _count(scale)),)


def _publish(cluster: PeerCluster, count: int) -> Figures:
    name = unique_name("lone")
    port = nats_stream(cluster, name)
    inbox = f"_INBOX.{name}"
    request = nats.publication(f"{name}.0", os.urandom(VALUE_SIZE), inbox)
    took = []
    with nats.open_connection(port, inbox) as connection:
        for _ in range(count):
            began = time.perf_counter()
            connection.sendall(request)
            received = b""
            while nats.ANSWER not in received or not received.endswith(b"}\r\n"):
                piece = connection.recv(65_536)
                if not piece:
                    raise ConnectionError("NATS closed the connection")
                received += piece
            took.append(time.perf_counter() - began)
    nats.ask(cluster.port, f"$JS.API.STREAM.DELETE.{name}", {})
    return percentiles("nats", took)


LONE = Experiment(
    title="lone record to three replicas",
    note=(
        "One record of 100 bytes at a time with acks=all, on one connection to the leader: how long"
        " until it is acknowledged. The client is a socket that sends the same bytes again and"
        " again, for all. The lone node is one node without a cluster, class `fsync`. On one"
        " machine the three replicas sync on one disk." + DURABILITY_NOTE
    ),
    rows=tuple(
        Row(
            name=f"lone 100 B record, acks=all, 3 replicas, {what}",
            unit="ms",
            ours=f"ours {what}",
            limit=f"lone node {what}",
            limit_name="lone node",
            goal=ratio_at_most(2.5) if what == "p50" else None,
            peers=(
                *(
                    Against(peer=KAFKA, name=kafka, figure=f"{kafka} {what}")
                    for kafka in KAFKA_CONFIGS
                ),
                Against(peer=NATS, name="NATS, default", figure=f"nats {what}"),
            ),
        )
        for what in ("p50", "p99")
    ),
    arms=_ours,
    peers=(PeerArms(peer=KAFKA, arms=_kafka), PeerArms(peer=NATS, arms=_nats)),
)
