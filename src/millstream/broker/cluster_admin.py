"""Administration of the cluster: who leads, and where replicas are.

The broker defines this interface; `cluster` implements it. Any node takes a request: the change is
a transaction of the metadata store, and the nodes concerned carry it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, Protocol

from millstream.broker.cluster_view import UNKNOWN_EPOCH
from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topics import Topics
from millstream.config.schema import Endpoint
from millstream.errors import ElectionNotNeeded, InvalidAssignment, InvalidRequest, NoReassignment
from millstream.records.topic_partition import TopicPartition


class Reassignment(NamedTuple):
    """A partition whose replicas are being moved."""

    partition: TopicPartition
    replicas: Sequence[int]
    """All replicas, also those that are added and removed."""
    adding: Sequence[int]
    removing: Sequence[int]


class LeaderElection(NamedTuple):
    """A leader that was elected on request."""

    partition: TopicPartition
    leader: int
    leader_epoch: int
    former_isr: Sequence[int] = ()
    """Nodes that had every committed record, if the election was unclean: the leader may lack
    some, and these are lost.
    """


class ReplicaMove(NamedTuple):
    """New replicas of a partition."""

    partition: TopicPartition
    before: Sequence[int]
    after: Sequence[int]


class NodeRemoval(NamedTuple):
    """Progress of removing a node from the cluster."""

    node_id: int
    replicas_left: int
    """Replicas that the node still has. At 0 it can be stopped for good."""
    moves: Sequence[ReplicaMove] = ()
    """What this request has begun to move, or would."""


class NodeStatus(NamedTuple):
    """A node of the cluster, as the node that was asked sees it."""

    node_id: int
    is_alive: bool
    """False for a node that is not registered and still has replicas."""
    is_controller: bool = False
    is_stopping: bool = False
    is_removed: bool = False
    """Whether an operator is removing it from the cluster."""
    kafka: str | None = None
    http: str | None = None
    peer: str | None = None
    rack: str | None = None
    release: str | None = None
    started_ms: int | None = None
    broker_epoch: int | None = None
    leaders: int = 0
    """Partitions that it leads."""
    replicas: int = 0
    drift_ms: int | None = None
    """How far its clock is ahead; None if there is no connection to it."""
    breaker: str | None = None
    """State of the circuit breaker for it; None if nothing was sent to it yet."""


class PartitionStatus(NamedTuple):
    """Where a partition is, as the metadata store has it."""

    partition: TopicPartition
    leader: int
    """-1 if there is none."""
    leader_epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]
    min_insync: int
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()
    offline: Sequence[int] = ()
    """Replicas whose nodes are not alive."""
    unclean_epochs: Sequence[int] = ()
    """Leader epochs that began with an unclean election, the newest last."""

    @property
    def target(self) -> Sequence[int]:
        """The replicas after the reassignment in progress, if there is one."""
        return [node for node in self.replicas if node not in self.removing]

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync that is to stay."""
        return bool(set(self.replicas) - set(self.removing) - set(self.isr))


class FollowerStatus(NamedTuple):
    """A follower, as the leader of its partition knows it."""

    node_id: int
    end_offset: int | None
    """End of its log; None before its first fetch."""
    lag_records: int | None
    lag_seconds: float


class ResyncStatus(NamedTuple):
    """A replica that copies whole segments from another node."""

    source: int
    """The node that they come from."""
    bytes_total: int
    bytes_left: int


class ReplicaStatus(NamedTuple):
    """The replica that this node has of a partition."""

    partition: TopicPartition
    is_leader: bool
    start_offset: int
    end_offset: int
    high_watermark: int
    bytes: int
    problem: str | None = None
    followers: Sequence[FollowerStatus] = ()
    """Empty unless this node leads."""
    resync: ResyncStatus | None = None
    """Set while it copies whole segments."""


class ClusterAdmin(Protocol):
    """The cluster as operators see it, and the changes that they ask for."""

    def nodes(self) -> Sequence[NodeStatus]:
        """Return all nodes, in order of their ids."""
        ...

    def trip_breaker(self, node_id: int) -> str | None:
        """Let this node send no more requests to another one until `reset_breaker`.

        Requests in flight are finished. Returns the state of the breaker, and raises
        `InvalidRequest` unless the node is another one of the cluster.
        """
        ...

    def reset_breaker(self, node_id: int) -> str | None:
        """Let this node send requests to another one again; return the state of the breaker."""
        ...

    def partition(self, topic: str, index: int) -> PartitionStatus:
        """Return where a partition is."""
        ...

    def replica(self, topic: str, index: int) -> ReplicaStatus | None:
        """Return the replica that this node has of a partition; None if it has none."""
        ...

    def resyncs(self) -> Sequence[ResyncStatus]:
        """Return the copies of whole segments that are under way on this node."""
        ...

    async def elect_preferred(self, topic: str, index: int) -> LeaderElection:
        """Let the first replica of a partition lead it; return when it does.

        Raises `ElectionNotNeeded` if it leads already, and `NoEligibleLeader` if it cannot.
        """
        ...

    async def elect_uncleanly(
        self, topic: str, index: int, leader: int | None = None
    ) -> LeaderElection:
        """Let a replica lead that may lack committed records, which are lost then.

        `leader` is the first live replica unless it is given. Raises `ElectionNotNeeded` if another
        node can lead without loss, and `NoEligibleLeader` if no replica is alive.
        """
        ...

    async def reassign(
        self,
        topic: str,
        index: int,
        replicas: Sequence[int] | None,
        *,
        may_change_factor: bool = True,
    ) -> None:
        """Begin to move a partition to the nodes `replicas`; None cancels a move.

        Raises `InvalidAssignment`, or `NoReassignment` if there is nothing to cancel.
        """
        ...

    def reassignments(self) -> Sequence[Reassignment]:
        """Return the partitions that are being moved now."""
        ...

    async def rebalance(
        self, sizes: Mapping[TopicPartition, int], *, moves_max: int, is_dry_run: bool
    ) -> Sequence[ReplicaMove]:
        """Begin to move replicas from the nodes with the most data to those with the least.

        `sizes` are the bytes of the partitions.
        """
        ...

    async def remove_node(self, node_id: int, *, may_shrink: bool, is_dry_run: bool) -> NodeRemoval:
        """Begin to move all replicas away from a node, which gets no new ones.

        If the other nodes are too few, partitions lose a replica if they `may_shrink`; otherwise
        raises `InvalidReplication`, and nothing is moved. Repeating it returns the progress.
        """
        ...

    async def keep_node(self, node_id: int) -> None:
        """Cancel the removal of a node. Replicas that were moved away stay where they are."""
        ...


