"""Consumer groups, whose coordinator assigns the partitions (KIP-848)."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT8,
    INT16,
    INT32,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
    UUID,
)

CONSUMER_GROUP_HEARTBEAT = Versions(first=0, last=1, flexible=0)
CONSUMER_GROUP_DESCRIBE = Versions(first=0, last=1, flexible=0)


@struct
class ConsumerGroupHeartbeatRequestTopicPartitions:
    """Partitions of one topic that the member owns."""

    topic_id: uuid.UUID = wire(UUID)
    partitions: tuple[int, ...] = wire(ARRAY(INT32))


@message(CONSUMER_GROUP_HEARTBEAT)
class ConsumerGroupHeartbeatRequest:
    """Heartbeat of a member, with its subscription and partitions; null if unchanged."""

    group_id: str = wire(STRING)
    member_id: str = wire(STRING)
    member_epoch: int = wire(INT32)
    instance_id: str | None = wire(NULLABLE_STRING, default=None)
    rack_id: str | None = wire(NULLABLE_STRING, default=None)
    rebalance_timeout_ms: int = wire(INT32, default=-1)
    subscribed_topic_names: tuple[str, ...] | None = wire(NULLABLE_ARRAY(STRING), default=None)
    subscribed_topic_regex: str | None = wire(NULLABLE_STRING, since=1, default=None)
    server_assignor: str | None = wire(NULLABLE_STRING, default=None)
    topic_partitions: tuple[ConsumerGroupHeartbeatRequestTopicPartitions, ...] | None = wire(
        NULLABLE_ARRAY(ConsumerGroupHeartbeatRequestTopicPartitions), default=None
    )


@struct
class ConsumerGroupHeartbeatResponseTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = wire(UUID)
    partitions: tuple[int, ...] = wire(ARRAY(INT32), default=())


@struct
class ConsumerGroupHeartbeatResponseAssignment:
    """All partitions that are assigned to the member."""

    topic_partitions: tuple[ConsumerGroupHeartbeatResponseTopicPartitions, ...] = wire(
        ARRAY(ConsumerGroupHeartbeatResponseTopicPartitions), default=()
    )


@message(CONSUMER_GROUP_HEARTBEAT)
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment if it changed."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    member_id: str | None = wire(NULLABLE_STRING, default=None)
    member_epoch: int = wire(INT32, default=0)
    heartbeat_interval_ms: int = wire(INT32, default=0)
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = wire(
        ConsumerGroupHeartbeatResponseAssignment, nullable_since=0, default=None
    )


@message(CONSUMER_GROUP_DESCRIBE)
class ConsumerGroupDescribeRequest:
    """Ask for the state of groups."""

    group_ids: tuple[str, ...] = wire(ARRAY(STRING))
    include_authorized_operations: bool = wire(BOOL, default=False)


@struct
class ConsumerGroupDescribeResponseTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = wire(UUID)
    topic_name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(ARRAY(INT32), default=())


@struct
class ConsumerGroupDescribeResponseAssignment:
    """A set of partitions."""

    topic_partitions: tuple[ConsumerGroupDescribeResponseTopicPartitions, ...] = wire(
        ARRAY(ConsumerGroupDescribeResponseTopicPartitions), default=()
    )


@struct
class ConsumerGroupDescribeResponseMember:
    """One member: its subscription, its assignment and its target assignment."""

    member_id: str = wire(STRING)
    instance_id: str | None = wire(NULLABLE_STRING, default=None)
    rack_id: str | None = wire(NULLABLE_STRING, default=None)
    member_epoch: int = wire(INT32)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    subscribed_topic_names: tuple[str, ...] = wire(ARRAY(STRING), default=())
    subscribed_topic_regex: str | None = wire(NULLABLE_STRING, default=None)
    assignment: ConsumerGroupDescribeResponseAssignment = wire(
        ConsumerGroupDescribeResponseAssignment
    )
    target_assignment: ConsumerGroupDescribeResponseAssignment = wire(
        ConsumerGroupDescribeResponseAssignment
    )
    member_type: int = wire(INT8, since=1, default=-1)


@struct
class ConsumerGroupDescribeResponseGroup:
    """One group, its epochs and its members."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    group_id: str = wire(STRING)
    group_state: str = wire(STRING, default="")
    group_epoch: int = wire(INT32, default=0)
    assignment_epoch: int = wire(INT32, default=0)
    assignor_name: str = wire(STRING, default="")
    members: tuple[ConsumerGroupDescribeResponseMember, ...] = wire(
        ARRAY(ConsumerGroupDescribeResponseMember), default=()
    )
    authorized_operations: int = wire(INT32, default=-(2**31))


@message(CONSUMER_GROUP_DESCRIBE)
class ConsumerGroupDescribeResponse:
    """The state of each group."""

    throttle_time_ms: int = wire(INT32, default=0)
    groups: tuple[ConsumerGroupDescribeResponseGroup, ...] = wire(
        ARRAY(ConsumerGroupDescribeResponseGroup), default=()
    )
