"""What it costs that any node takes any request."""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from subjects.cluster.nodes import (
    FSYNC,
    REPLICAS,
    NodeCluster,
    leaders,
    node_cluster,
    wait_until_in_sync,
)
from subjects.kafka.confluent import topic

BODY = b'{"records": [{"value": "' + b"x" * 100 + b'"}]}'


def _turn(cluster: NodeCluster, count: int) -> Figures:
    with (
        topic(cluster.bootstrap, FSYNC, partitions=1, replicas=REPLICAS) as name,
        ExitStack() as stack,
    ):
        wait_until_in_sync(cluster.bootstrap, name)
        leader, _ = leaders(cluster.bootstrap, name)[0]
        other = next(node for node in cluster.running.nodes if node != leader)
        connections = []
        for node in (leader, other):
            host = urlsplit(cluster.running.nodes[node].url).netloc
            connections.append(
                stack.enter_context(closing(http.client.HTTPConnection(host, timeout=30)))
            )
        took: list[list[float]] = [[], []]
        for number in range(count + count // 10):
            for connection, times in zip(connections, took, strict=True):
                began = time.perf_counter()
                _append(connection, name)
                if number >= count // 10:
                    times.append(time.perf_counter() - began)
    at_leader, forwarded = (statistics.median(times) * 1e3 for times in took)
    return {
        "at the leader": at_leader,
        "forwarded": forwarded,
        "added": max(0.0, forwarded - at_leader),
    }


def _append(connection: http.client.HTTPConnection, topic_name: str) -> None:
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/v1/topics/{topic_name}/records", BODY, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status not in (200, 201):
        raise RuntimeError(f"an append was answered with {response.status}: {content[:200]!r}")


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    with node_cluster(folder) as cluster:
        yield (partial(_turn, cluster, scale.pick(smoke=20, quick=500, full=3000)),)


FORWARDING = Experiment(
    title="append through another node",
    note=(
        "An HTTP client appends one record of 100 bytes at a time, class `fsync` with three"
        " replicas, now at the node that leads the partition, now at another, which passes the"
        " request on."
    ),
    rows=(
        Row(
            name="append of one record through another node, p50",
            unit="ms",
            ours="forwarded",
            limit="at the leader",
            limit_name="at the leader",
        ),
        Row(name="added by forwarding, p50", unit="ms", ours="added", goal=at_most(0.5)),
    ),
    arms=_arms,
)
