"""A member of a consumer group (KIP-848), its heartbeats and the answers to them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from millstream.broker.groups.consumer.partition_set import PartitionSet, union

JOIN_EPOCH = 0
"""Sent by a member that joins, and owns no partitions."""

LEAVE_EPOCH = -1
"""Sent by a member that leaves."""

LEAVE_STATIC_EPOCH = -2
"""Sent by a static member that leaves temporarily: its partitions are kept for one session."""


class MemberState(enum.Enum):
    """The progress of a member towards its target."""

    STABLE = "stable"
    """It has what it should have by its epoch."""

    UNREVOKED = "unrevoked"
    """It was told to release partitions, and has not confirmed that yet."""

    UNRELEASED = "unreleased"
    """It has all free partitions of its target; others have not released the remainder yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat. `None` means: unchanged since the last one."""

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
    """The partitions that the member believes to have."""
    client_id: str = ""
    client_host: str = ""

    @property
    def is_leaving(self) -> bool:
        return self.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH)

    @property
    def is_full(self) -> bool:
        """Whether all fields are sent again, as by members that join, or that missed an answer."""
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms is not None
            and not (self.topic_names is None and self.topic_regex is None)
            and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    """The answer to a heartbeat."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: PartitionSet | None = None
    """All partitions that the member may have from now on; `None` if unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member, as the group knows it."""

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
    """The group epoch that started when it joined. No two members have the same, so it orders
    them; a static member that returns keeps it.
    """

    epoch: int = 0
    """The group epoch whose target it has, or had. -2 if a static member left and may return."""

    previous_epoch: int = 0
    """The last epoch before this one that the member itself sent. Requests with it are still
    accepted: the answer with the current one may have been lost.
    """

    state: MemberState = MemberState.STABLE
    assigned: PartitionSet = field(default_factory=dict)
    """The partitions that it may have."""

    revoking: PartitionSet = field(default_factory=dict)
    """The partitions that it was told to release, and may still have."""

    @property
    def held(self) -> PartitionSet:
        """The partitions that no other member may get yet."""
        return union(self.assigned, self.revoking)

    @property
    def subscription(self) -> tuple[frozenset[str], str, str | None]:
        """The fields that determine the assignment of the group."""
        return self.topic_names, self.topic_regex, self.assignor

    @property
    def has_left(self) -> bool:
        """Whether it is a static member that left temporarily."""
        return self.epoch == LEAVE_STATIC_EPOCH

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return whether it has exactly what it should have by `target_epoch`."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def updated(self, beat: ConsumerHeartbeat) -> ConsumerMember:
        """Return the member with the changes in a heartbeat."""
        sent = {
            "instance_id": beat.instance_id,
            "rack_id": beat.rack_id,
            "rebalance_timeout_ms": beat.rebalance_timeout_ms,
            "topic_names": beat.topic_names,
            "topic_regex": beat.topic_regex,
            "assignor": beat.assignor,
            "client_id": beat.client_id,
            "client_host": beat.client_host,
        }
        changes = {
            name: value
            for name, value in sent.items()
            if value is not None and value != getattr(self, name)
        }
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]
