"""DescribeProducers: the producers of a partition, and the transaction that blocks its readers."""

from __future__ import annotations

from millstream.errors import MillstreamError
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseProducer,
    DescribeProducersResponseTopic,
)
from millstream.servers.kafka.request_context import RequestContext


async def describe_producers(
    request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """Describe the producers that the partitions remember."""
    topics = []
    for topic in request.topics:
        results = [await _describe(topic.name, index, context) for index in topic.partition_indexes]
        topics.append(DescribeProducersResponseTopic(name=topic.name, partitions=tuple(results)))
    return DescribeProducersResponse(throttle_time_ms=context.throttle_ms, topics=tuple(topics))


async def _describe(
    topic: str, index: int, context: RequestContext
) -> DescribeProducersResponsePartition:
    try:
        context.require_topic(topic)
        partition = context.broker.topics.partition(topic, index)
        await partition.open()
        producers = partition.appender.producers()
    except MillstreamError as error:
        return DescribeProducersResponsePartition(
            partition_index=index, error_code=code_of(error), error_message=str(error)
        )
    return DescribeProducersResponsePartition(
        partition_index=index,
        active_producers=tuple(
            DescribeProducersResponseProducer(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset,
            )
            for producer in producers
        ),
    )
