"""A cluster for tests: etcd, several nodes as processes, and optionally a network between them."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import PathLike
from pathlib import Path
from urllib.parse import urlsplit

from millstream.clients.kafka.client import KafkaClient
from millstream.errors import MillstreamError
from millstream.protocols.kafka.messages.metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.testing.cluster.memory_limit import MemoryGroup
from millstream.testing.cluster.namespaces import NamespaceNetwork
from millstream.testing.cluster.network import CLIENTS, ClusterNetwork, etcd_name, node_name
from millstream.testing.cluster.nodes import PORTS_PER_NODE, NodeFailed, RunningNode
from millstream.testing.cluster.proxy import Network, process_of_connection
from millstream.testing.etcd import RunningEtcd, free_ports, running_etcd
from millstream.testing.network_host import LOOPBACK
from millstream.testing.replica_files import compare_replicas

HEAL_SECONDS_MAX = 120.0
"""How long a cluster may take to elect leaders and to get all replicas in sync. Tests share slow
machines: this is no figure of the product.
"""

_POLL_SECONDS = 0.05
_CALL_SECONDS_MAX = 30.0


class ReplicasDiffer(Exception):
    """Replicas of a partition do not have the same records."""


class RunningCluster:
    """An etcd and several nodes."""

    def __init__(
        self, etcd: RunningEtcd, nodes: Sequence[RunningNode], network: ClusterNetwork | None = None
    ) -> None:
        self.etcd = etcd
        self.nodes = {node.node_id: node for node in nodes}
        """The nodes by their ids, from 1 on."""
        self._network = network

    @property
    def network(self) -> ClusterNetwork:
        """The network between clients, nodes and etcd."""
        assert self._network is not None, "the cluster was made with `has_network`"
        return self._network

    @property
    def bootstrap(self) -> str:
        """Addresses for Kafka clients: `bootstrap.servers`."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def urls(self) -> list[str]:
        """URLs for HTTP clients."""
        return [node.url for node in self.nodes.values()]

    def start(self) -> None:
        """Start all nodes that do not run, at once; return when they serve clients."""
        self._all(RunningNode.start, [node for node in self.nodes.values() if not node.is_running])

    def kill(self) -> None:
        """Kill all nodes that run, at once."""
        self._all(RunningNode.kill, [node for node in self.nodes.values() if node.is_running])

    def stop(self) -> None:
        """Stop all nodes that run, at once and cleanly."""
        self._all(RunningNode.stop, [node for node in self.nodes.values() if node.is_running])

    def heal(self) -> None:
        """End all faults: the network is open, disks and clocks are right, all processes run."""
        if self._network is not None:
            self._network.heal()
        for member in self.etcd.members:
            if member.is_running:
                member.resume()
            else:
                member.start()
        self.etcd.wait_until_healthy()
        for node in self.nodes.values():
            if node.memory is not None:
                node.memory.lift()
            if node.is_running:
                node.resume()
                if node.has_faults:
                    node.disturb()
        self.start()

    @staticmethod
    def _all(action: Callable[[RunningNode], None], nodes: Sequence[RunningNode]) -> None:
        with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as threads:
            list(threads.map(action, nodes))

    # Where partitions are.

    def partitions(
        self, topic: str, *, seen_by: int | None = None
    ) -> dict[int, MetadataResponsePartition]:
        """Return leader, replicas and in-sync replicas of each partition.

        They are those that the node `seen_by` names, or any node: the first that answers. A node
        that is cut off from etcd does not know what has changed since.
        """
        bootstrap = None if seen_by is None else self.nodes[seen_by].bootstrap
        return {
            partition.partition_index: partition
            for described in self._describe([topic], bootstrap)
            for partition in described.partitions
        }

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; wait until there is one that runs."""
        deadline = time.monotonic() + HEAL_SECONDS_MAX
        while True:
            leader = self.partitions(topic)[partition].leader_id
            if leader in self.nodes and self.nodes[leader].is_running:
                return leader
            if time.monotonic() > deadline:
                raise NodeFailed(f"partition {partition} of {topic} has no leader")
            time.sleep(_POLL_SECONDS)

    def wait_until_joined(self, seconds: float = HEAL_SECONDS_MAX) -> None:
        """Wait until every node knows all nodes.

        A topic has no more replicas than there are nodes that the one knows which creates it.
        """
        deadline = time.monotonic() + seconds
        for node in self.nodes.values():
            while len(known := self._known_nodes(node)) < len(self.nodes):
                if time.monotonic() > deadline:
                    raise NodeFailed(f"node {node.node_id} knows only the nodes {sorted(known)}")
                time.sleep(_POLL_SECONDS)

    def _known_nodes(self, node: RunningNode) -> set[int]:
        with KafkaClient(node.bootstrap, timeout_s=_CALL_SECONDS_MAX) as client:
            described = client.cluster.call_with_retries(
                lambda deadline: client.cluster.describe((), deadline)
            )
        return {broker.node_id for broker in described.brokers}

    def wait_until_in_sync(self, seconds: float = HEAL_SECONDS_MAX) -> None:
        """Wait until all replicas of all partitions are in sync, also of internal ones."""
        deadline = time.monotonic() + seconds
        while behind := self._out_of_sync():
            if time.monotonic() > deadline:
                raise NodeFailed(f"not in sync after {seconds:g} s: {', '.join(behind[:10])}")
            time.sleep(_POLL_SECONDS)

    def wait_until_caught_up(self, seconds: float = HEAL_SECONDS_MAX) -> None:
        """Wait until each replica of all partitions was in sync once, since this was called.

        Unlike `wait_until_in_sync` this also ends on a busy machine under load, where now one
        replica is late for a moment, and now another.
        """
        deadline = time.monotonic() + seconds
        seen: defaultdict[str, set[int]] = defaultdict(set)
        while behind := self._out_of_sync(seen):
            if time.monotonic() > deadline:
                raise NodeFailed(f"not caught up after {seconds:g} s: {', '.join(behind[:10])}")
            time.sleep(_POLL_SECONDS)

    def _out_of_sync(self, seen: defaultdict[str, set[int]] | None = None) -> list[str]:
        """Return the partitions with replicas that are not in sync, and were not `seen` so."""
        try:
            topics = self._describe(None)
        except MillstreamError as error:
            return [str(error)]
        behind = []
        for topic in topics:
            for partition in topic.partitions:
                name = f"{topic.name}-{partition.partition_index}"
                in_sync = set(partition.isr_nodes)
                if seen is not None:
                    seen[name] |= in_sync
                    in_sync |= seen[name]
                if partition.leader_id < 0 or not in_sync >= set(partition.replica_nodes):
                    behind.append(
                        f"{name} (leader {partition.leader_id}, replicas"
                        f" {list(partition.replica_nodes)}, in sync {list(partition.isr_nodes)})"
                    )
        return behind

    def _describe(
        self, names: Sequence[str] | None, bootstrap: str | None = None
    ) -> Sequence[MetadataResponseTopic]:
        with KafkaClient(bootstrap or self.bootstrap, timeout_s=_CALL_SECONDS_MAX) as client:
            return client.cluster.call_with_retries(
                lambda deadline: client.cluster.describe(names, deadline).topics
            )

    def check_replicas(self, *topics: str, seconds: float = 30.0) -> None:
        """Wait until all replicas of these topics have the same bytes, or raise `ReplicasDiffer`.

        Compares the segments of every partition file by file. Nothing may be
        written meanwhile, and the topics must not be compacted: each node compacts on its own.
        """
        deadline = time.monotonic() + seconds
        while True:
            differences = [
                difference
                for topic in topics
                for index, partition in self.partitions(topic).items()
                for difference in compare_replicas(
                    [self.nodes[node_id].data for node_id in partition.replica_nodes], topic, index
                )
            ]
            if not differences:
                return
            if time.monotonic() > deadline:
                raise ReplicasDiffer("; ".join(differences[:10]))
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def running_cluster(
    directory: str | PathLike[str],
    *,
    nodes: int = 3,
    settings: Mapping[str, str] | None = None,
    racks: Sequence[str] = (),
    etcd_members: int = 1,
    has_network: bool = False,
    has_namespaces: bool = False,
    has_faults: bool = False,
    has_memory_limits: bool = False,
    source: Path | None = None,
) -> Iterator[RunningCluster]:
    """Run an etcd and nodes, with their data below `directory`, for the duration of the block.

    `settings` are those of all nodes, by key; `racks` are the racks of the nodes, in order. With
    `has_network`, connections can be cut and slowed down (`cluster.network`, on Linux) by proxies;
    with `has_namespaces`, by the kernel (`namespaces.py`, as root). With `has_faults`, disks and
    clocks can be disturbed (`RunningNode.disturb`); with `has_memory_limits`, nodes can be starved
    of memory (`RunningNode.starve`). The nodes run the package in `source`, if it is given;
    `RunningNode.source` changes that for one of them.
    """
    with contextlib.ExitStack() as stack:
        namespaces = None
        if has_namespaces:
            members = [etcd_name(index) for index in range(etcd_members)]
            names = [node_name(index + 1) for index in range(nodes)]
            namespaces = NamespaceNetwork([*members, *names])
            stack.callback(namespaces.close)
        hosts = [namespaces.host(member) for member in members] if namespaces else []
        etcd = stack.enter_context(running_etcd(directory, members=etcd_members, hosts=hosts))
        network = None
        if has_network:
            network = Network()
            stack.callback(network.close)
        groups = []
        if has_memory_limits:
            for index in range(nodes):
                groups.append(MemoryGroup(node_name(index + 1)))
                stack.callback(groups[-1].remove)
        ports = _chunks(free_ports(2 * PORTS_PER_NODE * nodes), PORTS_PER_NODE)
        made = [
            RunningNode(
                index + 1,
                Path(directory),
                ports[index],
                {
                    "cluster.etcd": ",".join(etcd.endpoints),
                    **({"cluster.rack": racks[index]} if racks else {}),
                    **(settings or {}),
                },
                advertised_ports=ports[nodes + index] if has_network else (),
                has_faults=has_faults,
                host=namespaces.host(node_name(index + 1)) if namespaces else LOOPBACK,
                memory=groups[index] if groups else None,
                source=source,
            )
            for index in range(nodes)
        ]
        cluster = RunningCluster(etcd, made, namespaces or network)
        if network is not None:
            for index, node in enumerate(made):
                _connect(network, cluster, node, ports[index], ports[nodes + index])
        for node in made:
            stack.callback(node.close)
        cluster.start()
        cluster.wait_until_joined()
        yield cluster


def _connect(
    network: Network,
    cluster: RunningCluster,
    node: RunningNode,
    ports: Sequence[int],
    advertised: Sequence[int],
) -> None:
    """Put proxies in front of a node, and between it and etcd."""
    name = node_name(node.node_id)
    sources: tuple[Callable[[int], str], ...] = (
        lambda _: CLIENTS,
        lambda _: CLIENTS,
        partial(_connected_node, cluster, advertised[-1]),
    )
    for listener, port, source in zip(ports, advertised, sources, strict=True):
        network.add_proxy(port, ("127.0.0.1", listener), name, source)
    endpoints = []
    for index, endpoint in enumerate(cluster.etcd.endpoints):
        [port] = free_ports(1)
        member = ("127.0.0.1", urlsplit(endpoint).port or 0)
        network.add_proxy(port, member, etcd_name(index), lambda _: name)
        endpoints.append(f"http://127.0.0.1:{port}")
    node.settings["cluster.etcd"] = ",".join(endpoints)


def _connected_node(cluster: RunningCluster, target: int, port: int) -> str:
    """Return which node opened a connection to the peer listener of another one."""
    running = [node for node in cluster.nodes.values() if node.is_running]
    pids = {node_name(node.node_id): node.pid for node in running}
    return process_of_connection(port, target, pids)


def _chunks(ports: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ports[start : start + size] for start in range(0, len(ports), size)]
