"""DeleteRecords: moves the start of partitions."""

from __future__ import annotations

from millstream.broker.access.resources import topic as topic_resource
from millstream.broker.topics.configs.topic_config import DELETE
from millstream.errors import MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)
from millstream.servers.kafka.request_context import RequestContext


async def delete_records(
    request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Delete the records before the given offsets for good, before this is answered."""
    topics = []
    for topic in request.topics:
        results = [await _delete(topic.name, requested, context) for requested in topic.partitions]
        topics.append(DeleteRecordsResponseTopic(name=topic.name, partitions=tuple(results)))
    return DeleteRecordsResponse(throttle_time_ms=context.throttle_ms, topics=tuple(topics))


async def _delete(
    topic: str, requested: DeleteRecordsRequestPartition, context: RequestContext
) -> DeleteRecordsResponsePartition:
    index = requested.partition_index
    try:
        context.require_topic(topic)
        partition = context.broker.topics.partition(topic, index)
        if DELETE not in partition.config.cleanup_policy:
            # A compacted topic keeps the last record of each key.
            return DeleteRecordsResponsePartition(
                partition_index=index, error_code=ErrorCode.POLICY_VIOLATION
            )
        await partition.open()
        start_offset = await partition.delete_before(requested.offset)
        context.note_change(topic_resource(topic))
    except MillstreamError as error:
        return DeleteRecordsResponsePartition(partition_index=index, error_code=code_of(error))
    return DeleteRecordsResponsePartition(partition_index=index, low_watermark=start_offset)
