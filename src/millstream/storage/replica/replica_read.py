"""Reading a log for its replicas: slices of one segment, as they are stored.

A slice ends at the durable end of the log, or at the written one, whether readers may see that
far or not, and never spans two segments. So a replica knows where each segment begins and ends.
What the log hides from readers is part of it: records before the start, records deleted by key, and
what is not replicated yet.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.storage.retention.eviction import sealed_since
from millstream.storage.segment.log_state import LogState
from millstream.storage.segment.replica_slice import ReplicaSlice
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment


def read_for_replica(
    state: LogState,
    offset: int,
    *,
    size_max: int,
    is_checked: bool,
    is_durable: bool,
    is_finished: Callable[[Segment], bool],
    leader_epoch: int,
    now_ms: int,
) -> ReplicaSlice:
    """Return a slice from the batch that contains `offset` on; an empty one at the end.

    That is the durable end, or with `is_durable` false the end of what is written.
    `is_finished` tells whether a segment takes no more batches. An empty log has no segment: its
    slice names the one that the next batch will start, in `leader_epoch`.
    """
    segment, batches = state.read_stored(
        offset, size_max=size_max, is_checked=is_checked, is_durable=is_durable
    )
    if segment is None:
        return ReplicaSlice(
            leader_epoch=leader_epoch,
            segment=offset,
            position=0,
            offset=offset,
            next_offset=offset,
        )
    end = batches.next_address.position
    # In this order: a segment that is finished does not grow any more.
    is_last = is_finished(segment) and end == segment.size
    first = batches.next_offset
    if batches.data:
        first = int.from_bytes(batches.data[:8], signed=True)
    return ReplicaSlice(
        leader_epoch=segment.leader_epoch,
        segment=segment.base_offset,
        generation=segment.generation if isinstance(segment, SealedSegment) else 0,
        position=batches.address.position,
        offset=first,
        next_offset=batches.next_offset,
        data=batches.data,
        is_last_of_segment=is_last,
        created_age_ms=max(0, now_ms - _created_ms(segment)),
        sealed_age_ms=max(0, now_ms - _sealed_ms(segment, now_ms)) if is_last else 0,
    )


def _created_ms(segment: Segment) -> int:
    if isinstance(segment, GrowingSegment):
        return segment.stats.created_ms
    assert isinstance(segment, SealedSegment)
    return segment.seal.created_ms


def _sealed_ms(segment: Segment, now_ms: int) -> int:
    if isinstance(segment, GrowingSegment):
        return now_ms if segment.sealed_ms is None else segment.sealed_ms
    assert isinstance(segment, SealedSegment)
    return sealed_since(segment.seal)
