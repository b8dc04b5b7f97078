"""EpochEnd: where leader epochs ended, to find the last common one."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import ARRAY, INT16, INT32, INT64, UUID

EPOCH_END = Versions(first=0, last=0, flexible=0)


@struct
class EpochEndRequestPartition:
    """The epoch to look up in one partition."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    """The epoch in which the caller believes the leader to be."""
    epoch: int = wire(INT32)


@message(EPOCH_END)
class EpochEndRequest:
    """Look up epochs."""

    partitions: tuple[EpochEndRequestPartition, ...] = wire(ARRAY(EpochEndRequestPartition))


@struct
class EpochEndResponsePartition:
    """The largest epoch that is not above the requested one, and where it ends."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    epoch: int = wire(INT32, default=-1)
    end_offset: int = wire(INT64, default=-1)


@message(EPOCH_END)
class EpochEndResponse:
    """The ends of the epochs."""

    partitions: tuple[EpochEndResponsePartition, ...] = wire(
        ARRAY(EpochEndResponsePartition), default=()
    )
