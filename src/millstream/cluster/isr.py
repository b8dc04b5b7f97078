"""Membership in the in-sync replicas (ISR): progress of followers, limits, and the next ISR.

Safety is one rule: a member of the ISR has every committed record. `may_join` states it for a
follower that comes in; a member that leaves only has to leave in the metadata store before the
leader stops waiting for it. Everything else here is policy: it decides when a change is worth it,
and may be changed without harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millstream.cluster.replication_state import NO_LIFE, IsrMember

NEVER = float("inf")
UNKNOWN_END = -1
UNKNOWN_REVISION = -1


@dataclass(frozen=True, slots=True)
class IsrPolicy:
    """When replicas leave and join, and how often."""

    lag_seconds_min: float = 0.5
    """A follower may be behind the leader's end for this long, whatever its peers do."""

    lag_factor: float = 8.0
    """And for this many times the median of its peers: if all are slow, none is to blame."""

    good_fetches_min: int = 10
    """Fetches in a row that a follower needs before it joins."""

    change_interval_seconds: float = 5.0
    """Time between two changes of one partition."""

    hand_over_seconds: float = 5.0
    """Time in which a successor has to catch up. Then the leader continues."""


class FollowerProgress:
    """What a leader knows of one follower in its own epoch."""

    __slots__ = (
        "behind_since",
        "broker_epoch",
        "end",
        "fetched_at",
        "good_fetches",
        "is_gone",
        "leader_end_at_fetch",
        "node",
        "revision",
    )

    def __init__(self, node: int, leader_end: int, now: float) -> None:
        self.node = node
        self.broker_epoch = 0
        """The life of the node that fetches; 0 before its first fetch."""
        self.end = UNKNOWN_END
        """End of the follower's log, synced, as its last fetch told."""
        self.behind_since = now
        """Since when it has not been at the leader's end; `NEVER` if it is there."""
        self.fetched_at = now
        self.leader_end_at_fetch = leader_end
        self.good_fetches = 0
        self.is_gone = False
        """Whether the node's registration is gone."""
        self.revision = UNKNOWN_REVISION
        """Revision of the state that it knew at its last fetch."""

    def begin_life(self, broker_epoch: int, leader_end: int, now: float) -> None:
        """Forget everything: the node was started again, and its disk may be another one."""
        self.broker_epoch = broker_epoch
        self.end = UNKNOWN_END
        self.behind_since = now
        self.fetched_at = now
        self.leader_end_at_fetch = leader_end
        self.good_fetches = 0
        self.is_gone = False
        self.revision = UNKNOWN_REVISION

    def fetched(
        self, offset: int, leader_end: int, good_fetches_max: int, now: float, *, revision: int
    ) -> None:
        """Note a fetch: everything before `offset` is synced at the follower.

        `revision` is that of the newest state which the follower knew when it sent the fetch.
        """
        self.end = offset
        self.revision = revision
        if offset >= leader_end:
            self.behind_since = NEVER
        elif offset >= self.leader_end_at_fetch:
            # It has what was there when it asked last. New records arrive all the time.
            self.behind_since = max(self.behind_since, self.fetched_at)
        else:
            self.good_fetches = -1
        if self.good_fetches < good_fetches_max:
            self.good_fetches += 1
        self.leader_end_at_fetch = leader_end
        self.fetched_at = now

    def lag(self, now: float) -> float:
        """Return for how many seconds it has been behind the leader's end."""
        return max(now - self.behind_since, 0.0) if self.behind_since != NEVER else 0.0


def lag_limit(policy: IsrPolicy, peer_lags: Sequence[float]) -> float:
    """Return for how long a follower may be behind, given the lags of the others."""
    if not peer_lags:
        return policy.lag_seconds_min
    ordered = sorted(peer_lags)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return max(policy.lag_seconds_min, policy.lag_factor * median)


def may_join(
    follower: FollowerProgress, *, high_watermark: int, epoch_start: int, revision: int
) -> bool:
    """Whether a follower has every committed record.

    Its log agrees with the leader's up to its end, because its fetch was checked. The leader's
    high watermark may be lower than what an earlier leader committed, until it has reached the
    start of this epoch; but everything that was ever committed is before that start.

    A follower that loses records afterwards moves the revision of the state before it goes on
    (`repair.py`). So its last fetch must name the state at `revision`, which the leader has: an
    older fetch may tell of records that are gone, and a proposal for an older state is refused.
    """
    has_records = follower.end >= high_watermark and follower.end >= epoch_start
    return has_records and follower.revision >= revision


def next_isr(
    current: Sequence[IsrMember],
    *,
    replicas: Sequence[int],
    leaving: Sequence[int],
    joining: Iterable[IsrMember],
    min_insync: int,
) -> tuple[IsrMember, ...]:
    """Return the ISR after nodes left and joined.

    It does not become smaller than `min_insync`: then some of `leaving` stay, the last of them
    first. So list those that are furthest behind first. Members in no life do not have every
    committed record, so they do not let one leave that has.
    """
    members = {member.node: member for member in current}
    members.update((member.node, member) for member in joining)
    for node in leaving:
        member = members.get(node)
        if member is None:
            continue
        is_counted = member.broker_epoch != NO_LIFE
        alike = [m for m in members.values() if m.broker_epoch != NO_LIFE or not is_counted]
        if len(alike) > min_insync:
            del members[node]
    return tuple(members[node] for node in replicas if node in members)


class IsrChangeLimiter:
    """Limit of ISR changes of one node. All its leaders share it.

    A node that is slow as a whole must not flood the metadata store.
    """

    __slots__ = ("_available", "_updated_at", "per_second")

    def __init__(self, per_second: float = 50.0) -> None:
        self.per_second = per_second
        self._available = per_second
        self._updated_at = float("-inf")

    def take(self, now: float) -> bool:
        """Return whether a change may be proposed now, and count it."""
        if now > self._updated_at:
            gained = (now - self._updated_at) * self.per_second
            self._available = min(self._available + gained, self.per_second)
            self._updated_at = now
        if self._available < 1:
            return False
        self._available -= 1
        return True
