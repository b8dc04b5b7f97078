"""ListOffsets: looks up offsets by timestamp."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import ARRAY, INT8, INT16, INT32, INT64, STRING

LIST_OFFSETS = Versions(first=1, last=11, flexible=6)


@struct
class ListOffsetsRequestPartition:
    """The timestamp to look up in one partition."""

    partition_index: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=4, default=-1)
    timestamp: int = wire(INT64)


@struct
class ListOffsetsRequestTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[ListOffsetsRequestPartition, ...] = wire(ARRAY(ListOffsetsRequestPartition))


@message(LIST_OFFSETS)
class ListOffsetsRequest:
    """Look up offsets by timestamp; negative timestamps stand for positions such as the end."""

    replica_id: int = wire(INT32, default=-1)
    isolation_level: int = wire(INT8, since=2, default=0)
    topics: tuple[ListOffsetsRequestTopic, ...] = wire(ARRAY(ListOffsetsRequestTopic))
    timeout_ms: int = wire(INT32, since=10, default=0)


@struct
class ListOffsetsResponsePartition:
    """The offset in one partition; -1 if there is none."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    timestamp: int = wire(INT64, default=-1)
    offset: int = wire(INT64, default=-1)
    leader_epoch: int = wire(INT32, since=4, default=-1)


@struct
class ListOffsetsResponseTopic:
    """Results for one topic."""

    name: str = wire(STRING)
    partitions: tuple[ListOffsetsResponsePartition, ...] = wire(
        ARRAY(ListOffsetsResponsePartition), default=()
    )


@message(LIST_OFFSETS)
class ListOffsetsResponse:
    """The offsets of the timestamps."""

    throttle_time_ms: int = wire(INT32, since=2, default=0)
    topics: tuple[ListOffsetsResponseTopic, ...] = wire(ARRAY(ListOffsetsResponseTopic), default=())
