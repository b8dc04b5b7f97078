"""Requests and results of the group coordinator: plain values."""

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
    """A client joins a group, for the first time or again."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Mapping[str, bytes]
    """The assignors that the member supports, in order of preference, each with its metadata."""
    needs_known_id: bool = True
    """Whether a new member has to join again with its id before it becomes a member (JoinGroup 4
    on).
    """
    can_skip_assignment: bool = True
    """Whether a leader understands that it must not assign (JoinGroup 9 on)."""


class GroupMemberMetadata(NamedTuple):
    """A member, as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJoinResult:
    """The member is in the current generation of the group."""

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[GroupMemberMetadata, ...] = ()
    """All members, for the leader; empty for the others."""
    is_skipping_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSyncRequest:
    """A member asks for its assignment; the leader sends those of all members."""

    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSyncResult:
    """The assignment of a member in this generation."""

    protocol_type: str
    protocol: str
    assignment: bytes


class LeavingMember(NamedTuple):
    """A member that leaves, by its id; a static one by its instance id alone."""

    member_id: str
    instance_id: str | None = None


class LeaveResult(NamedTuple):
    """Whether a member left, or why not."""

    leaver: LeavingMember
    error: MillstreamError | None


# Descriptions.


class ClassicMemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupDescription:
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[ClassicMemberDescription, ...]


class GroupListing(NamedTuple):
    """A group in the list of all groups."""

    group_id: str
    kind: GroupType
    state: str
    protocol_type: str


# Offsets.


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """A committed position: the group has read everything before `offset`."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: uuid.UUID | None = None
    """The topic that was read: one created later under the same name starts without offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitter:
    """The member that commits offsets; the defaults stand for a client that is not a member."""

    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None
