"""What all replicas of a node share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.broker.topics.topic import Topic
from millstream.clock import Clock
from millstream.cluster.control.cluster_state import ClusterState
from millstream.cluster.control.membership import Membership
from millstream.cluster.control.proposer import Proposer
from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy
from millstream.cluster.replication.high_watermarks import HighWatermarks


@dataclass(slots=True)
class ReplicationCounters:
    """Counters of the replicas of a node."""

    leaders_begun: int = 0
    """How often this node has become the leader of a partition."""
    isr_shrinks: int = 0
    isr_growths: int = 0
    truncations: int = 0
    mismatches: int = 0
    """Slices that did not continue the log of a replica at the same position."""
    restarts: int = 0
    """Replicas that were emptied because their leader no longer had their end."""
    fetched_bytes: int = 0
    resync_bytes: int = 0
    """Bytes of whole segments that were copied from other nodes."""
    resync_segments: int = 0
    resync_refusals: int = 0
    """Copied segments that were not what the manifest said, and were thrown away."""
    served_resync_bytes: int = 0
    repairs: Counter[str] = field(default_factory=Counter)
    """Steps of repairs that were done, by step."""
    removed_replicas: int = 0
    """Replicas whose files were removed because they are on other nodes now."""
    served_bytes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """Fetches of followers that were not served, by reason."""
    internal_errors: int = 0
    """Unexpected errors in the work of one replica, each with its stack in the log: bugs."""


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """What all replicas of a node share."""

    node_id: int
    state: ClusterState
    membership: Membership
    proposer: Proposer
    policy: IsrPolicy
    limiter: IsrChangeLimiter
    clock: Clock
    min_insync: Callable[[Topic, int], int]
    """Returns the least number of replicas in sync, given the number of replicas."""
    high_watermarks: HighWatermarks
    counters: ReplicationCounters = field(default_factory=ReplicationCounters)
