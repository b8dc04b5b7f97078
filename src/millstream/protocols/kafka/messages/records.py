"""DeleteRecords: deletes the records at the start of partitions."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import ARRAY, INT16, INT32, INT64, STRING

DELETE_RECORDS = Versions(first=0, last=2, flexible=2)


@struct
class DeleteRecordsRequestPartition:
    """The first offset to keep in one partition; -1 keeps nothing."""

    partition_index: int = wire(INT32)
    offset: int = wire(INT64)


@struct
class DeleteRecordsRequestTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[DeleteRecordsRequestPartition, ...] = wire(
        ARRAY(DeleteRecordsRequestPartition)
    )


@message(DELETE_RECORDS)
class DeleteRecordsRequest:
    """Delete the records before these offsets."""

    topics: tuple[DeleteRecordsRequestTopic, ...] = wire(ARRAY(DeleteRecordsRequestTopic))
    timeout_ms: int = wire(INT32)


@struct
class DeleteRecordsResponsePartition:
    """The first offset that one partition still has."""

    partition_index: int = wire(INT32)
    low_watermark: int = wire(INT64, default=-1)
    error_code: int = wire(INT16, default=0)


@struct
class DeleteRecordsResponseTopic:
    """The partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[DeleteRecordsResponsePartition, ...] = wire(
        ARRAY(DeleteRecordsResponsePartition), default=()
    )


@message(DELETE_RECORDS)
class DeleteRecordsResponse:
    """The start offsets of the partitions now."""

    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[DeleteRecordsResponseTopic, ...] = wire(
        ARRAY(DeleteRecordsResponseTopic), default=()
    )
