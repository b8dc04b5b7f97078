"""Metadata: describes nodes, topics and partition leaders."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    NO_ID,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
    UUID,
)

METADATA = Versions(first=0, last=13, flexible=9)
DESCRIBE_TOPIC_PARTITIONS = Versions(first=0, last=0, flexible=0)


@struct
class MetadataRequestTopic:
    """A topic by name or by id."""

    topic_id: uuid.UUID = wire(UUID, since=10, default=NO_ID)
    name: str | None = wire(STRING, nullable_since=10, default=None)


@message(METADATA)
class MetadataRequest:
    """Ask for the nodes, and for these topics; for all of them if null."""

    topics: tuple[MetadataRequestTopic, ...] | None = wire(
        ARRAY(MetadataRequestTopic), nullable_since=1, default=None
    )
    allow_auto_topic_creation: bool = wire(BOOL, since=4, default=True)
    include_cluster_authorized_operations: bool = wire(BOOL, since=8, until=10, default=False)
    include_topic_authorized_operations: bool = wire(BOOL, since=8, default=False)


@struct
class MetadataResponseBroker:
    """A node and its address."""

    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(NULLABLE_STRING, since=1, default=None)


@struct
class MetadataResponsePartition:
    """The leader and the replicas of one partition."""

    error_code: int = wire(INT16, default=0)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, since=7, default=-1)
    replica_nodes: tuple[int, ...] = wire(ARRAY(INT32), default=())
    isr_nodes: tuple[int, ...] = wire(ARRAY(INT32), default=())
    offline_replicas: tuple[int, ...] = wire(ARRAY(INT32), since=5, default=())


@struct
class MetadataResponseTopic:
    """A topic and its partitions, or the error."""

    error_code: int = wire(INT16, default=0)
    name: str | None = wire(STRING, nullable_since=12)
    topic_id: uuid.UUID = wire(UUID, since=10, default=NO_ID)
    is_internal: bool = wire(BOOL, since=1, default=False)
    partitions: tuple[MetadataResponsePartition, ...] = wire(
        ARRAY(MetadataResponsePartition), default=()
    )
    topic_authorized_operations: int = wire(INT32, since=8, default=-(2**31))


@message(METADATA)
class MetadataResponse:
    """The nodes of the cluster and the partitions of the topics."""

    throttle_time_ms: int = wire(INT32, since=3, default=0)
    brokers: tuple[MetadataResponseBroker, ...] = wire(ARRAY(MetadataResponseBroker), default=())
    cluster_id: str | None = wire(NULLABLE_STRING, since=2, default=None)
    controller_id: int = wire(INT32, since=1, default=-1)
    topics: tuple[MetadataResponseTopic, ...] = wire(ARRAY(MetadataResponseTopic), default=())
    cluster_authorized_operations: int = wire(INT32, since=8, until=10, default=-(2**31))
    error_code: int = wire(INT16, since=13, default=0)


@struct
class DescribeTopicPartitionsRequestTopic:
    """A topic, by name."""

    name: str = wire(STRING)


@struct
class TopicPartitionsCursor:
    """The first topic and partition of a page."""

    topic_name: str = wire(STRING)
    partition_index: int = wire(INT32)


@message(DESCRIBE_TOPIC_PARTITIONS)
class DescribeTopicPartitionsRequest:
    """Ask for a page of partitions of some topics, or of all if there are none."""

    topics: tuple[DescribeTopicPartitionsRequestTopic, ...] = wire(
        ARRAY(DescribeTopicPartitionsRequestTopic), default=()
    )
    response_partition_limit: int = wire(INT32, default=2_000)
    cursor: TopicPartitionsCursor | None = wire(
        TopicPartitionsCursor, nullable_since=0, default=None
    )


@struct
class DescribeTopicPartitionsResponsePartition:
    """One partition, its leader and its replicas."""

    error_code: int = wire(INT16, default=0)
    partition_index: int = wire(INT32)
    leader_id: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    replica_nodes: tuple[int, ...] = wire(ARRAY(INT32), default=())
    isr_nodes: tuple[int, ...] = wire(ARRAY(INT32), default=())
    eligible_leader_replicas: tuple[int, ...] | None = wire(NULLABLE_ARRAY(INT32), default=None)
    last_known_elr: tuple[int, ...] | None = wire(NULLABLE_ARRAY(INT32), default=None)
    offline_replicas: tuple[int, ...] = wire(ARRAY(INT32), default=())


@struct
class DescribeTopicPartitionsResponseTopic:
    """One topic, or the error that it has."""

    error_code: int = wire(INT16, default=0)
    name: str | None = wire(NULLABLE_STRING, default=None)
    topic_id: uuid.UUID = wire(UUID, default=NO_ID)
    is_internal: bool = wire(BOOL, default=False)
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = wire(
        ARRAY(DescribeTopicPartitionsResponsePartition), default=()
    )
    topic_authorized_operations: int = wire(INT32, default=-(2**31))


@message(DESCRIBE_TOPIC_PARTITIONS)
class DescribeTopicPartitionsResponse:
    """A page of partitions, and where the next one starts."""

    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = wire(
        ARRAY(DescribeTopicPartitionsResponseTopic), default=()
    )
    next_cursor: TopicPartitionsCursor | None = wire(
        TopicPartitionsCursor, nullable_since=0, default=None
    )
