"""FetchBatches: a node reads committed batches of a partition that it does not lead."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    INT16,
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
    """Read batches up to the high watermark, and wait up to a time limit for some."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    leader_epoch: int = wire(INT32, default=-1)
    """-1 if the caller does not know it."""
    offset: int = wire(INT64)
    wait_ms_max: int = wire(INT32, default=0)
    bytes_max: int = wire(INT32)


@struct
class FetchBatchesAbortedTransaction:
    """An aborted transaction: its producer and its first offset."""

    producer_id: int = wire(INT64)
    first_offset: int = wire(INT64)


@message(FETCH_BATCHES)
class FetchBatchesResponse:
    """Whole batches; the first one contains the offset."""

    error_code: int = wire(INT16, default=0)
    leader_epoch: int = wire(INT32, default=-1)
    high_watermark: int = wire(INT64, default=-1)
    last_stable_offset: int = wire(INT64, default=-1)
    log_start: int = wire(INT64, default=-1)
    eviction_floor: int = wire(INT64, default=-1)
    eviction_reason: str | None = wire(NULLABLE_STRING, default=None)
    aborted: tuple[FetchBatchesAbortedTransaction, ...] = wire(
        ARRAY(FetchBatchesAbortedTransaction), default=()
    )
    batches: Records | None = wire(RECORDS, default=None)
