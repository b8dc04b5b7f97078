"""Fetch of a follower, and what the leader answers."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from millstream.cluster.epochs import NO_EPOCH


class ReplicaFetch(NamedTuple):
    """A fetch of a follower, for one partition."""

    node: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    """The end of the follower's log: everything before it is synced."""
    last_epoch: int
    """Epoch of the follower's last record, or `NO_EPOCH` if its log is empty."""
    revision: int = 0
    """Revision of the newest state of the partition that the follower knows."""


class FetchKind(IntEnum):
    """What to answer to a follower."""

    SERVE = 0
    """Records from the offset of the request on; none if it is the end of the log."""
    DIVERGING = 1
    """The logs differ: the follower has to cut its log. `epoch` and `offset` say where."""
    OUT_OF_RANGE = 2
    """The leader does not have the offset any more. `offset` is the start of its log."""
    NOT_LEADER = 3
    FENCED_LEADER_EPOCH = 4
    """The follower is in an older epoch: it has to read the metadata again."""
    UNKNOWN_LEADER_EPOCH = 5
    """The follower is in a newer epoch: this leader may have been deposed."""
    FENCED_BROKER_EPOCH = 6
    """The request is from an earlier life of the node."""
    NOT_A_REPLICA = 7


class FetchDecision(NamedTuple):
    """The answer to a follower's fetch."""

    kind: FetchKind
    epoch: int = NO_EPOCH
    offset: int = 0


SERVE = FetchDecision(FetchKind.SERVE)
NOT_LEADER = FetchDecision(FetchKind.NOT_LEADER)
FENCED_LEADER_EPOCH = FetchDecision(FetchKind.FENCED_LEADER_EPOCH)
UNKNOWN_LEADER_EPOCH = FetchDecision(FetchKind.UNKNOWN_LEADER_EPOCH)
FENCED_BROKER_EPOCH = FetchDecision(FetchKind.FENCED_BROKER_EPOCH)
NOT_A_REPLICA = FetchDecision(FetchKind.NOT_A_REPLICA)
