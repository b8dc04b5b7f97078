"""Producers: initialize, describe."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
)

INIT_PRODUCER_ID = Versions(first=0, last=5, flexible=2)
DESCRIBE_PRODUCERS = Versions(first=0, last=0, flexible=0)


@message(INIT_PRODUCER_ID)
class InitProducerIdRequest:
    """Ask for a producer id; with a transactional id, this fences the previous producer."""

    transactional_id: str | None = wire(NULLABLE_STRING, default=None)
    transaction_timeout_ms: int = wire(INT32)
    producer_id: int = wire(INT64, since=3, default=-1)
    producer_epoch: int = wire(INT16, since=3, default=-1)


@message(INIT_PRODUCER_ID)
class InitProducerIdResponse:
    """The producer's id and epoch."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16, default=-1)


@struct
class DescribeProducersRequestTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(ARRAY(INT32))


@message(DESCRIBE_PRODUCERS)
class DescribeProducersRequest:
    """Ask for the active producers of partitions."""

    topics: tuple[DescribeProducersRequestTopic, ...] = wire(ARRAY(DescribeProducersRequestTopic))


@struct
class DescribeProducersResponseProducer:
    """One producer: its last sequence, and the start of its open transaction."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT32)
    last_sequence: int = wire(INT32, default=-1)
    last_timestamp: int = wire(INT64, default=-1)
    coordinator_epoch: int = wire(INT32)
    current_txn_start_offset: int = wire(INT64, default=-1)


@struct
class DescribeProducersResponsePartition:
    """The producers of one partition."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    active_producers: tuple[DescribeProducersResponseProducer, ...] = wire(
        ARRAY(DescribeProducersResponseProducer), default=()
    )


@struct
class DescribeProducersResponseTopic:
    """The partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[DescribeProducersResponsePartition, ...] = wire(
        ARRAY(DescribeProducersResponsePartition), default=()
    )


@message(DESCRIBE_PRODUCERS)
class DescribeProducersResponse:
    """The active producers of the partitions."""

    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[DescribeProducersResponseTopic, ...] = wire(
        ARRAY(DescribeProducersResponseTopic), default=()
    )
