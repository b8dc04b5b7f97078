"""Which segments of a log are moved to the cold store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millstream.config.schema import LogConfig
from millstream.storage.retention.eviction import sealed_since
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.segment import SealedSegment, Segment


def relocatable_segments(
    segments: Sequence[Segment],
    *,
    start: int,
    end: int,
    masked: Collection[int],
    config: LogConfig,
    now_ms: int,
    hot_segments: int,
) -> list[SealedSegment]:
    """Return the segments to move, oldest first.

    They begin at or after `start` and end by `end`; the newest `hot_segments` always stay. A
    segment is moved when it is older than the local retention time, or when what follows it here
    is as large as the local limit; without such limits, as soon as it is not one of the newest. A
    segment of which records were deleted by key is rewritten first.
    """
    if not config.is_tiered:
        return []
    live = [segment for segment in segments if segment.next_offset > start]
    local_bytes = sum(s.size for s in live if not isinstance(s, ColdSegment))
    limit_ms, limit_bytes = config.local_retention_ms, config.local_retention_bytes
    selected: list[SealedSegment] = []
    for segment in live[: max(0, len(live) - hot_segments)]:
        if isinstance(segment, ColdSegment):
            continue
        if not isinstance(segment, SealedSegment) or segment.next_offset > end:
            break
        local_bytes -= segment.size
        is_old = limit_ms is not None and now_ms - sealed_since(segment.seal) > limit_ms
        is_beyond = limit_bytes is not None and local_bytes >= limit_bytes
        if not (is_old or is_beyond or limit_ms is limit_bytes is None):
            break
        if segment.base_offset not in masked:
            selected.append(segment)
    return selected
