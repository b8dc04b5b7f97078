"""FetchBatches: a node reads committed batches of a partition that another node leads.

With `bytes_max` 0 it only asks where the partition begins and ends.
"""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT32,
    INT64,
    NULLABLE_STRING,
    RECORDS,
    UUID,
    Records,
)

FETCH_BATCHES = Versions(first=0, last=0, flexible=0)


@message(FETCH_BATCHES)
class FetchBatchesRequest:
    """Read batches up to the high watermark, or wait for news of the partition."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    """The epoch of the leader that the caller knows; -1 if it knows none."""
    offset: int = wire(INT64, default=0)
    bytes_max: int = wire(INT32, default=0)
    is_committed_only: bool = wire(BOOL, default=True)
    """Whether to read up to the last stable offset only, and to list aborted transactions."""
    wait_ms_max: int = wire(INT32, default=0)
    """How long to wait until the partition differs from what the caller knows."""
    known_end: int = wire(INT64, default=-1)
    known_stable_end: int = wire(INT64, default=-1)
    known_removals: int = wire(INT64, default=-1)


@struct
class FetchBatchesAbortedTransaction:
    """An aborted transaction: its producer and its first offset."""

    producer_id: int = wire(INT64)
    first_offset: int = wire(INT64)


@message(FETCH_BATCHES)
class FetchBatchesResponse:
    """Whole batches; the first one contains the offset."""

    leader_epoch: int = wire(INT32, default=-1)
    high_watermark: int = wire(INT64, default=-1)
    last_stable_offset: int = wire(INT64, default=-1)
    log_start: int = wire(INT64, default=-1)
    eviction_floor: int = wire(INT64, default=-1)
    """Records before it were deleted by retention."""
    eviction_reason: str | None = wire(NULLABLE_STRING, default=None)
    removals: int = wire(INT64, default=0)
    """Differs from that of an earlier response if records were removed in between."""
    is_out_of_range: bool = wire(BOOL, default=False)
    """Whether the offset is not one of the partition; then there are no batches."""
    next_offset: int = wire(INT64, default=-1)
    """The offset to continue at."""
    is_blank: bool = wire(BOOL, default=False)
    aborted: tuple[FetchBatchesAbortedTransaction, ...] = wire(
        ARRAY(FetchBatchesAbortedTransaction), default=()
    )
    batches: Records | None = wire(RECORDS, default=None)
