"""A cluster of our nodes, with etcd, and what it costs."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from measure.profiling import NODE, profiled
from measure.usage import cpu_seconds
from peers.cluster_processes import PeerCluster

from millstream.testing.cluster import RunningCluster, running_cluster

REPLICAS = 3
FSYNC = {"millstream.durability": "fsync"}
FLUSHED, DEFAULT = "Kafka, flush.messages=1", "Kafka, default"
KAFKA_CONFIGS: Mapping[str, Mapping[str, str]] = {FLUSHED: {"flush.messages": "1"}, DEFAULT: {}}
KAFKA, NATS = "kafka cluster", "nats cluster"

DURABILITY_NOTE = (
    " Ours, class `fsync`: acknowledged when at least two nodes have synced a batch, and all that"
    " are in sync have. Kafka with flush.messages=1 syncs each batch too; by default it only has"
    " it in the page caches of the brokers. NATS syncs every two minutes."
)

_SETTLE_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.05


class NodeCluster:
    """Three nodes and the etcd that they share, whose cost is theirs."""

    def __init__(self, running: RunningCluster) -> None:
        self.running = running

    @property
    def bootstrap(self) -> str:
        return self.running.bootstrap

    def node_seconds(self, node_id: int) -> float:
        """CPU time of one node up to now."""
        return cpu_seconds(self.running.nodes[node_id].pid)

    def cpu_seconds(self) -> float:
        """CPU time of all nodes and of etcd up to now."""
        members = self.running.etcd.members
        return sum(map(self.node_seconds, self.running.nodes)) + sum(
            cpu_seconds(member.pid) for member in members
        )


AnyCluster = NodeCluster | PeerCluster


@contextmanager
def node_cluster(folder: Path) -> Iterator[NodeCluster]:
    """Run three nodes with default settings."""
    with ExitStack() as stack:
        running = stack.enter_context(
            # A node has a directory of its own to be in.
            running_cluster(folder.resolve(), settings={"logging.level": "warning"})
        )
        for node in running.nodes.values():
            stack.enter_context(profiled(node.pid, NODE))
        running.wait_until_in_sync()
        yield NodeCluster(running)


def leaders(bootstrap: str, name: str) -> dict[int, tuple[int, int]]:
    """Return node and port of the leader of each partition, once all have one."""
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while time.monotonic() < deadline:
        found = client.list_topics(timeout=10)
        partitions = found.topics[name].partitions if name in found.topics else {}
        if partitions and all(part.leader in found.brokers for part in partitions.values()):
            return {
                index: (part.leader, found.brokers[part.leader].port)
                for index, part in partitions.items()
            }
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"{name} has partitions without a leader after {_SETTLE_SECONDS_MAX} s")


def wait_until_in_sync(bootstrap: str, name: str, *, node: int | None = None) -> None:
    """Wait until all replicas of a topic are in sync, or that of one node in all partitions."""
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while time.monotonic() < deadline:
        found = client.list_topics(timeout=10)
        parts = found.topics[name].partitions.values() if name in found.topics else ()
        wanted = (set(part.replicas) if node is None else {node} for part in parts)
        if parts and all(
            nodes <= set(part.isrs) for nodes, part in zip(wanted, parts, strict=True)
        ):
            return
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"{name} is not in sync after {_SETTLE_SECONDS_MAX} s")


@functools.cache
def _numbers() -> Iterator[int]:
    return itertools.count(1)


def unique_name(prefix: str) -> str:
    """Return a name that nothing else in this run has."""
    return f"{prefix}-{next(_numbers())}"
