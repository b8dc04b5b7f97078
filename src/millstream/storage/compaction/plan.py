r"""Cleaning plans: which segments are worth cleaning, when, and which of them together.

    start        cleaned_offset                      stable, committed
    |            |                                   |
    +-----+ +----+ +------------+ +------------+ +---|-------+ +--------
    | clean | clean| dirty      | | dirty      | | too young | | growing
    +-----+ +----+ +------------+ +------------+ +---|-------+ +--------
     \____________ take part in compaction ____/

Compaction compares all records with the keys of the dirty part. That means reading everything, so
it waits until the dirty part is large, or has waited for long. Small adjacent segments are merged.
Pure functions of the state of a log.

Two rules for merging. A group never has more input than one segment may hold, so its output fits.
And a large segment is not written again because of a small one: what is added to the largest of a
group has to be as large as that, so the number of times that a byte is merged is logarithmic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from millstream.config.schema import DAY_MS, LogConfig
from millstream.records.decision import CleaningDecision
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.storage.retention.eviction import sealed_since
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.log_state import DeletedOffsets
from millstream.storage.segment.segment import SealedSegment, Segment

RECLAIM_RATIO_MIN = 0.05
"""A segment is rewritten at once when this share of it was deleted by key."""

RECLAIM_FRONT_RATIO_MIN = 0.5
"""Or when this share of it is before the start offset: the other part will soon be dead too."""

RECLAIM_MS_MAX = DAY_MS
"""Deleted records are removed from the disk after this time at the latest, however few they are."""

RULES_WAITING_MAX = 1_000
"""With more rules than this, all segments that they match are rewritten at once."""

OFFSET_INFINITY = 2**63 - 1
"""Greater than every offset."""

SegmentGroup: TypeAlias = tuple[SealedSegment, ...]
"""Adjacent segments that are rewritten as one."""


class CompactionPlan(NamedTuple):
    """A compaction that is worthwhile."""

    segments: SegmentGroup
    """All segments that take part."""
    dirty: SegmentGroup
    """The last of these: those not compared yet."""


def rewritable_segments(
    segments: Sequence[Segment], *, start: int, end: int
) -> list[SealedSegment]:
    """Return the segments that can be rewritten: sealed, with live records, and before `end`.

    They are the front of the log, without what is in a cold store: none follows one that cannot be
    rewritten.
    """
    live = (segment for segment in segments if segment.next_offset > start)
    selected: list[SealedSegment] = []
    for segment in live:
        if isinstance(segment, ColdSegment):
            continue
        if not isinstance(segment, SealedSegment) or segment.next_offset > end:
            break
        selected.append(segment)
    return selected


def first_unreadable_offset(
    segments: Sequence[SealedSegment],
    *,
    start: int,
    is_damaged: Callable[[SealedSegment], bool],
) -> int:
    """Return the first offset in a damaged or missing segment, or `OFFSET_INFINITY`.

    The records from there on are unknown.
    """
    expected = start
    for number, segment in enumerate(segments):
        is_follower = segment.base_offset == expected
        if not is_follower and (number > 0 or segment.base_offset > start):
            return min(expected, segment.base_offset)
        if is_damaged(segment):
            return segment.base_offset
        expected = segment.next_offset
    return OFFSET_INFINITY


def plan_compaction(
    segments: Sequence[SealedSegment],
    *,
    cleaned_offset: int,
    config: LogConfig,
    now_ms: int,
    tombstones_due_ms: int | None = None,
    is_forced: bool = False,
) -> CompactionPlan | None:
    """Return what to compact of the rewritable segments; `None` if it is not worth the cost.

    `tombstones_due_ms` is when the first known tombstone expires. `is_forced` compacts everything
    that is old enough.
    """

    def is_old_enough(segment: SealedSegment) -> bool:
        age_ms = now_ms - sealed_since(segment.seal)
        is_clean = segment.next_offset <= cleaned_offset
        return is_clean or age_ms >= config.compaction_lag_ms_min

    selected = tuple(takewhile(is_old_enough, segments))
    dirty = tuple(segment for segment in selected if segment.next_offset > cleaned_offset)
    are_tombstones_due = tombstones_due_ms is not None and now_ms >= tombstones_due_ms
    if not selected or not (
        is_forced or are_tombstones_due or _is_dirty_enough(selected, dirty, config, now_ms)
    ):
        return None
    return CompactionPlan(selected, dirty)


def is_carried_out(partition: PartitionMetadata) -> bool:
    """Whether the newest cleaning decision was carried out completely."""
    decisions = partition.decisions
    return decisions is None or (
        partition.cleaned_offset >= decisions.cleaning.upto
        and decisions.tombstones_cleaned >= decisions.cleaning.tombstones_before
    )


def plan_decided(
    segments: Sequence[SealedSegment], decision: CleaningDecision, cleaned_offset: int
) -> CompactionPlan | None:
    """Return what a decision asks to compact of the rewritable segments."""
    selected = tuple(takewhile(lambda s: s.base_offset < decision.upto, segments))
    dirty = tuple(s for s in selected if s.next_offset > cleaned_offset)
    return CompactionPlan(selected, dirty) if selected else None


def plan_decision(
    segments: Sequence[SealedSegment],
    *,
    partition: PartitionMetadata,
    config: LogConfig,
    now_ms: int,
    cleaned_elsewhere: int,
    is_forced: bool,
) -> CleaningDecision | None:
    """Return the next decision of a leader over the rewritable segments, if it is worthwhile.

    Tombstones are removed if a decision that covers them was applied here long enough ago, and if
    no replica has an older record of their keys any more.
    """
    decisions = partition.decisions
    assert decisions is not None, "only a log with replicas decides"
    last = decisions.cleaning
    expired = max(
        (m.upto for m in decisions.marks if now_ms - m.ms >= config.tombstone_ms), default=0
    )
    removable = min(expired, cleaned_elsewhere, partition.cleaned_offset)
    tombstones_before = max(removable, last.tombstones_before)
    is_due = tombstones_before > last.tombstones_before and partition.tombstones_due_ms > 0
    plan = plan_compaction(
        segments,
        cleaned_offset=partition.cleaned_offset,
        config=config,
        now_ms=now_ms,
        tombstones_due_ms=now_ms if is_due else None,
        is_forced=is_forced,
    )
    if plan is None:
        return None
    decision = CleaningDecision(max(plan.segments[-1].next_offset, last.upto), tombstones_before)
    return None if decision == last else decision


def _is_dirty_enough(
    selected: SegmentGroup, dirty: SegmentGroup, config: LogConfig, now_ms: int
) -> bool:
    if not dirty:
        return False
    lag_ms_max = config.compaction_lag_ms_max
    if lag_ms_max is not None and now_ms - dirty[0].seal.created_ms > lag_ms_max:
        return True
    return _size(dirty) >= config.dirty_ratio_min * _size(selected)


def is_worth_reclaiming(
    segment: SealedSegment,
    mask: DeletedOffsets | None,
    *,
    front_bytes: int,
    waited_ms: int,
    is_pressing: bool,
) -> bool:
    """Whether a segment is to be rewritten without its deleted records.

    `front_bytes` of it are before the start offset of the log. `is_pressing` means that every byte
    counts.
    """
    masked_bytes = mask.bytes if mask is not None else 0
    if mask is None and front_bytes == 0:
        return False
    return (
        is_pressing
        or waited_ms >= RECLAIM_MS_MAX
        or masked_bytes >= RECLAIM_RATIO_MIN * segment.size
        or front_bytes >= RECLAIM_FRONT_RATIO_MIN * segment.size
    )


def first_deleted_offset(masks: Mapping[int, DeletedOffsets]) -> int:
    """Return the first offset for which a rule is still needed; `OFFSET_INFINITY` if none is."""
    firsts = (
        base if mask.damage is not None else mask.offsets[0]
        for base, mask in masks.items()
        if mask.offsets or mask.damage is not None
    )
    return min(firsts, default=OFFSET_INFINITY)


def group_segments(
    segments: Sequence[SealedSegment],
    *,
    config: LogConfig,
    breaks: Collection[int] = (),
    is_merging: bool = True,
    is_forced: bool = False,
) -> list[SegmentGroup]:
    """Divide segments into groups, each of which becomes one segment; order is kept.

    Groups end at `breaks`, at a new leader epoch and where a segment is missing. `is_forced` merges
    everything that may be merged, even with little gain.
    """
    if not is_merging:
        return [(segment,) for segment in segments]
    packed = _pack_groups(segments, config, breaks)
    return [
        group for run in packed for group in (_split_unprofitable(run) if not is_forced else (run,))
    ]


def _pack_groups(
    segments: Sequence[SealedSegment], config: LogConfig, breaks: Collection[int]
) -> Iterator[SegmentGroup]:
    """Fill one group after the other."""
    pack = _OpenGroup(config)
    for segment in segments:
        is_break = segment.base_offset in breaks and pack.segments
        if is_break or not pack.has_room_for(segment):
            yield tuple(pack.segments)
            pack = _OpenGroup(config)
        pack.add(segment)
    if pack.segments:
        yield tuple(pack.segments)


class _OpenGroup:
    """A group that is being filled."""

    def __init__(self, config: LogConfig) -> None:
        self.segments: list[SealedSegment] = []
        self._config = config
        self._size = 0
        self._records = 0
        self._first_ms = OFFSET_INFINITY
        self._last_ms = 0

    def has_room_for(self, segment: SealedSegment) -> bool:
        """Whether a segment may be added.

        Records expire by age in whole segments. So that none stays much longer than it has to, no
        group spans more time than a segment may.
        """
        if not self.segments:
            return True
        config, seal, last = self._config, segment.seal, self.segments[-1]
        first_ms = min(self._first_ms, seal.created_ms)
        last_ms = max(self._last_ms, sealed_since(seal))
        return (
            last.next_offset == segment.base_offset
            and last.leader_epoch == segment.leader_epoch
            and self._size + segment.size <= config.segment_bytes_max
            and self._records + seal.record_count <= config.segment_records_max
            and (config.retention_ms is None or last_ms - first_ms <= config.segment_age_ms_max)
        )

    def add(self, segment: SealedSegment) -> None:
        self.segments.append(segment)
        self._size += segment.size
        self._records += segment.seal.record_count
        self._first_ms = min(self._first_ms, segment.seal.created_ms)
        self._last_ms = max(self._last_ms, sealed_since(segment.seal))


def _split_unprofitable(run: SegmentGroup) -> Iterator[SegmentGroup]:
    """Split a group that would be written for the sake of too little."""
    largest = max(run, key=lambda segment: segment.size)
    if len(run) == 1 or _size(run) - largest.size >= largest.size:
        yield run
        return
    at = run.index(largest)
    for part in (run[:at], run[at : at + 1], run[at + 1 :]):
        if part:
            yield from _split_unprofitable(part)


def _size(segments: Sequence[SealedSegment]) -> int:
    return sum(segment.size for segment in segments)
