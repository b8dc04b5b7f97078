"""The cluster as this node knows it: registered nodes, states of partitions, the controller.

It follows the metadata store through watches, so it may be late, but never wrong about the order of
changes of one key. Proposals name the revision that they are based on.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, ParamSpec

from millstream.broker.cluster_view import (
    NO_NODE,
    BrokerNode,
    CoordinatorKind,
    PartitionPlacement,
)
from millstream.broker.topics.topics import Topics
from millstream.cluster.control.node_row import NODES_PREFIX, NodeRow, decode_node
from millstream.cluster.control.removed_nodes import REMOVED_PREFIX, removed_node
from millstream.cluster.control.replication_factor import (
    FACTOR_DEFAULT,
    default_factor,
    factor_of,
    min_insync_of,
)
from millstream.cluster.controller import ClusterNode
from millstream.cluster.replication_state import ReplicationState, decode_state
from millstream.errors import CorruptData, MillstreamError, UnknownFormat
from millstream.metadata.interface import Metadata, MetadataChange, Watch

logger = logging.getLogger(__name__)

PARTITIONS_PREFIX = "partitions/"
CONTROLLER_KEY = "controller"

P = ParamSpec("P")


class PartitionId(NamedTuple):
    """A partition, by the id of its topic."""

    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


def partition_key(partition: PartitionId) -> str:
    """Return the metadata key of a partition's state."""
    return f"{PARTITIONS_PREFIX}{partition}"


def parse_partition_key(key: str) -> PartitionId:
    """Return the partition of a metadata key."""
    try:
        topic_id, _, index = key.removeprefix(PARTITIONS_PREFIX).partition("/")
        return PartitionId(uuid.UUID(topic_id), int(index))
    except ValueError as error:
        raise CorruptData(f"{key} is not the key of a partition") from error


def check_version(key: str, value: bytes) -> None:
    """Raise `UnknownFormat` if a row was written by a later release, which this node is not."""
    try:
        if key.startswith(NODES_PREFIX):
            decode_node(key, value, 0)
        elif key.startswith(PARTITIONS_PREFIX):
            decode_state(value, 0)
    except UnknownFormat as error:
        raise UnknownFormat(
            f"{error}: nodes of a later release have joined the cluster; start this node with that"
            " release"
        ) from error
    except CorruptData:
        return  # It is reported, and the others are applied.


class ClusterState:
    """Follows the metadata of the cluster. Owned by one event loop."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._watches: list[Watch] = []
        self._revisions: dict[str, int] = {}
        """Revisions of the followed keys, also of deleted ones whose deletion may be overtaken."""
        self.nodes: dict[int, NodeRow] = {}
        """Registered nodes that count."""
        self.partitions: dict[PartitionId, ReplicationState] = {}
        self.removed: set[int] = set()
        """Nodes that operators are removing from the cluster."""
        self.controller_id = NO_NODE
        self.on_partition: list[Callable[[PartitionId, ReplicationState | None], None]] = []
        """Called after the state of a partition has changed; with None if it is gone."""
        self.on_node: list[Callable[[int, NodeRow | None], None]] = []
        """Called after a node has registered or changed; with None if it is gone."""
        self.on_life_ended: list[Callable[[int, int], None]] = []
        """Called with a node and the broker epoch of its life that has ended.

        The node may have begun another one, and others may have heard from it in that one before.
        """
        self.on_controller: list[Callable[[], None]] = []
        self.failed_callbacks = 0
        """How often somebody failed who was told of a change: a bug."""

    async def open(self) -> None:
        """Load everything, and follow changes from then on."""
        for prefix in (NODES_PREFIX, REMOVED_PREFIX, PARTITIONS_PREFIX, CONTROLLER_KEY):
            self._watches.append(self._metadata.watch(prefix, self._on_change))
            for entry in await self._metadata.list(prefix):
                check_version(entry.key, entry.value)
                self._on_change(MetadataChange(entry.key, entry.value, entry.revision))

    async def refresh_partitions(self) -> None:
        """Read the states of all partitions: the watches may be late."""
        for entry in await self._metadata.list(PARTITIONS_PREFIX):
            self._on_change(MetadataChange(entry.key, entry.value, entry.revision))

    def close(self) -> None:
        """Stop following."""
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    # Changes.

    def _on_change(self, change: MetadataChange) -> None:
        key = change.key
        if change.revision <= self._revisions.get(key, 0):
            return  # It was in the list, or this node made the change and applied it.
        self._revisions[key] = change.revision
        try:
            if key.startswith(NODES_PREFIX):
                self._apply_node(key, change.value, change.revision)
            elif key.startswith(PARTITIONS_PREFIX):
                self._apply_partition(key, change.value, change.revision)
            elif key.startswith(REMOVED_PREFIX):
                self._apply_removal(key, change.value)
            elif key == CONTROLLER_KEY:
                self._apply_controller(change.value)
        except MillstreamError as error:  # Of a later release, or damaged: others go on.
            logger.error("%s was not applied: %s", key, error)  # noqa: TRY400

    def apply_partition(self, key: PartitionId, state: ReplicationState) -> None:
        """Apply a change that this node has just made; the watch will bring it again."""
        name = partition_key(key)
        if state.revision > self._revisions.get(name, 0):
            self._revisions[name] = state.revision
            self._set_partition(key, state)

    def _apply_node(self, key: str, value: bytes | None, revision: int) -> None:
        if value is None:
            self._end_life(int(key.removeprefix(NODES_PREFIX)))
            return
        node_id, row = decode_node(key, value, revision)
        known = self.nodes.get(node_id)
        if known is not None and known.broker_epoch != row.broker_epoch:
            self._end_life(node_id)  # Its end was not seen.
            known = None
        if known is None:
            logger.info("node %d has joined the cluster", node_id)
        self.nodes[node_id] = row
        self._tell(self.on_node, node_id, row)

    def _end_life(self, node_id: int) -> None:
        row = self.nodes.pop(node_id, None)
        if row is not None:
            logger.warning("node %d has left the cluster", node_id)
            self._tell(self.on_node, node_id, None)
            self._tell(self.on_life_ended, node_id, row.broker_epoch)

    def _tell(
        self, callbacks: Sequence[Callable[P, None]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call all of them. One that fails must not keep the others from hearing of a change.

        Nobody is told again: a node whose fetchers or controller missed a change would wait for it
        forever.
        """
        for callback in tuple(callbacks):
            try:
                callback(*args, **kwargs)
            except Exception:
                self.failed_callbacks += 1
                logger.exception("a change of the cluster was not taken: %s", args)

    def _apply_partition(self, key: str, value: bytes | None, revision: int) -> None:
        partition = parse_partition_key(key)
        self._set_partition(partition, None if value is None else decode_state(value, revision))

    def _set_partition(self, key: PartitionId, state: ReplicationState | None) -> None:
        if state is None:
            if self.partitions.pop(key, None) is None:
                return
        else:
            self.partitions[key] = state
        self._tell(self.on_partition, key, state)

    def _apply_removal(self, key: str, value: bytes | None) -> None:
        node_id = removed_node(key)
        if value is None:
            self.removed.discard(node_id)
        else:
            self.removed.add(node_id)
        if (row := self.nodes.get(node_id)) is not None:
            self._tell(self.on_node, node_id, row)

    def _apply_controller(self, value: bytes | None) -> None:
        self.controller_id = NO_NODE if value is None else int(value)
        self._tell(self.on_controller)

    # Questions.

    def controller_nodes(self) -> Mapping[int, ClusterNode]:
        """Return the registered nodes as the controller's decisions take them."""
        return {
            node_id: ClusterNode(
                id=node_id,
                broker_epoch=row.broker_epoch,
                continuous_since=row.continuous_since,
                rack=row.rack or "",
                is_stopping=row.is_stopping or node_id in self.removed,
            )
            for node_id, row in self.nodes.items()
        }


