"""What is wrong with a node, in codes that programs know and sentences that people read.

Some problems leave a node ready: one topic of many is lost to its own clients only, and from a full
disk everything can still be read. The others keep it from doing its work for anyone, so that nobody
should be sent to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class ProblemCode(enum.Enum):
    """Which problem it is. A code keeps its name and its meaning."""

    STARTING = "starting"
    """The data is being opened, or the doors are."""

    STOPPING = "stopping"
    """The node was told to stop: it still answers, and takes no more soon."""

    STATE_OFFLINE = "state_offline"
    """A log of groups, transactions, queues or streams takes nothing after a failed sync. All of
    them rest on the same disk; a restart opens them again."""

    METADATA_OFFLINE = "metadata_offline"
    """Topics and settings can be read, and not changed, after a failed write. A restart opens the
    file again."""

    DESCRIPTORS_EXHAUSTED = "descriptors_exhausted"
    """The process has as many files and sockets open as it may: nobody can connect."""

    LOOP_LATE = "loop_late"
    """The event loop comes late, time after time: whoever asks waits for long."""

    LOG_OFFLINE = "log_offline"
    """The log of one partition takes no appends after a failed sync; the others do."""

    LOG_DAMAGED = "log_damaged"
    """Part of the log of one partition is lost, or cannot be read; the rest of it can."""

    QUEUE_REFUSED = "queue_refused"
    """One queue cannot be used, because its log is damaged."""

    DISK_FULL = "disk_full"
    """The disk had no room for what was to be written last. Reading goes on, and retention makes
    room; it is told until something is written again, or room is found."""

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
    }
)

LISTED_MAX = 20
"""How many problems are told: enough to act on, where a disk has taken a thousand logs along."""


class Problem(NamedTuple):
    """One thing that is wrong."""

    code: ProblemCode
    message: str


def listed_problems(found: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems that are told: those that keep a node from being ready come first."""
    return tuple(sorted(found, key=lambda one: not one.code.is_blocking)[:LISTED_MAX])
