"""Classic groups: join, sync, heartbeat, leave; and describe, list, delete."""

from __future__ import annotations

from millstream.broker.access.resources import CLUSTER, Operation
from millstream.broker.access.resources import group as group_resource
from millstream.broker.groups.values import GroupJoinRequest, GroupSyncRequest, LeavingMember
from millstream.errors import MemberIdNeeded, MillstreamError, UnknownGroup
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseResult,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseGroup,
    DescribeGroupsResponseMember,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeaveGroupResponseMember,
    ListGroupsRequest,
    ListGroupsResponse,
    ListGroupsResponseGroup,
    SyncGroupRequest,
    SyncGroupResponse,
)
from millstream.servers.kafka.request_context import RequestContext

KNOWN_ID_SINCE = 4
"""The first version of JoinGroup whose clients join again with the member id that they are
given.
"""

PROTOCOL_NULL_SINCE = 7
"""The first version of JoinGroup in which a missing protocol is null instead of an empty name."""

SKIP_SINCE = 9
"""The first version of JoinGroup in which a leader can be told to skip the assignment."""

LEAVE_MANY_SINCE = 3

NOT_FOUND_SINCE = 6
"""The first version of DescribeGroups that distinguishes an unknown group from a dead one."""

DEAD = "Dead"

OPERATIONS_NOT_REQUESTED = -(2**31)

_UNSTORED = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
)


def group_code_of(error: MillstreamError) -> ErrorCode:
    """Return the code of an error for members of groups.

    If something cannot be stored, they are told to look for the coordinator again: the codes for
    records would be fatal to some of them.
    """
    code = code_of(error)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in _UNSTORED else code


async def join_group(request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Add a member; the response comes when the rebalance has its members."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if rebalance_timeout_ms < 0:  # Version 0 has only one timeout.
        rebalance_timeout_ms = request.session_timeout_ms
    join = GroupJoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id,
        host=f"/{context.host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols={protocol.name: protocol.metadata for protocol in request.protocols},
        needs_known_id=context.version >= KNOWN_ID_SINCE,
        can_skip_assignment=context.version >= SKIP_SINCE,
    )
    try:
        context.require_group(request.group_id)
        joined = await context.broker.groups.of(request.group_id).join(request.group_id, join)
    except MillstreamError as error:
        member_id = error.member_id if isinstance(error, MemberIdNeeded) else request.member_id
        return JoinGroupResponse(
            error_code=group_code_of(error),
            member_id=member_id,
            protocol_name=None if context.version >= PROTOCOL_NULL_SINCE else "",
        )
    return JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.is_skipping_assignment,
        member_id=joined.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ),
    )


async def sync_group(request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """Return the assignment of a member; the response comes when the leader has sent it."""
    sync = GroupSyncRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={share.member_id: share.assignment for share in request.assignments},
    )
    try:
        context.require_group(request.group_id)
        synced = await context.broker.groups.of(request.group_id).sync(request.group_id, sync)
    except MillstreamError as error:
        return SyncGroupResponse(error_code=group_code_of(error))
    return SyncGroupResponse(
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


def heartbeat(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """Record that a member is alive."""
    try:
        context.require_group(request.group_id)
        context.broker.groups.of(request.group_id).heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except MillstreamError as error:
        return HeartbeatResponse(error_code=group_code_of(error))
    return HeartbeatResponse()


async def leave_group(request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    """Remove members: one up to version 2, several from then on."""
    if context.version < LEAVE_MANY_SINCE:
        leavers = [LeavingMember(request.member_id)]
    else:
        leavers = [
            LeavingMember(member.member_id, member.group_instance_id) for member in request.members
        ]
    try:
        context.require_group(request.group_id)
        results = await context.broker.groups.of(request.group_id).leave(request.group_id, leavers)
    except MillstreamError as error:
        return LeaveGroupResponse(error_code=group_code_of(error))
    codes = [group_code_of(left.error) if left.error else ErrorCode.NONE for left in results]
    if context.version < LEAVE_MANY_SINCE:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=tuple(
            LeaveGroupResponseMember(
                member_id=left.leaver.member_id,
                group_instance_id=left.leaver.instance_id,
                error_code=code,
            )
            for left, code in zip(results, codes, strict=True)
        )
    )


def describe_groups(
    request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Describe classic groups, each on its own."""
    return DescribeGroupsResponse(
        groups=tuple(
            _described(group_id, context, is_allowed=request.include_authorized_operations)
            for group_id in request.groups
        )
    )


def _described(
    group_id: str, context: RequestContext, *, is_allowed: bool
) -> DescribeGroupsResponseGroup:
    try:
        context.require_group(group_id)
        description = context.broker.groups.of(group_id).describe(group_id)
    except UnknownGroup as error:
        is_said = context.version >= NOT_FOUND_SINCE
        return DescribeGroupsResponseGroup(
            group_id=group_id,
            group_state=DEAD,
            error_code=code_of(error) if is_said else ErrorCode.NONE,
            error_message=str(error) if is_said else None,
        )
    except MillstreamError as error:
        return DescribeGroupsResponseGroup(
            group_id=group_id, error_code=group_code_of(error), error_message=str(error)
        )
    return DescribeGroupsResponseGroup(
        group_id=group_id,
        group_state=description.state,
        protocol_type=description.protocol_type,
        protocol_data=description.protocol,
        members=tuple(
            DescribeGroupsResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in description.members
        ),
        authorized_operations=(
            context.operations_on(group_resource(group_id))
            if is_allowed
            else OPERATIONS_NOT_REQUESTED
        ),
    )


def list_groups(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """List the groups of this node with the given states and types, or all."""
    try:
        listed = context.broker.groups.listed()
    except MillstreamError as error:  # A list without those that are not loaded looks complete.
        return ListGroupsResponse(error_code=group_code_of(error))
    is_all = context.may(Operation.DESCRIBE, CLUSTER)
    states = {state.lower() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
    return ListGroupsResponse(
        groups=tuple(
            ListGroupsResponseGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.kind.value,
            )
            for group in listed
            if (is_all or context.may(Operation.DESCRIBE, group_resource(group.group_id)))
            and (not states or group.state.lower() in states)
            and (not kinds or group.kind.value in kinds)
        )
    )


async def delete_groups(
    request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Delete groups without members, each on its own."""
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        code = ErrorCode.NONE
        try:
            context.require_group(group_id)
            await context.broker.groups.of(group_id).delete(group_id)
            context.note_change(group_resource(group_id))
        except MillstreamError as error:
            code = group_code_of(error)
        results.append(DeleteGroupsResponseResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=tuple(results))