class SharedClusterView:
    """`ClusterView` of a node in a cluster."""

    def __init__(
        self,
        state: ClusterState,
        topics: Topics,
        coordinator_partition: Callable[[CoordinatorKind, str], tuple[str, int]],
        *,
        node_id: int,
        leading_life: Callable[[], int | None],
        rack: str | None = None,
        replicas: int = FACTOR_DEFAULT,
    ) -> None:
        """Make the view of the node `node_id`.

        `coordinator_partition` returns the internal partition that a group or id belongs to.
        `leading_life` returns the broker epoch in which this node may lead; None while it does not
        believe in its lease. `rack` is that of this node, if consumers may read from the nearest
        replica. `replicas` are those of a topic without a number, if there are as many nodes.
        """
        self._replicas = replicas
        self._state = state
        self._node_id = node_id
        self._leading_life = leading_life
        self._topics = topics
        self._coordinator_partition = coordinator_partition
        self._rack = rack

    @property
    def controller_id(self) -> int:
        return self._state.controller_id

    @property
    def is_cut_off(self) -> bool:
        return self._leading_life() is None

    @property
    def default_replication_factor(self) -> int:
        return default_factor(len(self._state.nodes), self._replicas)

    def min_insync_replicas(self, topic: str) -> int:
        found = self._topics.get(topic)
        state = self._state.partitions.get(PartitionId(found.id, 0))
        replicas = (
            factor_of(found.row, len(self._state.nodes), self._replicas)
            if state is None
            else len(state.target)
        )
        return min_insync_of(found, replicas)

    def nodes(self) -> Sequence[BrokerNode]:
        rows = sorted(self._state.nodes.items())
        return [BrokerNode(node_id, row.kafka_endpoint, row.rack) for node_id, row in rows]

    def node(self, node_id: int) -> BrokerNode | None:
        row = self._state.nodes.get(node_id)
        return None if row is None else BrokerNode(node_id, row.kafka_endpoint, row.rack)

    def placement(self, topic: str, index: int) -> PartitionPlacement:
        found = self._topics.get(topic)
        found.partition(index)
        state = self._state.partitions.get(PartitionId(found.id, index))
        if state is None:
            return PartitionPlacement(NO_NODE, -1, (), ())
        nodes = self._state.nodes
        # Without its lease this node leads nothing, and may not have heard who was elected instead.
        # Clients that it sent to itself would be refused, ask it again, and never look elsewhere.
        is_deposed = (
            state.leader == self._node_id and state.leader_broker_epoch != self._leading_life()
        )
        is_led = state.leader in nodes and not is_deposed
        return PartitionPlacement(
            leader=state.leader if is_led else NO_NODE,
            leader_epoch=state.leader_epoch,
            replicas=state.replicas,
            isr=state.in_sync_nodes,
            offline=tuple(node for node in state.replicas if node not in nodes),
        )

    def coordinator_of(self, kind: CoordinatorKind, key: str) -> BrokerNode | None:
        topic, index = self._coordinator_partition(kind, key)
        if self._topics.find(topic) is None:
            return None
        return self.node(self.placement(topic, index).leader)

    def serves_rack(self, rack: str) -> bool:
        return rack == self._rack

    def nearest_replica(self, topic: str, index: int, rack: str) -> int:
        if self._rack is None:
            return NO_NODE
        placement = self.placement(topic, index)
        nodes = self._state.nodes
        near = [n for n in placement.isr if n in nodes and nodes[n].rack == rack]
        if not near or placement.leader in near:
            return NO_NODE
        return near[index % len(near)]  # Partitions are spread over the replicas of a rack.
