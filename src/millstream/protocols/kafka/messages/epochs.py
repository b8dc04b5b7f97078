"""Where the reign of a leader ended."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import ARRAY, INT16, INT32, INT64, STRING

OFFSET_FOR_LEADER_EPOCH = Versions(first=2, last=4, flexible=4)


@struct
class OffsetForLeaderEpochRequestPartition:
    """The reign to look up in one partition."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32)


@struct
class OffsetForLeaderEpochRequestTopic:
    """Partitions of one topic that are asked about."""

    topic: str = wire(STRING)
    partitions: tuple[OffsetForLeaderEpochRequestPartition, ...] = wire(
        ARRAY(OffsetForLeaderEpochRequestPartition)
    )


@message(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochRequest:
    """Where did these reigns end; asked by one whose history may not be the log's."""

    replica_id: int = wire(INT32, since=3, default=-2)
    topics: tuple[OffsetForLeaderEpochRequestTopic, ...] = wire(
        ARRAY(OffsetForLeaderEpochRequestTopic)
    )


@struct
class OffsetForLeaderEpochResponsePartition:
    """The newest reign not after the one asked about, and the offset after its last record."""

    error_code: int = wire(INT16, default=0)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    end_offset: int = wire(INT64, default=-1)


@struct
class OffsetForLeaderEpochResponseTopic:
    """What was found in one topic."""

    topic: str = wire(STRING)
    partitions: tuple[OffsetForLeaderEpochResponsePartition, ...] = wire(
        ARRAY(OffsetForLeaderEpochResponsePartition), default=()
    )


@message(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochResponse:
    """The ends of the reigns that were asked about."""

    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[OffsetForLeaderEpochResponseTopic, ...] = wire(
        ARRAY(OffsetForLeaderEpochResponseTopic), default=()
    )
