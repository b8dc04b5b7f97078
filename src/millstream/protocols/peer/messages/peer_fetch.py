"""PeerFetch: a follower reads batches from the leader, as they are in its segments.

Fetch sessions work as in Kafka (KIP-227), one for each follower and leader:

    session 0, epoch 0     start a session; all partitions are named and answered
    session n, epoch e     only partitions are named whose position changed for another reason than
                           the batches of the last response, and only those with news are answered
    session n, epoch -1    end the session

The follower is the node of the connection's handshake; a request cannot name another one.
"""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    INT64,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    RECORDS,
    UUID,
    Records,
)

PEER_FETCH = Versions(first=0, last=0, flexible=0)


@struct
class PeerFetchRequestPartition:
    """Where a follower is in one partition."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    """The epoch in which the follower believes the leader to be."""
    fetch_offset: int = wire(INT64)
    """The end of what the follower has written and synced."""
    last_fetched_epoch: int = wire(INT32)
    """Epoch of its last batch; -1 if it has none."""
    log_start: int = wire(INT64)
    bytes_max: int = wire(INT32)
    cleaned_offset: int = wire(INT64, default=0, tag=0)
    """Before it, the follower has no two records of a key."""
    tombstones_removed: int = wire(INT64, default=0, tag=1)
    """Tombstones before it may be missing from the follower's log."""
    revision: int = wire(INT64, default=0, tag=2)
    """Revision of the newest state of the partition that the follower knows."""


@struct
class PeerFetchForgottenPartition:
    """A partition to remove from the session."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)


@message(PEER_FETCH)
class PeerFetchRequest:
    """Read batches, and wait up to a time limit for a minimum of bytes."""

    session_id: int = wire(INT32, default=0)
    session_epoch: int = wire(INT32, default=0)
    broker_epoch: int = wire(INT64)
    """Of the follower: the create revision of its registration."""
    wait_ms_max: int = wire(INT32)
    bytes_min: int = wire(INT32, default=1)
    bytes_max: int = wire(INT32)
    partitions: tuple[PeerFetchRequestPartition, ...] = wire(
        ARRAY(PeerFetchRequestPartition), default=()
    )
    forgotten: tuple[PeerFetchForgottenPartition, ...] = wire(
        ARRAY(PeerFetchForgottenPartition), default=()
    )


@struct
class PeerFetchDiverging:
    """The largest epoch that is not above the follower's last one, and where it ends."""

    epoch: int = wire(INT32)
    end_offset: int = wire(INT64)


@struct
class PeerFetchResponsePartition:
    """A slice of one segment of one partition."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    leader_epoch: int = wire(INT32, default=-1)
    diverging: PeerFetchDiverging | None = wire(PeerFetchDiverging, default=None, nullable_since=0)
    """Set if the follower has to truncate its log first; then there are no batches."""
    segment_base: int = wire(INT64, default=-1)
    position: int = wire(INT64, default=-1)
    """Position of the first batch in the segment file."""
    is_last_of_segment: bool = wire(BOOL, default=False)
    """Whether the segment is finished, and ends with these batches."""
    seal: bytes | None = wire(NULLABLE_BYTES, default=None)
    """The seal of the segment that ends here, opaque."""
    high_watermark: int = wire(INT64, default=-1)
    log_start: int = wire(INT64, default=-1)
    eviction_floor: int = wire(INT64, default=-1)
    eviction_reason: str | None = wire(NULLABLE_STRING, default=None)
    batches: Records | None = wire(RECORDS, default=None)
    tombstones_removed: int = wire(INT64, default=0, tag=0)
    """With `OFFSET_OUT_OF_RANGE`: tombstones before it may be missing from the leader's log."""


@message(PEER_FETCH)
class PeerFetchResponse:
    """The news of partitions."""

    error_code: int = wire(INT16, default=0)
    """Of the session, or of the follower: `STALE_BROKER_EPOCH`."""
    session_id: int = wire(INT32, default=0)
    partitions: tuple[PeerFetchResponsePartition, ...] = wire(
        ARRAY(PeerFetchResponsePartition), default=()
    )
