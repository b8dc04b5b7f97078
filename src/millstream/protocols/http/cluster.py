"""Messages about a cluster: its nodes, where partitions are, and changes of that."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

PARTITIONS_PAGE_MAX = 1_000
"""Partitions in one response."""

CHANGES_MAX = 1_000
"""Partitions in one request that changes them."""

_NODES_MAX = 1_000

NodeId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TopicText = Annotated[str, Meta(min_length=1, max_length=249)]
PartitionIndex = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ClusterNodeShape(Struct, kw_only=True):
    """A node of the cluster, as the node that was asked sees it."""

    node_id: int
    is_alive: bool
    """False for a node that is not registered and still has replicas."""
    is_controller: bool
    is_stopping: bool
    is_removed: bool
    """Whether an operator is removing it from the cluster."""
    kafka: str | None
    """Address for Kafka clients."""
    http: str | None
    """URL of its HTTP server."""
    peer: str | None
    """Address for other nodes."""
    rack: str | None
    release: str | None
    started_at: int | None
    broker_epoch: int | None
    """Number of its life: another one after each start."""
    leaders: int
    """Partitions that it leads."""
    replicas: int
    drift_ms: int | None
    """How far its clock is ahead of that of the node that was asked; null if they are not
    connected."""
    breaker: str | None
    """Circuit breaker for requests to it: `closed`, `open`, `half_open`, or `tripped` by an
    operator; null if there was no request."""


class ClusterAnswer(Struct, kw_only=True):
    """The cluster: its nodes, and how many partitions are well."""

    cluster: str
    """The id of the cluster."""
    node_id: int
    """The node that answers."""
    controller: int | None
    """The node that elects leaders; null if there is none now."""
    nodes: list[ClusterNodeShape]
    partitions: int
    offline: int
    """Partitions without a leader: nothing can be read or written."""
    under_min_insync: int
    """Partitions with too few replicas in sync for `acks=all`."""
    under_replicated: int
    """Partitions with a replica that is not in sync."""
    reassigning: int
    """Partitions whose replicas are being moved."""
    resyncing: int
    """Replicas on the node that answers that copy whole segments from other nodes."""
    resync_bytes_left: int
    """Bytes that they have still to copy."""
    problems: list[str]
    warnings: list[str]
    """What works, and needs attention: two nodes or two replicas, which do not survive the loss of
    a node as operators expect; clocks that differ by 100 ms or more; a breaker that was tripped."""


class FollowerShape(Struct, kw_only=True):
    """One replica of a partition."""

    node_id: int
    is_alive: bool
    is_in_sync: bool
    end: int | None
    """End of its log, as far as the leader knows; null if that is not known."""
    lag_records: int | None
    """Records that it does not have yet; 0 for the leader."""
    lag_ms: int | None
    """For how long it has not been at the leader's end."""
    resync_bytes_left: int | None
    """Bytes of whole segments that it has still to copy; null unless it copies them."""


class ClusterPartitionShape(Struct, kw_only=True):
    """A partition: who leads it, and how far its replicas are."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    isr: list[int]
    """Nodes that have every committed record."""
    replicas: list[int]
    """All replicas; the first is the preferred leader."""
    adding: list[int]
    removing: list[int]
    min_insync: int
    first_live_offset: int | None
    """Null if the leader did not answer, as are the other offsets and sizes."""
    high_watermark: int | None
    """End of what is committed, and of what readers see."""
    end: int | None
    bytes: int | None
    followers: list[FollowerShape]
    """All replicas, in the order of `replicas`."""
    problems: list[str]


class ClusterPartitionsAnswer(Struct, kw_only=True):
    """A page of partitions, sorted by topic and number."""

    partitions: list[ClusterPartitionShape]
    next: str | None
    """`after` of the next page; null if this is the last one."""


class ClusterPartitionsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The partitions to list."""

    topic: Annotated[str, Meta(max_length=249, description="Only partitions of this topic.")] = ""
    after: Annotated[
        str,
        Meta(
            max_length=300,
            pattern=r"^([a-zA-Z0-9._-]+/[0-9]{1,10})?$",
            description="`next` of the page before: topic/partition.",
        ),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=PARTITIONS_PAGE_MAX, description="Maximum number of partitions.")
    ] = 100


class ReplicaFollowerShape(Struct, kw_only=True):
    """A follower, as its leader knows it."""

    node_id: int
    end: int | None
    lag_records: int | None
    lag_ms: int


class ResyncShape(Struct, kw_only=True):
    """A copy of whole segments that is under way."""

    source: int
    """The node that they come from."""
    bytes_total: int
    bytes_left: int


class ReplicaShape(Struct, kw_only=True):
    """The replica that a node has of a partition."""

    topic: str
    partition: int
    is_leader: bool
    first_live_offset: int
    high_watermark: int
    end: int
    bytes: int
    problem: str | None
    followers: list[ReplicaFollowerShape]
    """Empty unless the node leads."""
    resync: ResyncShape | None = None
    """Set while the replica copies whole segments."""


