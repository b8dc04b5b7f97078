"""Metadata and DescribeTopicPartitions: the nodes, and the leaders of the partitions of topics."""

from __future__ import annotations

from millstream.broker.access.resources import Operation
from millstream.broker.access.resources import topic as topic_resource
from millstream.broker.cluster_view import NO_NODE, PartitionPlacement
from millstream.broker.topics.topic import NO_ID, Topic
from millstream.errors import InvalidRequest, MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    TopicPartitionsCursor,
)
from millstream.servers.kafka.handlers.cluster import (
    OPERATIONS_NOT_REQUESTED,
    cluster_operations,
)
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.files.names import check_topic

NULL_MEANS_ALL_SINCE = 1
"""Before this version, an empty list of topics means all of them; from here on, none."""

TOPIC_ID_SINCE = 12
"""The first version in which topics can be named by id."""

PAGE_PARTITIONS_MAX = 2_000
"""Partitions in one response to DescribeTopicPartitions: Kafka's default for its brokers."""


async def metadata(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Describe the node and the topics of the request, or all topics."""
    broker = context.broker
    operations = (
        cluster_operations(context)
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_REQUESTED
    )
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(
                node_id=node.node_id, host=node.kafka.host, port=node.kafka.port, rack=node.rack
            )
            for node in broker.cluster.nodes()
        ),
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.controller_id,
        topics=await _topics(request, context),
        cluster_authorized_operations=operations,
    )


async def _topics(
    request: MetadataRequest, context: RequestContext
) -> tuple[MetadataResponseTopic, ...]:
    if _is_for_all(request, context.version):
        return tuple(
            _describe(topic, request, context)
            for topic in context.broker.topics.all()
            if context.may_describe_topic(topic.name)
        )
    requested = dict.fromkeys(
        request.topics or ()
    )  # Without repetitions, in the order of the request.
    return tuple([await _topic(topic, request, context) for topic in requested])


def _is_for_all(request: MetadataRequest, version: int) -> bool:
    return request.topics is None or (version < NULL_MEANS_ALL_SINCE and not request.topics)


async def _topic(
    requested: MetadataRequestTopic, request: MetadataRequest, context: RequestContext
) -> MetadataResponseTopic:
    try:
        topic = await _find(requested, request, context)
    except MillstreamError as error:
        is_nameless = requested.name is None and context.version < TOPIC_ID_SINCE
        return MetadataResponseTopic(
            error_code=code_of(error),
            name="" if is_nameless else requested.name,
            topic_id=requested.topic_id,
        )
    return _describe(topic, request, context)


async def _find(
    requested: MetadataRequestTopic, request: MetadataRequest, context: RequestContext
) -> Topic:
    """Return a topic of the request; create it if that is wanted and allowed."""
    topics = context.broker.topics
    if requested.topic_id != NO_ID:
        if context.version < TOPIC_ID_SINCE:
            raise InvalidRequest(f"topic ids need version {TOPIC_ID_SINCE} or newer")
        topic = topics.by_id(requested.topic_id)
        context.require_topic_by_id(topic)
        return topic
    if requested.name is None:
        raise InvalidRequest("a topic needs a name or an id")
    context.require_topic(requested.name)
    if found := topics.find(requested.name):
        return found
    check_topic(requested.name)
    if request.allow_auto_topic_creation and context.broker.config.auto_create_topics:
        context.require_creation(requested.name)
        created = await topics.ensure(requested.name, creator=context.caller)
        context.note_change(topic_resource(requested.name), Operation.CREATE)
        return created
    return topics.get(requested.name)


def _describe(
    topic: Topic, request: MetadataRequest, context: RequestContext
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=tuple(
            _describe_partition(topic, index, context) for index in range(len(topic.partitions))
        ),
        topic_authorized_operations=(
            context.operations_on(topic_resource(topic.name))
            if request.include_topic_authorized_operations
            else OPERATIONS_NOT_REQUESTED
        ),
    )


def _describe_partition(
    topic: Topic, index: int, context: RequestContext
) -> MetadataResponsePartition:
    placement = context.broker.cluster.placement(topic.name, index)
    return MetadataResponsePartition(
        error_code=_error_of(placement),
        partition_index=index,
        leader_id=placement.leader,
        leader_epoch=placement.leader_epoch,
        replica_nodes=tuple(placement.replicas),
        isr_nodes=tuple(placement.isr),
        offline_replicas=tuple(placement.offline),
    )


def _error_of(placement: PartitionPlacement) -> ErrorCode:
    has_leader = placement.leader != NO_NODE
    return ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE


def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Describe a page of partitions of the topics of the request, or of all, sorted by name.

    A topic that does not exist is not created.
    """
    cursor = request.cursor or TopicPartitionsCursor(topic_name="", partition_index=0)
    names = {topic.name for topic in request.topics}
    if cursor.partition_index < 0:
        invalid = ErrorCode.INVALID_REQUEST
        refused = [
            DescribeTopicPartitionsResponseTopic(error_code=invalid, name=name)
            for name in sorted(names or {cursor.topic_name})
        ]
        return _page(refused, context, None)
    if not names:
        everything = (topic.name for topic in context.broker.topics.all())
        names = {name for name in everything if context.may_describe_topic(name)}
    remaining = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(name for name in names if name >= cursor.topic_name):
        first = cursor.partition_index if name == cursor.topic_name else 0
        if not remaining:
            next_cursor = TopicPartitionsCursor(topic_name=name, partition_index=first)
            return _page(topics, context, next_cursor)
        try:
            context.require_topic(name)
            topic = context.broker.topics.get(check_topic(name))
        except MillstreamError as error:
            topics.append(
                DescribeTopicPartitionsResponseTopic(error_code=code_of(error), name=name)
            )
            continue
        end = min(len(topic.partitions), first + remaining)
        topics.append(_describe_page(topic, first, end, context))
        remaining -= max(0, end - first)
        if end < len(topic.partitions):
            next_cursor = TopicPartitionsCursor(topic_name=name, partition_index=end)
            return _page(topics, context, next_cursor)
    return _page(topics, context, None)


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic],
    context: RequestContext,
    next_cursor: TopicPartitionsCursor | None,
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        throttle_time_ms=context.throttle_ms, topics=tuple(topics), next_cursor=next_cursor
    )


def _describe_page(
    topic: Topic, first: int, end: int, context: RequestContext
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=tuple(_page_partition(topic, index, context) for index in range(first, end)),
        topic_authorized_operations=context.operations_on(topic_resource(topic.name)),
    )


def _page_partition(
    topic: Topic, index: int, context: RequestContext
) -> DescribeTopicPartitionsResponsePartition:
    placement = context.broker.cluster.placement(topic.name, index)
    return DescribeTopicPartitionsResponsePartition(
        error_code=_error_of(placement),
        partition_index=index,
        leader_id=placement.leader,
        leader_epoch=placement.leader_epoch,
        replica_nodes=tuple(placement.replicas),
        isr_nodes=tuple(placement.isr),
        # The Java client does not accept null here, though the protocol allows it.
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=tuple(placement.offline),
    )
