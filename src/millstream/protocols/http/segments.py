"""Messages about segments, the files of a partition."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from millstream.protocols.http.records import PartitionIndex

SEGMENTS_MAX = 1_000
"""Segments in one response."""

SEGMENT_CURSOR_PATTERN = "^(([0-9]{1,10}:)?[0-9]{1,19})?$"
"""A partition and an offset, or an offset alone."""


class SegmentsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The segments to list."""

    partition: PartitionIndex | None = None
    after: Annotated[
        str,
        Meta(
            pattern=SEGMENT_CURSOR_PATTERN,
            description="Only segments after this one: `next` of the previous response, or the base"
            " offset of a segment of the partition.",
        ),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=SEGMENTS_MAX, description="Maximum number of segments.")
    ] = 100


class SegmentShape(Struct, kw_only=True):
    """One segment file."""

    partition: int
    base_offset: int
    end_offset: int
    """The base offset of the next segment."""
    bytes: int
    records: int
    """Records in the file, including those deleted by key that are still in it."""
    first_timestamp: int | None
    """The smallest timestamp of a batch; null if there is no record."""
    last_timestamp: int | None
    """The greatest timestamp of a record."""
    state: Literal["sealed", "active", "cold"]
    """`cold` if the file is in the cold store only."""
    deleted: int | None
    """Records deleted by key that are still in the file; null if the partition would have to be
    opened to know it."""
    reclaimable_bytes: int | None
    """Size of these records."""


class SegmentsAnswer(Struct, kw_only=True):
    """A page of segments, sorted by partition and offset."""

    segments: list[SegmentShape]
    next: str | None
    """Pass as `after` to get the next page; null on the last page."""
