"""OffsetForLeaderEpoch: looks up the end offsets of leader epochs."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import ARRAY, INT16, INT32, INT64, STRING

OFFSET_FOR_LEADER_EPOCH = Versions(first=2, last=4, flexible=4)


@struct
class OffsetForLeaderEpochRequestPartition:
    """The leader epoch to look up in one partition."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32)


@struct
class OffsetForLeaderEpochRequestTopic:
    """Partitions of one topic."""

    topic: str = wire(STRING)
    partitions: tuple[OffsetForLeaderEpochRequestPartition, ...] = wire(
        ARRAY(OffsetForLeaderEpochRequestPartition)
    )


@message(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochRequest:
    """Ask where leader epochs ended, to find out whether a reader has diverged from the log."""

    replica_id: int = wire(INT32, since=3, default=-2)
    topics: tuple[OffsetForLeaderEpochRequestTopic, ...] = wire(
        ARRAY(OffsetForLeaderEpochRequestTopic)
    )


@struct
class OffsetForLeaderEpochResponsePartition:
    """The largest epoch that is not above the requested one, and its end offset."""

    error_code: int = wire(INT16, default=0)
    partition: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    end_offset: int = wire(INT64, default=-1)


@struct
class OffsetForLeaderEpochResponseTopic:
    """Results for one topic."""

    topic: str = wire(STRING)
    partitions: tuple[OffsetForLeaderEpochResponsePartition, ...] = wire(
        ARRAY(OffsetForLeaderEpochResponsePartition), default=()
    )


@message(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochResponse:
    """The end offsets of the epochs."""

    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[OffsetForLeaderEpochResponseTopic, ...] = wire(
        ARRAY(OffsetForLeaderEpochResponseTopic), default=()
    )
