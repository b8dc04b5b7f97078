"""Moves of partitions to other nodes."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
)

ALTER_PARTITION_REASSIGNMENTS = Versions(first=0, last=1, flexible=0)
LIST_PARTITION_REASSIGNMENTS = Versions(first=0, last=0, flexible=0)


@struct
class AlterPartitionReassignmentsRequestPartition:
    """New replicas of one partition; null cancels its reassignment."""

    partition_index: int = wire(INT32)
    replicas: tuple[int, ...] | None = wire(NULLABLE_ARRAY(INT32), default=None)


@struct
class AlterPartitionReassignmentsRequestTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[AlterPartitionReassignmentsRequestPartition, ...] = wire(
        ARRAY(AlterPartitionReassignmentsRequestPartition)
    )


@message(ALTER_PARTITION_REASSIGNMENTS)
class AlterPartitionReassignmentsRequest:
    """Begin to move partitions to other nodes, or cancel that."""

    timeout_ms: int = wire(INT32, default=60000)
    allow_replication_factor_change: bool = wire(BOOL, since=1, default=True)
    topics: tuple[AlterPartitionReassignmentsRequestTopic, ...] = wire(
        ARRAY(AlterPartitionReassignmentsRequestTopic)
    )


@struct
class AlterPartitionReassignmentsResponsePartition:
    """Result for one partition."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)


@struct
class AlterPartitionReassignmentsResponseTopic:
    """Results for one topic."""

    name: str = wire(STRING)
    partitions: tuple[AlterPartitionReassignmentsResponsePartition, ...] = wire(
        ARRAY(AlterPartitionReassignmentsResponsePartition)
    )


@message(ALTER_PARTITION_REASSIGNMENTS)
class AlterPartitionReassignmentsResponse:
    """Results for all partitions. The moves go on after it."""

    throttle_time_ms: int = wire(INT32, default=0)
    allow_replication_factor_change: bool = wire(BOOL, since=1, default=True)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    responses: tuple[AlterPartitionReassignmentsResponseTopic, ...] = wire(
        ARRAY(AlterPartitionReassignmentsResponseTopic), default=()
    )


@struct
class ListPartitionReassignmentsRequestTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(ARRAY(INT32))


@message(LIST_PARTITION_REASSIGNMENTS)
class ListPartitionReassignmentsRequest:
    """Ask which partitions are being moved; all if null."""

    timeout_ms: int = wire(INT32, default=60000)
    topics: tuple[ListPartitionReassignmentsRequestTopic, ...] | None = wire(
        NULLABLE_ARRAY(ListPartitionReassignmentsRequestTopic), default=None
    )


@struct
class ListPartitionReassignmentsResponsePartition:
    """A partition that is being moved."""

    partition_index: int = wire(INT32)
    replicas: tuple[int, ...] = wire(ARRAY(INT32))
    adding_replicas: tuple[int, ...] = wire(ARRAY(INT32))
    removing_replicas: tuple[int, ...] = wire(ARRAY(INT32))


@struct
class ListPartitionReassignmentsResponseTopic:
    """Partitions of one topic that are being moved."""

    name: str = wire(STRING)
    partitions: tuple[ListPartitionReassignmentsResponsePartition, ...] = wire(
        ARRAY(ListPartitionReassignmentsResponsePartition)
    )


@message(LIST_PARTITION_REASSIGNMENTS)
class ListPartitionReassignmentsResponse:
    """The partitions that are being moved."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    topics: tuple[ListPartitionReassignmentsResponseTopic, ...] = wire(
        ARRAY(ListPartitionReassignmentsResponseTopic), default=()
    )
