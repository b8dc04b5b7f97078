"""Moves of partitions to other nodes: begun, cancelled, listed."""

from __future__ import annotations

from itertools import groupby

from millstream.broker.access.resources import CLUSTER
from millstream.errors import MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)
from millstream.servers.kafka.request_context import RequestContext


async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Begin to move partitions to other nodes, or cancel that, each on its own."""
    if (refusal := context.cluster_refusal()) is not None:
        return AlterPartitionReassignmentsResponse(
            throttle_time_ms=context.throttle_ms,
            error_code=code_of(refusal),
            error_message=str(refusal),
        )
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=context.throttle_ms,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(
            [
                AlterPartitionReassignmentsResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        [
                            await _reassign(topic.name, partition, request, context)
                            for partition in topic.partitions
                        ]
                    ),
                )
                for topic in request.topics
            ]
        ),
    )


async def _reassign(
    topic: str,
    requested: AlterPartitionReassignmentsRequestPartition,
    request: AlterPartitionReassignmentsRequest,
    context: RequestContext,
) -> AlterPartitionReassignmentsResponsePartition:
    code, message = ErrorCode.NONE, None
    try:
        await context.broker.admin.reassign(
            topic,
            requested.partition_index,
            requested.replicas,
            may_change_factor=request.allow_replication_factor_change,
        )
        context.note_change(CLUSTER)
    except MillstreamError as error:
        code, message = code_of(error), str(error)
    return AlterPartitionReassignmentsResponsePartition(
        partition_index=requested.partition_index, error_code=code, error_message=message
    )


def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """List the partitions that are being moved: those of the request, or all."""
    if (refusal := context.cluster_refusal()) is not None:
        return ListPartitionReassignmentsResponse(
            throttle_time_ms=context.throttle_ms,
            error_code=code_of(refusal),
            error_message=str(refusal),
        )
    wanted = None
    if request.topics is not None:
        wanted = {
            (topic.name, index) for topic in request.topics for index in topic.partition_indexes
        }
    moving = [
        item
        for item in context.broker.admin.reassignments()
        if wanted is None or item.partition in wanted
    ]
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=context.throttle_ms,
        topics=tuple(
            ListPartitionReassignmentsResponseTopic(
                name=name,
                partitions=tuple(
                    ListPartitionReassignmentsResponsePartition(
                        partition_index=item.partition.partition,
                        replicas=tuple(item.replicas),
                        adding_replicas=tuple(item.adding),
                        removing_replicas=tuple(item.removing),
                    )
                    for item in items
                ),
            )
            for name, items in groupby(moving, key=lambda item: item.partition.topic)
        ),
    )
