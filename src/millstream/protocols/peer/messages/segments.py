"""SegmentManifest and SegmentChunk: copy sealed segments to a new, lost or damaged replica."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    BYTES,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    RECORDS,
    UUID,
    Records,
)

SEGMENT_MANIFEST = Versions(first=0, last=0, flexible=0)
SEGMENT_CHUNK = Versions(first=0, last=0, flexible=0)


@message(SEGMENT_MANIFEST)
class SegmentManifestRequest:
    """List the sealed segments of a partition that have records from an offset on."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    from_offset: int = wire(INT64, default=0)
    count_max: int = wire(INT32, default=1000)


@struct
class SegmentManifestEntry:
    """One sealed segment."""

    base: int = wire(INT64)
    generation: int = wire(INT32)
    size: int = wire(INT64)
    next_offset: int = wire(INT64)
    """The offset after its last record."""
    digest: bytes = wire(BYTES)
    leader_epoch: int = wire(INT32)
    """The epoch of all its batches."""
    created_age_ms: int = wire(INT64)
    """How long ago it was started, by the retention clock of the node that answers."""
    sealed_age_ms: int = wire(INT64)


@struct
class SegmentManifestEpoch:
    """The first offset of a leader epoch."""

    epoch: int = wire(INT32)
    start_offset: int = wire(INT64)


@message(SEGMENT_MANIFEST)
class SegmentManifestResponse:
    """The sealed segments, in order of their base offsets."""

    error_code: int = wire(INT16, default=0)
    leader_epoch: int = wire(INT32, default=-1)
    log_start: int = wire(INT64, default=-1)
    eviction_floor: int = wire(INT64, default=-1)
    eviction_reason: str | None = wire(NULLABLE_STRING, default=None)
    high_watermark: int = wire(INT64, default=-1)
    epochs: tuple[SegmentManifestEpoch, ...] = wire(ARRAY(SegmentManifestEpoch), default=())
    segments: tuple[SegmentManifestEntry, ...] = wire(ARRAY(SegmentManifestEntry), default=())
    has_more: bool = wire(BOOL, default=False)
    """Whether there are segments behind the last one."""
    sealed_end: int = wire(INT64, default=-1)
    """The offset after the last sealed segment of the partition."""
    sealed_bytes: int = wire(INT64, default=0)
    """Size of all sealed segments from the requested offset on, also of those not listed."""


@message(SEGMENT_CHUNK)
class SegmentChunkRequest:
    """Read bytes of the file of one sealed segment."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    leader_epoch: int = wire(INT32)
    base: int = wire(INT64)
    generation: int = wire(INT32)
    position: int = wire(INT64)
    bytes_max: int = wire(INT32)


@message(SEGMENT_CHUNK)
class SegmentChunkResponse:
    """Bytes of the segment from the position on; fewer than asked for only at its end."""

    error_code: int = wire(INT16, default=0)
    size: int = wire(INT64, default=-1)
    """Size of the whole file."""
    chunk: Records | None = wire(RECORDS, default=None)
