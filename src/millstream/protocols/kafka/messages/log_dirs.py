"""Directories with logs, and the sizes of the partitions in them."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    INT64,
    NULLABLE_ARRAY,
    STRING,
)

DESCRIBE_LOG_DIRS = Versions(first=1, last=4, flexible=2)


@struct
class DescribeLogDirsRequestTopic:
    """Partitions of one topic."""

    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(ARRAY(INT32), default=())


@message(DESCRIBE_LOG_DIRS)
class DescribeLogDirsRequest:
    """Ask for the log directories; for all topics if they are null."""

    topics: tuple[DescribeLogDirsRequestTopic, ...] | None = wire(
        NULLABLE_ARRAY(DescribeLogDirsRequestTopic), default=None
    )


@struct
class DescribeLogDirsResponsePartition:
    """The size of one partition."""

    partition_index: int = wire(INT32)
    partition_size: int = wire(INT64)
    offset_lag: int = wire(INT64)
    is_future_key: bool = wire(BOOL, default=False)


@struct
class DescribeLogDirsResponseTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[DescribeLogDirsResponsePartition, ...] = wire(
        ARRAY(DescribeLogDirsResponsePartition)
    )


@struct
class DescribeLogDirsResponseResult:
    """One directory."""

    error_code: int = wire(INT16, default=0)
    log_dir: str = wire(STRING)
    topics: tuple[DescribeLogDirsResponseTopic, ...] = wire(
        ARRAY(DescribeLogDirsResponseTopic), default=()
    )
    total_bytes: int = wire(INT64, since=4, default=-1)
    usable_bytes: int = wire(INT64, since=4, default=-1)


@message(DESCRIBE_LOG_DIRS)
class DescribeLogDirsResponse:
    """The log directories of the node."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, since=3, default=0)
    results: tuple[DescribeLogDirsResponseResult, ...] = wire(
        ARRAY(DescribeLogDirsResponseResult), default=()
    )
