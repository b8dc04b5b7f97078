"""A member of a consumer group (KIP-848), what it says, and what it is told."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from millstream.broker.groups.consumer.partition_set import PartitionSet, union

JOIN_EPOCH = 0
"""A member says so to join, with nothing in its hands."""

LEAVE_EPOCH = -1
"""A member says so to leave."""

LEAVE_STATIC_EPOCH = -2
"""A static member says so to leave and come back: its place is kept for the time of a session."""


class MemberState(enum.Enum):
    """How far a member is on its way to the target."""

    STABLE = "stable"
    """It has what it should have had by its epoch."""

    UNREVOKED = "unrevoked"
    """It was told to give partitions up, and has not said yet that it did."""

    UNRELEASED = "unreleased"
    """It has all that is free; others have not given up the rest of its target yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """What a member says. None stands for: as I said before."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    """Empty for none."""
    assignor: str | None = None
    owned: PartitionSet | None = None
    """What the member has in its hands, as it believes."""
    client_id: str = ""
    client_host: str = ""

    @property
    def is_leaving(self) -> bool:
        """Whether this is a farewell."""
        return self.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)

    @property
    def is_full(self) -> bool:
        """Whether all is said anew, as members do that join, or that missed an answer."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms is not None
            and not (self.topic_names is None and self.topic_regex is None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    """What the member is told."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: PartitionSet | None = None
    """What it may have in its hands from now on, and nothing else; None where that is as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member as the group knows it."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = 0
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    assignor: str | None = None
    client_id: str = ""
    client_host: str = ""

    joined_epoch: int = 0
    """The group's epoch that began when it joined. No two members have the same, so it puts them in
    order; a static member that comes back keeps it."""

    epoch: int = 0
    """How far the member is: it has, or had, what it should have had by this epoch of the group.
    -2 where a static member left and may come back."""

    previous_epoch: int = 0
    """The last epoch before this one of which the member itself spoke. It is still heard with that:
    the answer that told it of the present one may have been lost."""

    state: MemberState = MemberState.STABLE
    assigned: PartitionSet = field(default_factory=dict)
    """What it may have in its hands."""

    revoking: PartitionSet = field(default_factory=dict)
    """What it was told to give up, and may still have in its hands."""

    @property
    def held(self) -> PartitionSet:
        """What no one else may have yet."""
        return union(self.assigned, self.revoking)

    @property
    def wishes(self) -> tuple[frozenset[str], str, str | None]:
        """What it says about how the group is to be divided."""
        return self.topic_names, self.topic_regex, self.assignor

    @property
    def has_left(self) -> bool:
        """Whether it is a static member that is away."""
        return self.epoch == LEAVE_STATIC_EPOCH

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether it has exactly what it should have by `target_epoch`."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def updated(self, beat: ConsumerHeartbeat) -> ConsumerMember:
        """The member, with what `beat` says about it."""
        told = {
            "instance_id": beat.instance_id,
            "rack_id": beat.rack_id,
            "rebalance_timeout_ms": beat.rebalance_timeout_ms,
            "topic_names": beat.topic_names,
            "topic_regex": beat.topic_regex,
            "assignor": beat.assignor,
            "client_id": beat.client_id,
            "client_host": beat.client_host,
        }
        news = {
            name: value
            for name, value in told.items()
            if value is not None and value != getattr(self, name)
        }
        return replace(self, **news) if news else self  # type: ignore[arg-type]
