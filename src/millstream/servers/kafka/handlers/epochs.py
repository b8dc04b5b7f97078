"""OffsetForLeaderEpoch: the end offset of a leader epoch."""

from __future__ import annotations

from millstream.errors import MillstreamError
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)
from millstream.servers.kafka.handlers.replica_ids import check_not_replica
from millstream.servers.kafka.request_context import RequestContext


async def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Return, for each partition, the end of the newest epoch that is not after the given one."""
    topics = []
    for topic in request.topics:
        results = [
            await _find(topic.topic, requested, request.replica_id, context)
            for requested in topic.partitions
        ]
        topics.append(
            OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=tuple(results))
        )
    return OffsetForLeaderEpochResponse(throttle_time_ms=context.throttle_ms, topics=tuple(topics))


async def _find(
    topic: str,
    requested: OffsetForLeaderEpochRequestPartition,
    replica_id: int,
    context: RequestContext,
) -> OffsetForLeaderEpochResponsePartition:
    try:
        check_not_replica(replica_id)
        context.require_topic(topic)
        partition = context.broker.topics.partition(topic, requested.partition)
        await partition.open()
        partition.check_leader(requested.current_leader_epoch)
        epoch, end_offset = partition.offsets.epoch_end(requested.leader_epoch)
    except MillstreamError as error:
        return OffsetForLeaderEpochResponsePartition(
            partition=requested.partition, error_code=code_of(error)
        )
    return OffsetForLeaderEpochResponsePartition(
        partition=requested.partition, leader_epoch=epoch, end_offset=end_offset
    )