class ReplicasAnswer(Struct, kw_only=True):
    """Replicas of one node, among a page of partitions."""

    node_id: int
    replicas: list[ReplicaShape]
    next: str | None


class ReplicaSegmentsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The replica to check, and which part of it."""

    node: Annotated[NodeId, Meta(description="The node whose replica is checked.")]
    topic: TopicText
    partition: PartitionIndex
    from_: Annotated[
        int,
        Meta(ge=0, le=2**63 - 1, description="Begin with the segment that has this offset."),
    ] = field(default=0, name="from")
    until: Annotated[
        int,
        Meta(
            ge=0,
            le=2**63 - 1,
            description="Stop before this offset, or at the high watermark if that is lower.",
        ),
    ] = 2**63 - 1


class DamagedRangeShape(Struct, kw_only=True):
    """Consecutive offsets whose records are damaged or missing."""

    from_: int = field(name="from")
    to: int
    reason: str


class CheckedSegmentShape(Struct, kw_only=True):
    """A segment of a replica, after all its bytes were read; or a hole between two."""

    base: int
    """Its first offset."""
    next: int
    """The offset after the last one that was checked."""
    generation: int
    """How often it was cleaned."""
    bytes: int
    digest: str
    """Equal on two nodes if both have the same bytes; without a meaning if there is damage."""
    damage: list[DamagedRangeShape]


class ReplicaSegmentsAnswer(Struct, kw_only=True):
    """Segments of one replica, oldest first."""

    node_id: int
    topic: str
    partition: int
    is_leader: bool
    is_cleaned: bool
    """Whether segments may have been cleaned: then the bytes of replicas differ, and not their
    records."""
    first_live_offset: int
    high_watermark: int
    segments: list[CheckedSegmentShape]
    next: int | None
    """`from` of the next segments; null if these are the last."""


class PartitionName(Struct, kw_only=True, forbid_unknown_fields=True):
    """A partition."""

    topic: TopicText
    partition: PartitionIndex


class ReassignedPartition(Struct, kw_only=True, forbid_unknown_fields=True):
    """New replicas of a partition."""

    topic: TopicText
    partition: PartitionIndex
    replicas: Annotated[list[NodeId], Meta(min_length=1, max_length=_NODES_MAX)] | None
    """Node ids; the first is the preferred leader. Null cancels a move in progress."""


class ReassignBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Partitions to move."""

    partitions: Annotated[list[ReassignedPartition], Meta(min_length=1, max_length=CHANGES_MAX)]


class MoveShape(Struct, kw_only=True):
    """A partition that moves to other nodes."""

    topic: str
    partition: int
    before: list[int]
    after: list[int]


class MovesAnswer(Struct, kw_only=True):
    """Moves that have begun, or would. `GET /v1/cluster` tells how many are left."""

    moves: list[MoveShape]


class RebalanceBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to rebalance."""

    moves_max: Annotated[int, Meta(ge=1, le=CHANGES_MAX)] = 100
    """Maximum number of replicas to move."""
    dry_run: bool = False
    """Whether to return the moves without making them."""


class ElectBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Partitions that should get another leader."""

    partitions: Annotated[list[PartitionName], Meta(min_length=1, max_length=CHANGES_MAX)]
    unclean: bool = False
    """Whether to elect a replica that is not in sync, if there is no other: committed records are
    lost."""
    leader: NodeId | None = None
    """The replica to elect uncleanly; the first live one if it is left out."""


class ElectionShape(Struct, kw_only=True):
    """The election in one partition."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    is_elected: bool
    """False if the partition already had the leader that it should have."""
    former_isr: list[int]
    """After an unclean election: the nodes that had every committed record."""


class ElectionsAnswer(Struct, kw_only=True):
    """Elections in all partitions of the request."""

    elections: list[ElectionShape]


class BreakerBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to do with the circuit breaker for a node."""

    action: Literal["trip", "reset"]
    """`trip` sends no more requests to the node until `reset`."""
    everywhere: bool = False
    """Whether to do it at all live nodes, instead of the one that is asked."""


class BreakerShape(Struct, kw_only=True):
    """The circuit breaker that one node has for another."""

    node_id: int
    """The node that has it."""
    breaker: str | None
    """Its state; null if that node could not be asked."""
    error: str | None = None
    """Why it could not be asked."""


class BreakersAnswer(Struct, kw_only=True):
    """The circuit breakers for a node, at the nodes that were asked."""

    node_id: int
    """The node that requests are sent to, or not."""
    breakers: list[BreakerShape]


class RemoveNodeQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How to remove a node."""

    shrink: Annotated[
        bool,
        Meta(description="Whether partitions may lose a replica if the other nodes are too few."),
    ] = False
    dry_run: Annotated[
        bool, Meta(description="Whether to return the moves without making them.")
    ] = False
    cancel: Annotated[bool, Meta(description="Whether to keep the node instead.")] = False


class RemovalProgress(Struct, kw_only=True):
    """Progress of removing a node."""

    node_id: int
    replicas_left: int
    """Replicas that the node still has. At 0 it can be stopped for good."""
    moves: list[MoveShape]
    """What this request has begun to move, or would."""