def replica_status(
    partition: Partition,
    *,
    is_leader: bool,
    problem: str | None = None,
    followers: Sequence[FollowerStatus] = (),
    resync: ResyncStatus | None = None,
) -> ReplicaStatus | None:
    """Describe a replica; None if its log is not open."""
    if not partition.is_open:
        return None
    log = partition.log
    return ReplicaStatus(
        TopicPartition(partition.topic, partition.index),
        is_leader=is_leader,
        start_offset=log.start_offset,
        end_offset=log.next_offset,
        high_watermark=partition.high_watermark,
        bytes=sum(segment.size for segment in log.segments),
        problem=problem,
        followers=followers,
        resync=resync,
    )


class LoneNodeAdmin:
    """`ClusterAdmin` of a node without a cluster."""

    def __init__(self, node_id: int, topics: Topics, addresses: Callable[[], Endpoint]) -> None:
        """Make it; `addresses` returns the address that Kafka clients connect to."""
        self._node_id = node_id
        self._topics = topics
        self._advertised = addresses

    def nodes(self) -> Sequence[NodeStatus]:
        count = self._topics.partition_count
        return (
            NodeStatus(
                self._node_id,
                is_alive=True,
                is_controller=True,
                kafka=str(self._advertised()),
                leaders=count,
                replicas=count,
            ),
        )

    def trip_breaker(self, node_id: int) -> str | None:
        self._refuse_breaker(node_id)

    def reset_breaker(self, node_id: int) -> str | None:
        self._refuse_breaker(node_id)

    def _refuse_breaker(self, node_id: int) -> NoReturn:
        raise InvalidRequest(f"there is no circuit breaker for node {node_id}: the node is alone")

    def partition(self, topic: str, index: int) -> PartitionStatus:
        partition = self._topics.partition(topic, index)
        epoch = partition.offsets.leader_epoch if partition.is_open else UNKNOWN_EPOCH
        own = (self._node_id,)
        name = TopicPartition(topic, index)
        return PartitionStatus(name, self._node_id, epoch, own, own, min_insync=1)

    def replica(self, topic: str, index: int) -> ReplicaStatus | None:
        return replica_status(self._topics.partition(topic, index), is_leader=True)

    def resyncs(self) -> Sequence[ResyncStatus]:
        return ()

    async def elect_preferred(self, topic: str, index: int) -> LeaderElection:
        self._refuse_election(topic, index)

    async def elect_uncleanly(
        self,
        topic: str,
        index: int,
        leader: int | None = None,  # noqa: ARG002
    ) -> LeaderElection:
        self._refuse_election(topic, index)

    def _refuse_election(self, topic: str, index: int) -> NoReturn:
        self._topics.partition(topic, index)
        raise ElectionNotNeeded(f"{topic}/{index} is led by node {self._node_id}, as it should")

    async def reassign(
        self,
        topic: str,
        index: int,
        replicas: Sequence[int] | None,
        *,
        may_change_factor: bool = True,  # noqa: ARG002
    ) -> None:
        self._topics.partition(topic, index)
        if replicas is None:
            raise NoReassignment(f"{topic}/{index} is not being reassigned")
        if tuple(replicas) != (self._node_id,):
            raise InvalidAssignment(
                f"replicas must be on nodes [{self._node_id}], got {list(replicas)}"
            )

    def reassignments(self) -> Sequence[Reassignment]:
        return ()

    async def rebalance(
        self,
        sizes: Mapping[TopicPartition, int],  # noqa: ARG002
        *,
        moves_max: int,  # noqa: ARG002
        is_dry_run: bool,  # noqa: ARG002
    ) -> Sequence[ReplicaMove]:
        return ()

    async def remove_node(
        self,
        node_id: int,
        *,
        may_shrink: bool,  # noqa: ARG002
        is_dry_run: bool,  # noqa: ARG002
    ) -> NodeRemoval:
        raise InvalidRequest(f"node {node_id} cannot be removed: the node is alone")

    async def keep_node(self, node_id: int) -> None:
        raise InvalidRequest(f"node {node_id} is not being removed: the node is alone")
