"""Classic groups, whose leader assigns the partitions."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    BYTES,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
)

JOIN_GROUP = Versions(first=0, last=9, flexible=6)
SYNC_GROUP = Versions(first=0, last=5, flexible=4)
HEARTBEAT = Versions(first=0, last=4, flexible=4)
LEAVE_GROUP = Versions(first=0, last=5, flexible=4)
DESCRIBE_GROUPS = Versions(first=0, last=6, flexible=5)
LIST_GROUPS = Versions(first=0, last=5, flexible=3)
DELETE_GROUPS = Versions(first=0, last=2, flexible=2)


@struct
class JoinGroupRequestProtocol:
    """An assignor that the member supports, with its metadata for the leader."""

    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


@message(JOIN_GROUP)
class JoinGroupRequest:
    """Join a group, with the assignors that the member supports."""

    group_id: str = wire(STRING)
    session_timeout_ms: int = wire(INT32)
    rebalance_timeout_ms: int = wire(INT32, since=1, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=5, default=None)
    protocol_type: str = wire(STRING)
    protocols: tuple[JoinGroupRequestProtocol, ...] = wire(ARRAY(JoinGroupRequestProtocol))
    reason: str | None = wire(NULLABLE_STRING, since=8, default=None)


@struct
class JoinGroupResponseMember:
    """A member, as the leader sees it."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=5, default=None)
    metadata: bytes = wire(BYTES)


@message(JOIN_GROUP)
class JoinGroupResponse:
    """The new generation of the group; the leader also gets the members."""

    throttle_time_ms: int = wire(INT32, since=2, default=0)
    error_code: int = wire(INT16, default=0)
    generation_id: int = wire(INT32, default=-1)
    protocol_type: str | None = wire(NULLABLE_STRING, since=7, default=None)
    protocol_name: str | None = wire(STRING, nullable_since=7, default="")
    leader: str = wire(STRING, default="")
    skip_assignment: bool = wire(BOOL, since=9, default=False)
    member_id: str = wire(STRING, default="")
    members: tuple[JoinGroupResponseMember, ...] = wire(ARRAY(JoinGroupResponseMember), default=())


@struct
class SyncGroupRequestAssignment:
    """The assignment of one member."""

    member_id: str = wire(STRING)
    assignment: bytes = wire(BYTES)


@message(SYNC_GROUP)
class SyncGroupRequest:
    """Ask for the assignment of a member; the leader sends the assignments of all."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=3, default=None)
    protocol_type: str | None = wire(NULLABLE_STRING, since=5, default=None)
    protocol_name: str | None = wire(NULLABLE_STRING, since=5, default=None)
    assignments: tuple[SyncGroupRequestAssignment, ...] = wire(ARRAY(SyncGroupRequestAssignment))


@message(SYNC_GROUP)
class SyncGroupResponse:
    """The assignment of the member."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, default=0)
    protocol_type: str | None = wire(NULLABLE_STRING, since=5, default=None)
    protocol_name: str | None = wire(NULLABLE_STRING, since=5, default=None)
    assignment: bytes = wire(BYTES, default=b"")


@message(HEARTBEAT)
class HeartbeatRequest:
    """Heartbeat of a member."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=3, default=None)


@message(HEARTBEAT)
class HeartbeatResponse:
    """Whether the member is still in the current generation."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, default=0)


@struct
class LeaveGroupRequestMember:
    """A member that leaves."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, default=None)
    reason: str | None = wire(NULLABLE_STRING, since=5, default=None)


@message(LEAVE_GROUP)
class LeaveGroupRequest:
    """Leave a group: one member up to version 2, several from then on."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING, until=2, default="")
    members: tuple[LeaveGroupRequestMember, ...] = wire(
        ARRAY(LeaveGroupRequestMember), since=3, default=()
    )


@struct
class LeaveGroupResponseMember:
    """Result for one member."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, default=None)
    error_code: int = wire(INT16, default=0)


@message(LEAVE_GROUP)
class LeaveGroupResponse:
    """Results for all members."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, default=0)
    members: tuple[LeaveGroupResponseMember, ...] = wire(
        ARRAY(LeaveGroupResponseMember), since=3, default=()
    )


@message(DESCRIBE_GROUPS)
class DescribeGroupsRequest:
    """Ask for the state of groups."""

    groups: tuple[str, ...] = wire(ARRAY(STRING))
    include_authorized_operations: bool = wire(BOOL, since=3, default=False)


@struct
class DescribeGroupsResponseMember:
    """One member, with its subscription and its assignment."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=4, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: bytes = wire(BYTES)
    member_assignment: bytes = wire(BYTES)


@struct
class DescribeGroupsResponseGroup:
    """One group, its assignor and its members."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, since=6, default=None)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING, default="")
    protocol_type: str = wire(STRING, default="")
    protocol_data: str = wire(STRING, default="")
    members: tuple[DescribeGroupsResponseMember, ...] = wire(
        ARRAY(DescribeGroupsResponseMember), default=()
    )
    authorized_operations: int = wire(INT32, since=3, default=-(2**31))


@message(DESCRIBE_GROUPS)
class DescribeGroupsResponse:
    """The state of each group."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    groups: tuple[DescribeGroupsResponseGroup, ...] = wire(
        ARRAY(DescribeGroupsResponseGroup), default=()
    )


@message(LIST_GROUPS)
class ListGroupsRequest:
    """List groups, with the given states and types or all."""

    states_filter: tuple[str, ...] = wire(ARRAY(STRING), since=4, default=())
    types_filter: tuple[str, ...] = wire(ARRAY(STRING), since=5, default=())


@struct
class ListGroupsResponseGroup:
    """Summary of one group."""

    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, since=4, default="")
    group_type: str = wire(STRING, since=5, default="")


@message(LIST_GROUPS)
class ListGroupsResponse:
    """The groups that match."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, default=0)
    groups: tuple[ListGroupsResponseGroup, ...] = wire(ARRAY(ListGroupsResponseGroup), default=())


@message(DELETE_GROUPS)
class DeleteGroupsRequest:
    """Delete groups with their committed offsets."""

    groups_names: tuple[str, ...] = wire(ARRAY(STRING))


@struct
class DeleteGroupsResponseResult:
    """Result for one group."""

    group_id: str = wire(STRING)
    error_code: int = wire(INT16, default=0)


@message(DELETE_GROUPS)
class DeleteGroupsResponse:
    """Results for all groups."""

    throttle_time_ms: int = wire(INT32, default=0)
    results: tuple[DeleteGroupsResponseResult, ...] = wire(
        ARRAY(DeleteGroupsResponseResult), default=()
    )
