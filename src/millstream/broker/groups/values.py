"""What the doors and the coordinator tell each other about groups: plain values."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.broker.groups.group import GroupType
from millstream.errors import MillstreamError

NO_GENERATION = -1
NO_MEMBER = ""
NO_OFFSET = -1
NO_EPOCH = -1

# Membership of classic groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJoinRequest:
    """A client wants to be in a group, for the first time or again."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Mapping[str, bytes]
    """What the member can work with, most wanted first: strategy, and what it says to that."""
    needs_known_id: bool = True
    """Whether a new member has to come back with its id before it counts (JoinGroup 4 on)."""
    can_skip_assignment: bool = True
    """Whether a leader can be told not to divide anything (JoinGroup 9 on)."""
    reason: str = ""


class GroupMemberMetadata(NamedTuple):
    """What the leader learns of a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJoinResult:
    """The member is in the group's present generation."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[GroupMemberMetadata, ...] = ()
    """All members, for the leader; nothing for the others."""
    is_skipping_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSyncRequest:
    """A member asks for its share; the leader brings everyone's."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSyncResult:
    """The member's share of this generation."""

    protocol_type: str
    protocol: str
    assignment: bytes


class LeavingMember(NamedTuple):
    """Who leaves: a member by its id, or a static one by its instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class LeaveResult(NamedTuple):
    """Whether a member left, or why not."""

    leaver: LeavingMember
    error: MillstreamError | None


# Looking at groups.


class ClassicMemberDescription(NamedTuple):
    """One member of a classic group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupDescription:
    """A classic group as it stands."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[ClassicMemberDescription, ...]


class GroupListing(NamedTuple):
    """A group among all others."""

    group_id: str
    kind: GroupType
    state: str
    protocol_type: str


# Offsets.


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """What a group has read of a partition: everything before `offset`."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: uuid.UUID | None = None
    """Of which topic of that name; one made anew begins without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitter:
    """In whose name offsets are committed; nobody's where neither member nor generation is said."""

    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None
