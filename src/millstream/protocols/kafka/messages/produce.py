"""Produce: appends batches."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    INT16,
    INT32,
    INT64,
    NO_ID,
    NULLABLE_STRING,
    RECORDS,
    STRING,
    UUID,
)

PRODUCE = Versions(first=3, last=13, flexible=9)


@struct
class ProduceRequestPartition:
    """The batch for one partition."""

    index: int = wire(INT32)
    records: memoryview | None = wire(RECORDS)


@struct
class ProduceRequestTopic:
    """The batches for one topic, by name up to version 12 and by id from then on."""

    name: str = wire(STRING, until=12, default="")
    topic_id: uuid.UUID = wire(UUID, since=13, default=NO_ID)
    partition_data: tuple[ProduceRequestPartition, ...] = wire(ARRAY(ProduceRequestPartition))


@message(PRODUCE)
class ProduceRequest:
    """Append batches, one for each partition."""

    transactional_id: str | None = wire(NULLABLE_STRING, default=None)
    acks: int = wire(INT16)
    timeout_ms: int = wire(INT32)
    topic_data: tuple[ProduceRequestTopic, ...] = wire(ARRAY(ProduceRequestTopic))


@struct
class ProduceResponseRecordError:
    """One record that made its batch fail."""

    batch_index: int = wire(INT32)
    batch_index_error_message: str | None = wire(NULLABLE_STRING, default=None)


@struct
class ProduceResponseLeader:
    """The current leader, for a producer that asked another node."""

    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, default=-1)


@struct
class ProduceResponsePartition:
    """The base offset of the batch for one partition, or the error."""

    index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    base_offset: int = wire(INT64, default=-1)
    log_append_time_ms: int = wire(INT64, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    record_errors: tuple[ProduceResponseRecordError, ...] = wire(
        ARRAY(ProduceResponseRecordError), since=8, default=()
    )
    error_message: str | None = wire(NULLABLE_STRING, since=8, default=None)
    current_leader: ProduceResponseLeader = wire(
        ProduceResponseLeader, since=10, default=ProduceResponseLeader(), tag=0
    )


@struct
class ProduceResponseTopic:
    """Results for the partitions of one topic."""

    name: str = wire(STRING, until=12, default="")
    topic_id: uuid.UUID = wire(UUID, since=13, default=NO_ID)
    partition_responses: tuple[ProduceResponsePartition, ...] = wire(
        ARRAY(ProduceResponsePartition), default=()
    )


@struct
class ProduceResponseNode:
    """Address of a node that leads one of the partitions."""

    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(NULLABLE_STRING, default=None)


@message(PRODUCE)
class ProduceResponse:
    """Results for all batches."""

    responses: tuple[ProduceResponseTopic, ...] = wire(ARRAY(ProduceResponseTopic), default=())
    throttle_time_ms: int = wire(INT32, default=0)
    node_endpoints: tuple[ProduceResponseNode, ...] = wire(
        ARRAY(ProduceResponseNode), since=10, default=(), tag=0
    )
