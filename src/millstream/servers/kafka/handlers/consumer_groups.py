"""Consumer groups (KIP-848), whose partitions the server assigns: heartbeats and descriptions."""

from __future__ import annotations

from uuid import UUID

from millstream.broker.access.resources import group as group_resource
from millstream.broker.groups.consumer.consumer_groups import ConsumerGroupDescription
from millstream.broker.groups.consumer.member import ConsumerHeartbeat, ConsumerMember
from millstream.broker.groups.consumer.partition_set import PartitionSet, partition_set
from millstream.errors import MillstreamError, UnknownTopicId
from millstream.protocols.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from millstream.servers.kafka.handlers.groups import (
    OPERATIONS_NOT_REQUESTED,
    group_code_of,
)
from millstream.servers.kafka.request_context import RequestContext

OWN_ID_SINCE = 1
"""The first version of ConsumerGroupHeartbeat whose clients choose their member ids themselves."""

UNCHANGED = -1
"""A rebalance timeout that has not changed since the last heartbeat."""

CONSUMER_MEMBER = 1
"""The type of a member that uses this protocol, not the classic one."""


async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """Process the heartbeat of a member, and return its assignment."""
    try:
        context.require_group(request.group_id)
        for name in request.subscribed_topic_names or ():
            context.require_topic(name)
        answer = await context.broker.groups.of(request.group_id).consumers.heartbeat(
            request.group_id,
            _heartbeat(request, context),
            may_lack_id=context.version < OWN_ID_SINCE,
        )
    except MillstreamError as error:
        return ConsumerGroupHeartbeatResponse(
            error_code=group_code_of(error), error_message=str(error)
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None if answer.assigned is None else _assignment(answer.assigned, context),
    )


def _heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerHeartbeat:
    timeout_ms, names, owned = (
        request.rebalance_timeout_ms,
        request.subscribed_topic_names,
        request.topic_partitions,
    )
    return ConsumerHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if timeout_ms == UNCHANGED else timeout_ms,
        topic_names=None if names is None else frozenset(names),
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else partition_set((part.topic_id, part.partitions) for part in owned),
        client_id=context.client_id,
        client_host=f"/{context.host}",
    )


def _assignment(
    partitions: PartitionSet, context: RequestContext
) -> ConsumerGroupHeartbeatResponseAssignment:
    """Return an assignment without topics that the caller may not describe.

    A regex matches topics of which it may not know, and members of a group share them.
    """
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=tuple(
            ConsumerGroupHeartbeatResponseTopicPartitions(
                topic_id=topic, partitions=tuple(sorted(numbers))
            )
            for topic, numbers in partitions.items()
            if _may_describe(topic, context)
        )
    )


def _may_describe(topic_id: UUID, context: RequestContext) -> bool:
    if context.access is None:
        return True
    try:
        name = context.broker.topics.by_id(topic_id).name
    except UnknownTopicId:
        return True
    return context.may_describe_topic(name)


def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Describe groups with their members and assignments."""
    is_asked = request.include_authorized_operations
    return ConsumerGroupDescribeResponse(
        groups=tuple(
            _described(group_id, context, is_asked=is_asked) for group_id in request.group_ids
        )
    )


def _described(
    group_id: str, context: RequestContext, *, is_asked: bool
) -> ConsumerGroupDescribeResponseGroup:
    try:
        context.require_group(group_id)
        coordinator = context.broker.groups.of(group_id)
        description: ConsumerGroupDescription = coordinator.consumers.describe(group_id)
    except MillstreamError as error:
        return ConsumerGroupDescribeResponseGroup(
            group_id=group_id, error_code=group_code_of(error), error_message=str(error)
        )
    return ConsumerGroupDescribeResponseGroup(
        group_id=group_id,
        group_state=description.state,
        group_epoch=description.epoch,
        assignment_epoch=description.target_epoch,
        assignor_name=description.assignor,
        members=tuple(
            _described_member(member, target, context) for member, target in description.members
        ),
        authorized_operations=(
            context.operations_on(group_resource(group_id))
            if is_asked
            else OPERATIONS_NOT_REQUESTED
        ),
    )


def _described_member(
    member: ConsumerMember, target: PartitionSet, context: RequestContext
) -> ConsumerGroupDescribeResponseMember:
    return ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(
            name for name in sorted(member.topic_names) if context.may_describe_topic(name)
        ),
        subscribed_topic_regex=member.topic_regex or None,
        assignment=_named(member.assigned, context),
        target_assignment=_named(target, context),
        member_type=CONSUMER_MEMBER,
    )


def _named(
    partitions: PartitionSet, context: RequestContext
) -> ConsumerGroupDescribeResponseAssignment:
    """Return the partitions with their topic names, without those of deleted topics."""
    named = []
    for topic_id, numbers in partitions.items():
        try:
            name = context.broker.topics.by_id(topic_id).name
        except UnknownTopicId:
            continue
        if not context.may_describe_topic(name):
            continue
        named.append(
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=tuple(sorted(numbers))
            )
        )
    return ConsumerGroupDescribeResponseAssignment(topic_partitions=tuple(named))
