"""Several nodes in one process that share metadata in memory: real sockets and real files.

A node can be isolated: it reaches neither the metadata nor its peers, and they do not reach it. To
the others it looks dead once its lease has expired; it itself goes on serving its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.broker.loop_timers import LoopTimers
from millstream.broker.partition.partition import Partition
from millstream.cluster.member import ClusterMember
from millstream.config.schema import (
    AccessConfig,
    BrokerConfig,
    ClusterConfig,
    Endpoint,
    NodeConfig,
    ReplicaSelector,
    TelemetryConfig,
)
from millstream.errors import NotLeader
from millstream.node import Node
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.storage.append.pending_append import Appended
from millstream.storage.disk.filesystem import Filesystem
from millstream.testing.memory_metadata import MemoryMetadata, MetadataServer

ANY_PORT = Endpoint("127.0.0.1", 0)
WAIT_SECONDS = 30.0
"""Limit of every wait: far longer than anything takes on a busy machine."""

LONG_LEASE_MS = 10_000
"""For tests in which no lease has to expire: a busy machine must not cost a node its partitions."""

SHORT_LEASE_MS = 2_000
"""For tests that wait until a node that was cut off is taken for dead."""


class LocalCluster:
    """Nodes by id."""

    def __init__(
        self,
        directory: Path,
        count: int,
        lease_ttl_ms: int,
        racks: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` are those of the section `cluster` of all nodes."""
        self.directory = directory
        self.server = MetadataServer(LoopTimers())
        self.nodes: dict[int, Node] = {}
        self.connections: dict[int, MemoryMetadata] = {}
        self._lease_ttl_ms = lease_ttl_ms
        self._count = count
        self._racks = racks
        self.settings = dict(settings or {})
        self.telemetry = TelemetryConfig()
        """For nodes that are started from now on."""
        self.access = AccessConfig()
        """For nodes that are started from now on."""
        self.native: Endpoint | None = None
        """Address of the native servers of nodes that are started from now on."""
        self.broker: dict[str, Any] = {}
        """Settings of the brokers of nodes that are started from now on."""
        self.disks: dict[int, Filesystem] = {}
        """File systems of nodes that do not use the one of the machine."""

    async def start(self) -> None:
        await asyncio.gather(*(self.start_node(node_id) for node_id in range(1, self._count + 1)))
        await until(lambda: all(len(self.member(n).state.nodes) == self._count for n in self.nodes))

    async def start_node(self, node_id: int, **settings: Any) -> Node:
        """Start a node; `settings` are those of its cluster that differ."""
        connection = self.server.connect()
        config = NodeConfig(
            data=str(self.directory / str(node_id)),
            kafka=ANY_PORT,
            http=ANY_PORT,
            native=self.native,
            broker=BrokerConfig(node_id=node_id, **self.broker),
            telemetry=self.telemetry,
            access=self.access,
            cluster=ClusterConfig(
                **{
                    "name": "test",
                    "peer": ANY_PORT,
                    "lease_ttl_ms": self._lease_ttl_ms,
                    "replica_lag_ms_max": 60_000,  # A busy machine must not change the ISR.
                    "rack": self._racks[node_id - 1] if self._racks else None,
                    "replica_selector": ReplicaSelector.RACK,
                    **self.settings,
                    **settings,
                }
            ),
        )
        node = Node(config, metadata=connection, filesystem=self.disks.get(node_id))
        self.nodes[node_id] = node
        self.connections[node_id] = connection
        await node.start()
        return node

    async def stop_node(self, node_id: int) -> None:
        await self.nodes.pop(node_id).stop()

    async def stop(self) -> None:
        for node_id in list(self.nodes):
            await self.stop_node(node_id)

    def member(self, node_id: int) -> ClusterMember:
        cluster = self.nodes[node_id]._cluster
        assert cluster is not None
        return cluster.member

    def partition(self, node_id: int, topic: str, index: int = 0) -> Partition:
        return self.nodes[node_id].broker.topics.partition(topic, index)

    def leader_of(self, topic: str, index: int = 0) -> int | None:
        """Return the node that believes to lead a partition and is believed by its own lease."""
        leading = [
            node_id
            for node_id, node in self.nodes.items()
            if node.broker.topics.find(topic) is not None and self._leads(node_id, topic, index)
        ]
        return leading[0] if len(leading) == 1 else None

    def _leads(self, node_id: int, topic: str, index: int) -> bool:
        partition = self.partition(node_id, topic, index)
        if not partition.is_open or partition.replica is None:
            return False
        try:
            partition.replica.check_leader()
        except NotLeader:
            return False
        return True

    async def create(
        self, topic: str, partitions: int = 1, *, configs: Mapping[str, str | None] | None = None
    ) -> None:
        node = next(iter(self.nodes.values()))
        await node.broker.topics.create(topic, partitions=partitions, configs=configs)
        await until(
            lambda: all(self.leader_of(topic, index) is not None for index in range(partitions))
        )

    async def create_compacted(self, topic: str, configs: dict[str, str] | None = None) -> None:
        """Create a compacted topic, which nothing but a test compacts."""
        node = next(iter(self.nodes.values()))
        await node.broker.topics.create(
            topic, partitions=1, configs={"cleanup.policy": "compact"} | (configs or {})
        )
        await until(lambda: self.leader_of(topic) is not None)

    # Faults.

    def isolate(self, node_id: int) -> None:
        """Cut a node off from the metadata and from its peers."""
        self.connections[node_id].disconnect()
        cluster = self.nodes[node_id]._cluster
        assert cluster is not None
        cluster.peers.address_of = lambda _: None
        for other in self.nodes:
            cluster.peers.forget(other)
            if other != node_id:
                peers = self.nodes[other]._cluster.peers  # type: ignore[union-attr]
                peers.forget(node_id)
        for connection in list(cluster.listener.connections):
            connection.close("isolated by a test")
        cluster.listener._authorize = lambda _: PeerErrorCode.UNKNOWN_NODE

    def heal(self, node_id: int) -> None:
        """Undo `isolate`."""
        cluster = self.nodes[node_id]._cluster
        assert cluster is not None
        cluster.peers.address_of = cluster._address_of
        cluster.listener._authorize = cluster._authorize
        self.connections[node_id].reconnect()


async def until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - anything may make it true.
            await asyncio.sleep(0.01)


def batch(*values: str) -> bytes:
    return build_batch([Record(value.encode()) for value in values], now_ms=1)


def submit(partition: Partition, *values: str, is_early: bool = False) -> asyncio.Future[Appended]:
    """Append records as a client does; the future ends with the acknowledgement."""
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    partition.appender.append(batch(*values), future, is_early=is_early)
    return future


def values_of(partition: Partition) -> list[str]:
    """Return what a reader sees."""
    return [
        record.value.decode()
        for record in partition.log.records()
        if hasattr(record, "value") and record.value is not None
    ]


@contextlib.asynccontextmanager
async def local_cluster(
    directory: Path,
    count: int = 3,
    *,
    lease_ttl_ms: int = LONG_LEASE_MS,
    racks: Sequence[str] = (),
    telemetry: TelemetryConfig | None = None,
    disks: Mapping[int, Filesystem] | None = None,
    access: AccessConfig | None = None,
    broker: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[LocalCluster]:
    """Run a cluster for the duration of the block."""
    cluster = LocalCluster(directory, count, lease_ttl_ms, racks, settings)
    cluster.telemetry = telemetry or cluster.telemetry
    cluster.access = access or cluster.access
    cluster.broker.update(broker or {})
    cluster.disks.update(disks or {})
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
