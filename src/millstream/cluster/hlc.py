"""Hybrid logical clock: timestamps that order what happened, and are close to wall time.

    63                          20                   0
    +---------------------------+--------------------+
    | milliseconds since 1970   | counter            |
    +---------------------------+--------------------+

A timestamp is later than all that its node has issued or received before. Nothing safe rests on it:
it orders events and traces of several nodes for people, and shows how far their clocks are apart. A
timestamp that is far ahead is not adopted, so that one wrong clock does not move all others.
"""

from __future__ import annotations

import enum
from typing import Final

COUNTER_BITS: Final = 20
AHEAD_MS_MAX: Final = 500
"""A timestamp that is further ahead of the wall clock is not adopted."""
GOOD_DRIFT_MS: Final = 100
ALARM_DRIFT_MS: Final = 1000


class DriftHealth(enum.Enum):
    """How far the clock of a peer is from ours."""

    GOOD = "good"
    """Less than 100 ms."""
    WARNING = "warning"
    """Less than a second."""
    ALARM = "alarm"
    """A second or more."""


def drift_health(drift_ms: int) -> DriftHealth:
    """Rate a drift, in either direction."""
    distance = abs(drift_ms)
    if distance < GOOD_DRIFT_MS:
        return DriftHealth.GOOD
    return DriftHealth.WARNING if distance < ALARM_DRIFT_MS else DriftHealth.ALARM


def drift_text(node_id: int, drift_ms: int) -> str:
    """Return a drift in words."""
    where = "ahead of" if drift_ms > 0 else "behind"
    return f"the clock of node {node_id} is {abs(drift_ms)} ms {where} that of this node"


class HybridClock:
    """The hybrid clock of one node. Pure: the caller passes the wall time."""

    __slots__ = ("last", "refused")

    def __init__(self) -> None:
        self.last = 0
        """The latest timestamp that was issued or adopted."""
        self.refused = 0
        """Timestamps of peers that were too far ahead."""

    def now(self, wall_ms: int) -> int:
        """Issue a timestamp that is later than all before."""
        self.last = max(self.last + 1, wall_ms << COUNTER_BITS)
        return self.last

    def observe(self, remote: int, wall_ms: int) -> int:
        """Adopt the timestamp of a peer unless it is too far ahead; return its drift in ms.

        The drift is the distance of the timestamp from the wall clock here, positive if it is
        ahead. The way of the message counts too, so a peer seems to be behind by as much.
        """
        drift_ms = (remote >> COUNTER_BITS) - wall_ms
        if drift_ms > AHEAD_MS_MAX:
            self.refused += 1
        elif remote > self.last:
            self.last = remote
        return drift_ms
