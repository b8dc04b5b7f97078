"""Classic groups, whose members divide the work among themselves."""

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
    """A strategy the member knows, and what it says to the leader under it."""

    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


@message(JOIN_GROUP)
class JoinGroupRequest:
    """A member asks to be in the group, and names the strategies it can divide work by."""

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
    """A member, as the leader of the group has to know it."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=5, default=None)
    metadata: bytes = wire(BYTES)


@message(JOIN_GROUP)
class JoinGroupResponse:
    """The new generation of the group; its leader also learns who is in it."""

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
    """The share of one member."""

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
    """The member's share of the work."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, default=0)
    protocol_type: str | None = wire(NULLABLE_STRING, since=5, default=None)
    protocol_name: str | None = wire(NULLABLE_STRING, since=5, default=None)
    assignment: bytes = wire(BYTES, default=b"")


@message(HEARTBEAT)
class HeartbeatRequest:
    """A member says that it is still alive."""

    group_id: str = wire(STRING)
    generation_id: int = wire(INT32)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=3, default=None)


@message(HEARTBEAT)
class HeartbeatResponse:
    """The coordinator accepts the heartbeat, or names what is wrong with it."""

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
    """Members leave; one up to version 2, many from then on."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING, until=2, default="")
    members: tuple[LeaveGroupRequestMember, ...] = wire(
        ARRAY(LeaveGroupRequestMember), since=3, default=()
    )


@struct
class LeaveGroupResponseMember:
    """Whether one member has left."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, default=None)
    error_code: int = wire(INT16, default=0)


@message(LEAVE_GROUP)
class LeaveGroupResponse:
    """Who has left."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, default=0)
    members: tuple[LeaveGroupResponseMember, ...] = wire(
        ARRAY(LeaveGroupResponseMember), since=3, default=()
    )


@message(DESCRIBE_GROUPS)
class DescribeGroupsRequest:
    """What are these groups doing."""

    groups: tuple[str, ...] = wire(ARRAY(STRING))
    include_authorized_operations: bool = wire(BOOL, since=3, default=False)


@struct
class DescribeGroupsResponseMember:
    """One member, what it subscribed to and what it got."""

    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=4, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    member_metadata: bytes = wire(BYTES)
    member_assignment: bytes = wire(BYTES)


@struct
class DescribeGroupsResponseGroup:
    """One group, its strategy and its members."""

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
    """The state of each group that was asked about."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    groups: tuple[DescribeGroupsResponseGroup, ...] = wire(
        ARRAY(DescribeGroupsResponseGroup), default=()
    )


@message(LIST_GROUPS)
class ListGroupsRequest:
    """Which groups are there, of the given states and kinds or of any."""

    states_filter: tuple[str, ...] = wire(ARRAY(STRING), since=4, default=())
    types_filter: tuple[str, ...] = wire(ARRAY(STRING), since=5, default=())


@struct
class ListGroupsResponseGroup:
    """One group, in short."""

    group_id: str = wire(STRING)
    protocol_type: str = wire(STRING)
    group_state: str = wire(STRING, since=4, default="")
    group_type: str = wire(STRING, since=5, default="")


@message(LIST_GROUPS)
class ListGroupsResponse:
    """The groups there are."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, default=0)
    groups: tuple[ListGroupsResponseGroup, ...] = wire(ARRAY(ListGroupsResponseGroup), default=())


@message(DELETE_GROUPS)
class DeleteGroupsRequest:
    """These groups are to be forgotten, with all their positions."""

    groups_names: tuple[str, ...] = wire(ARRAY(STRING))


@struct
class DeleteGroupsResponseResult:
    """Whether one group is gone."""

    group_id: str = wire(STRING)
    error_code: int = wire(INT16, default=0)


@message(DELETE_GROUPS)
class DeleteGroupsResponse:
    """Which groups are gone."""

    throttle_time_ms: int = wire(INT32, default=0)
    results: tuple[DeleteGroupsResponseResult, ...] = wire(
        ARRAY(DeleteGroupsResponseResult), default=()
    )
