"""What the servers know of the cluster: its nodes, and where partitions and coordinators are.

The broker defines this interface; `cluster` implements it. A lone node is a cluster of one, which
leads every partition and coordinates everything.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from millstream.config.schema import Endpoint

NO_NODE = -1
"""In place of a node id: there is none, such as no leader."""

UNKNOWN_EPOCH = -1


class CoordinatorKind(enum.Enum):
    """What a node coordinates by hash of an id."""

    GROUP = "group"
    TRANSACTION = "transaction"


class BrokerNode(NamedTuple):
    """A node that is alive, with the address that Kafka clients connect to."""

    node_id: int
    kafka: Endpoint
    rack: str | None = None


class PartitionPlacement(NamedTuple):
    """Where a partition is."""

    leader: int
    """`NO_NODE` while there is none."""
    leader_epoch: int
    replicas: Sequence[int]
    """In order of preference: the first should lead."""
    isr: Sequence[int]
    offline: Sequence[int] = ()
    """Replicas whose nodes are not alive."""


class ClusterView(Protocol):
    """The cluster as this node sees it. Every method answers from memory."""

    @property
    def controller_id(self) -> int:
        """The node that administrates the cluster; `NO_NODE` if none does now."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether this node has no valid lease: it may not have heard who leads what."""
        ...

    @property
    def default_replication_factor(self) -> int:
        """Replicas of a topic that is created without a number."""
        ...

    def min_insync_replicas(self, topic: str) -> int:
        """Return how many replicas must have a record of a topic before `acks=all` is answered."""
        ...

    def nodes(self) -> Sequence[BrokerNode]:
        """Return the nodes that are alive, in order of their ids."""
        ...

    def node(self, node_id: int) -> BrokerNode | None:
        """Return a node if it is alive."""
        ...

    def placement(self, topic: str, index: int) -> PartitionPlacement:
        """Return where a partition is. Raises `UnknownTopic` if it does not exist."""
        ...

    def coordinator_of(self, kind: CoordinatorKind, key: str) -> BrokerNode | None:
        """Return the node that coordinates a group or a transactional id; None if none does now."""
        ...

    def serves_rack(self, rack: str) -> bool:
        """Return whether consumers in a rack may read replicas of this node that follow."""
        ...

    def nearest_replica(self, topic: str, index: int, rack: str) -> int:
        """Return the node from which consumers in a rack should read a partition.

        `NO_NODE` if that is the leader.
        """
        ...


class LoneNodeView:
    """The view of a node without a cluster."""

    def __init__(
        self,
        node_id: int,
        advertised: Callable[[], Endpoint],
        leader_epoch: Callable[[str, int], int],
    ) -> None:
        """Make the view; `leader_epoch` returns the epoch of a partition, -1 if it is not open."""
        self._node_id = node_id
        self._advertised = advertised
        self._leader_epoch = leader_epoch
        self._replicas = (node_id,)

    @property
    def controller_id(self) -> int:
        return self._node_id

    @property
    def is_cut_off(self) -> bool:
        return False

    @property
    def default_replication_factor(self) -> int:
        return 1

    def min_insync_replicas(self, topic: str) -> int:  # noqa: ARG002
        return 1

    def nodes(self) -> Sequence[BrokerNode]:
        return (BrokerNode(self._node_id, self._advertised()),)

    def node(self, node_id: int) -> BrokerNode | None:
        return self.nodes()[0] if node_id == self._node_id else None

    def placement(self, topic: str, index: int) -> PartitionPlacement:
        epoch = self._leader_epoch(topic, index)
        return PartitionPlacement(self._node_id, epoch, self._replicas, self._replicas)

    def coordinator_of(self, kind: CoordinatorKind, key: str) -> BrokerNode | None:  # noqa: ARG002
        return self.nodes()[0]

    def serves_rack(self, rack: str) -> bool:  # noqa: ARG002
        return False

    def nearest_replica(self, topic: str, index: int, rack: str) -> int:  # noqa: ARG002
        return NO_NODE
