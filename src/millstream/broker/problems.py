"""Problems of a node, as codes for programs and sentences for people.

Some problems leave a node ready: one topic of many is unavailable to its own clients only, and on a
full disk everything can still be read. The others prevent it from working for any client, so that
no requests should be sent to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class ProblemCode(enum.Enum):
    """Identifies a problem. A code keeps its name and its meaning."""

    STARTING = "starting"
    """The data or the listeners are being opened."""

    STOPPING = "stopping"
    """The node is stopping: it still responds, but will soon accept no more requests."""

    STATE_OFFLINE = "state_offline"
    """A log of groups, transactions, queues or streams accepts nothing after a failed sync. All
    of them are on the same disk; a restart opens them again."""

    METADATA_OFFLINE = "metadata_offline"
    """Topics and settings can be read, but not changed, after a failed write. A restart opens
    the file again."""

    DESCRIPTORS_EXHAUSTED = "descriptors_exhausted"
    """The process has as many files and sockets open as it may: no client can connect."""

    LOOP_LATE = "loop_late"
    """The event loop is late again and again: every client waits for a long time."""

    LOG_OFFLINE = "log_offline"
    """The log of one partition accepts no appends after a failed sync; the others do."""

    LOG_DAMAGED = "log_damaged"
    """Part of the log of one partition is lost or unreadable; the remaining part can be read."""

    TOPIC_UNKNOWN = "topic_unknown"
    """Records of a topic are stored that is not in the metadata: part of the metadata is lost."""

    QUEUE_REFUSED = "queue_refused"
    """One queue cannot be used, because its log is damaged."""

    DISK_FULL = "disk_full"
    """The last write failed because the disk was full. Reads continue, and retention frees
    space; the problem is reported until a write succeeds or there is free space."""

    TRANSACTION_OPEN = "transaction_open"
    """A transaction has been open for more than a minute: readers of committed records do not see
    what was written after it to the same partitions."""

    LAKE_BEHIND = "lake_behind"
    """Retention of a topic waits until its lake table has the records that it would delete. The log
    grows until then."""

    QUORUM_LOST = "quorum_lost"
    """The node cannot renew its registration in the metadata of the cluster: it leads nothing, and
    others take its place. It serves what it may until it is back."""

    ISR_SMALL = "isr_small"
    """Too few replicas of a partition that this node leads are in sync: writes with `acks=all` are
    refused."""

    REPLICA_STOPPED = "replica_stopped"
    """A replica on this node does not follow its leader any more; its log is not what the leader
    has."""

    REPLICA_BEHIND = "replica_behind"
    """A live replica of a partition that this node leads is not in sync."""

    RESYNCING = "resyncing"
    """A replica on this node copies whole segments from another one, and is not in sync yet."""

    TIER_UNAVAILABLE = "tier_unavailable"
    """The cold store did not return a segment, or did not take one. Readers of old records are told
    to try again, and what could not be moved stays on the local disk."""

    CLOCK_DRIFT = "clock_drift"
    """The clock of another node differs from that of this one by a second or more."""

    @property
    def is_blocking(self) -> bool:
        """Whether the node is not ready while it has this problem."""
        return self in _BLOCKING


_BLOCKING = frozenset(
    {
        ProblemCode.STARTING,
        ProblemCode.STOPPING,
        ProblemCode.STATE_OFFLINE,
        ProblemCode.METADATA_OFFLINE,
        ProblemCode.DESCRIPTORS_EXHAUSTED,
        ProblemCode.LOOP_LATE,
        ProblemCode.QUORUM_LOST,
    }
)

LISTED_MAX = 20
"""Number of problems that are reported: enough to act on if a disk failure affects a thousand
logs."""


class Problem(NamedTuple):
    code: ProblemCode
    message: str


def listed_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems to report: those that keep a node from being ready come first."""
    return tuple(sorted(problems, key=lambda problem: not problem.code.is_blocking)[:LISTED_MAX])
