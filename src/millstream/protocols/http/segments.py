"""Segments over HTTP: the files that partitions consist of."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from millstream.protocols.http.records import PartitionIndex

SEGMENTS_MAX = 1_000
"""Segments in one answer."""

SEGMENT_CURSOR_PATTERN = "^(([0-9]{1,10}:)?[0-9]{1,19})?$"
"""A partition and an offset, or an offset alone."""


class SegmentsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which segments to list."""

    partition: PartitionIndex | None = None
    after: Annotated[
        str,
        Meta(
            pattern=SEGMENT_CURSOR_PATTERN,
            description="Only segments after this one: `next` of the answer before, or the base"
            " offset of a segment of the partition.",
        ),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=SEGMENTS_MAX, description="Segments in the answer, at the most.")
    ] = 100


class SegmentShape(Struct, kw_only=True):
    """A run of records in one file."""

    partition: int
    base_offset: int
    end_offset: int
    """The offset that the next segment starts with."""
    bytes: int
    records: int
    """In its file, with those that were deleted by key and are still there."""
    first_timestamp: int | None
    """The smallest of a batch; null where it holds no record."""
    last_timestamp: int | None
    """The greatest of a record."""
    state: Literal["sealed", "active"]
    deleted: int | None
    """Records that were deleted by key and are still in the file; null where that is not known
    without opening the partition."""
    reclaimable_bytes: int | None
    """What these take."""


class SegmentsAnswer(Struct, kw_only=True):
    """Some segments, by partition and offset."""

    segments: list[SegmentShape]
    next: str | None
    """What to ask `after` for more; null where there is no more."""
