"""Cleaning plans: which segments are worth cleaning, when, and which of them together."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from millstream.config.schema import DAY_MS, LogConfig
from millstream.errors import CorruptFile
from millstream.storage.compaction.plan import (
    OFFSET_INFINITY,
    RECLAIM_MS_MAX,
    first_deleted_offset,
    first_unreadable_offset,
    group_segments,
    is_worth_reclaiming,
    plan_compaction,
    rewritable_segments,
)
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.seal import Seal, SegmentStats
from millstream.storage.segment.log_state import DeletedOffsets
from millstream.storage.segment.segment import GrowingSegment, SealedSegment

from .cleanings import make_log_directory

PLACE = make_log_directory()
CONFIG = LogConfig(is_compacted=True, segment_bytes_max=1024, dirty_ratio_min=0.5)


def segment(
    base: int,
    end: int | None = None,
    *,
    size: int = 100,
    records: int = 10,
    epoch: int = 0,
    created_ms: int = 0,
    sealed_ms: int = 0,
) -> SealedSegment:
    """Return a segment of ten offsets, unless its end is given."""
    seal = Seal(
        base_offset=base,
        next_offset=base + 10 if end is None else end,
        size=size,
        batch_count=1,
        record_count=records,
        timestamp_min=0,
        timestamp_max=0,
        created_ms=created_ms,
        sealed_ms=sealed_ms,
        digest=bytes(16),
        leader_epoch=epoch,
    )
    return SealedSegment(PLACE, seal)


def row(*sizes: int, **options: int) -> list[SealedSegment]:
    """Return adjacent segments of these sizes."""
    return [segment(10 * n, size=size, **options) for n, size in enumerate(sizes)]


def growing(base: int) -> GrowingSegment:
    return GrowingSegment(
        PLACE, SegmentStats(base, leader_epoch=0, created_ms=0), SegmentIndex(), None
    )


def bases(segments: object) -> list[int]:
    return [each.base_offset for each in segments]


def sizes(groups: list[tuple[SealedSegment, ...]]) -> list[list[int]]:
    return [[each.size for each in run] for run in groups]


# Which segments.


def test_only_sealed_segments_with_live_records_that_end_in_time_are_rewritten():
    segments = [*row(1, 1, 1, 1), growing(40)]
    assert bases(rewritable_segments(segments, start=0, end=45)) == [0, 10, 20, 30]
    assert bases(rewritable_segments(segments, start=0, end=39)) == [0, 10, 20]
    assert bases(rewritable_segments(segments, start=10, end=45)) == [10, 20, 30]
    assert bases(rewritable_segments(segments, start=19, end=45)) == [10, 20, 30]
    assert rewritable_segments([], start=0, end=0) == []


def test_nothing_behind_a_segment_without_a_seal_is_rewritten():
    segments = [segment(0), growing(10), segment(20)]
    assert bases(rewritable_segments(segments, start=0, end=30)) == [0]


@pytest.mark.parametrize(
    ("segments", "start", "wall"),
    [
        ([], 0, OFFSET_INFINITY),
        (row(1, 1, 1), 0, OFFSET_INFINITY),
        (row(1, 1, 1), 5, OFFSET_INFINITY),
        ([segment(0), segment(20)], 0, 10),
        ([segment(10), segment(20)], 0, 0),
        ([segment(10), segment(20)], 10, OFFSET_INFINITY),
        ([segment(0, 25), segment(20)], 0, 20),
    ],
)
def test_a_missing_segment_is_a_wall(segments, start, wall):
    assert first_unreadable_offset(segments, start=start, is_damaged=lambda _: False) == wall


def test_the_first_damaged_segment_is_a_wall():
    assert (
        first_unreadable_offset(row(1, 1, 1), start=3, is_damaged=lambda s: s.base_offset >= 10)
        == 10
    )
    assert first_unreadable_offset(row(1, 1, 1), start=3, is_damaged=lambda s: True) == 0


# When.


def test_a_log_is_compacted_when_enough_of_it_is_dirty():
    segments = row(300, 100, 199)
    assert plan_compaction(segments, cleaned_offset=10, config=CONFIG, now_ms=0) is None
    segments = row(300, 100, 200)
    plan = plan_compaction(segments, cleaned_offset=10, config=CONFIG, now_ms=0)
    assert plan is not None
    assert (bases(plan.segments), bases(plan.dirty)) == ([0, 10, 20], [10, 20])


def test_a_segment_that_was_compared_in_part_is_dirty():
    plan = plan_compaction(row(100, 100), cleaned_offset=15, config=CONFIG, now_ms=0)
    assert plan is not None
    assert bases(plan.dirty) == [10]


def test_what_was_never_compacted_is_all_dirty():
    plan = plan_compaction(row(1, 1), cleaned_offset=0, config=CONFIG, now_ms=0)
    assert plan is not None
    assert bases(plan.dirty) == [0, 10]


def test_a_log_without_anything_dirty_is_left_alone_whatever_the_ratio():
    config = replace(CONFIG, dirty_ratio_min=0.0)
    assert plan_compaction(row(1, 1), cleaned_offset=20, config=config, now_ms=0) is None
    assert plan_compaction([], cleaned_offset=0, config=config, now_ms=0) is None


def test_a_segment_is_left_alone_until_it_is_old_enough_and_so_is_all_behind_it():
    config = replace(CONFIG, compaction_lag_ms_min=1000)
    segments = [
        segment(0, sealed_ms=500),
        segment(10, sealed_ms=600),
        segment(20, sealed_ms=601),
        segment(30, sealed_ms=0),
    ]
    plan = plan_compaction(segments, cleaned_offset=0, config=config, now_ms=1600)
    assert plan is not None
    assert bases(plan.segments) == [0, 10]
    plan = plan_compaction(segments, cleaned_offset=0, config=config, now_ms=1601)
    assert plan is not None
    assert bases(plan.segments) == [0, 10, 20, 30]
    forced = plan_compaction(segments, cleaned_offset=0, config=config, now_ms=9, is_forced=True)
    assert forced is None


def test_what_was_compacted_already_takes_part_though_it_was_merged_with_something_young():
    config = replace(CONFIG, compaction_lag_ms_min=1000)
    segments = [segment(0, sealed_ms=1599), segment(10, sealed_ms=600)]
    plan = plan_compaction(segments, cleaned_offset=10, config=config, now_ms=1600)
    assert plan is not None
    assert (bases(plan.segments), bases(plan.dirty)) == ([0, 10], [10])


def test_a_log_is_compacted_when_a_segment_has_waited_for_too_long_however_small_it_is():
    config = replace(CONFIG, compaction_lag_ms_max=1000)
    segments = [segment(0, size=900), segment(10, size=1, created_ms=500, sealed_ms=700)]
    assert plan_compaction(segments, cleaned_offset=10, config=config, now_ms=1500) is None
    plan = plan_compaction(segments, cleaned_offset=10, config=config, now_ms=1501)
    assert plan is not None
    assert bases(plan.dirty) == [10]


def test_a_log_is_compacted_when_tombstones_may_go():
    def plan(now_ms: int) -> object:
        return plan_compaction(
            row(1, 1), cleaned_offset=20, config=CONFIG, now_ms=now_ms, tombstones_due_ms=700
        )

    assert plan(699) is None
    assert plan(700) is not None


def test_a_forced_compaction_does_not_ask_whether_it_is_worth_it():
    plan = plan_compaction(row(1, 1), cleaned_offset=20, config=CONFIG, now_ms=0, is_forced=True)
    assert plan is not None
    assert (bases(plan.segments), plan.dirty) == ([0, 10], ())


# Reclaiming.


def mask(count: int, size: int) -> DeletedOffsets:
    return DeletedOffsets(array("q", range(count)), size)


@pytest.mark.parametrize(
    ("found", "front_bytes", "waited_ms", "is_pressing", "is_worth_it"),
    [
        (None, 0, 0, False, False),
        (None, 0, RECLAIM_MS_MAX, True, False),
        (mask(1, 49), 0, 0, False, False),
        (mask(1, 50), 0, 0, False, True),
        (mask(1, 1), 0, RECLAIM_MS_MAX - 1, False, False),
        (mask(1, 1), 0, RECLAIM_MS_MAX, False, True),
        (mask(1, 1), 0, 0, True, True),
        (None, 499, 0, False, False),
        (None, 500, 0, False, True),
        (None, 1, RECLAIM_MS_MAX, False, True),
        (None, 1, 0, True, True),
    ],
)
def test_a_segment_is_reclaimed_when_much_of_it_is_deleted_or_it_has_waited_long_enough(
    found, front_bytes, waited_ms, is_pressing, is_worth_it
):
    assert is_worth_it == is_worth_reclaiming(
        segment(0, size=1000),
        found,
        front_bytes=front_bytes,
        waited_ms=waited_ms,
        is_pressing=is_pressing,
    )


def test_rules_are_needed_from_the_first_masked_offset_on():
    assert first_deleted_offset({}) == OFFSET_INFINITY
    masks = {20: DeletedOffsets(array("q", [25, 27]), 9), 40: DeletedOffsets(array("q", [41]), 9)}
    assert first_deleted_offset(masks) == 25
    assert (
        first_deleted_offset({**masks, 10: DeletedOffsets(array("q"), 0, CorruptFile("?"))}) == 10
    )


# Which of them together.


def test_small_segments_become_one_as_long_as_that_is_no_larger_than_a_segment_may_be():
    found = group_segments(row(*[300] * 7), config=CONFIG)
    assert sizes(found) == [[300] * 3, [300] * 3, [300]]


def test_every_segment_is_in_exactly_one_group_and_in_order():
    segments = row(5, 900, 7, 7, 800, 1, 1, 1, 1024, 3, 3)
    for options in ({}, {"is_forced": True}, {"is_merging": False}):
        found = group_segments(segments, config=CONFIG, **options)
        assert [each for run in found for each in run] == segments


def test_nothing_is_merged_that_is_not_to_be():
    assert sizes(group_segments(row(1, 1, 1), config=CONFIG, is_merging=False)) == [[1], [1], [1]]


def test_a_large_segment_is_not_written_again_for_the_sake_of_small_ones():
    assert sizes(group_segments(row(500, 1, 1, 1), config=CONFIG)) == [[500], [1, 1, 1]]
    assert sizes(group_segments(row(1, 1, 500, 2, 2), config=CONFIG)) == [[1, 1], [500], [2, 2]]
    assert sizes(group_segments(row(500, 200, 200), config=CONFIG)) == [[500], [200, 200]]
    assert sizes(group_segments(row(500, 200, 300), config=CONFIG)) == [[500, 200, 300]]


def test_a_forced_merge_takes_them_together_all_the_same():
    assert sizes(group_segments(row(500, 1, 1), config=CONFIG, is_forced=True)) == [[500, 1, 1]]


def test_a_byte_is_merged_only_as_often_as_sizes_double():
    config = LogConfig(segment_bytes_max=2**20)
    tail: list[int] = []
    written = 0
    for _ in range(4096):
        tail.append(64)
        groups = group_segments(row(*tail), config=config)
        written += sum(sum(s.size for s in run) for run in groups if len(run) > 1)
        tail = [sum(s.size for s in run) for run in groups]
    assert len(tail) <= 13
    assert written <= 13 * 4096 * 64


def test_groups_end_at_a_new_epoch():
    segments = [segment(0), segment(10), segment(20, epoch=1), segment(30, epoch=1)]
    assert [bases(run) for run in group_segments(segments, config=CONFIG)] == [[0, 10], [20, 30]]


def test_groups_end_where_a_segment_is_missing():
    segments = [segment(0), segment(10), segment(30), segment(40)]
    assert [bases(run) for run in group_segments(segments, config=CONFIG)] == [[0, 10], [30, 40]]


def test_groups_end_where_they_are_told_to():
    found = group_segments(row(1, 1, 1, 1), config=CONFIG, breaks={0, 10, OFFSET_INFINITY})
    assert [bases(run) for run in found] == [[0], [10, 20, 30]]


def test_a_group_holds_no_more_records_than_a_segment_may():
    config = replace(CONFIG, segment_records_max=25)
    assert sizes(group_segments(row(1, 1, 1, 1), config=config)) == [[1, 1], [1, 1]]


def test_where_records_go_by_age_a_group_spans_no_more_time_than_a_segment_may():
    segments = [
        segment(10 * n, created_ms=n * DAY_MS, sealed_ms=(n + 1) * DAY_MS) for n in range(6)
    ]
    config = replace(CONFIG, segment_age_ms_max=2 * DAY_MS)
    assert len(group_segments(segments, config=config)) == 1
    config = replace(config, retention_ms=30 * DAY_MS)
    assert [bases(run) for run in group_segments(segments, config=config)] == [
        [0, 10],
        [20, 30],
        [40, 50],
    ]


def test_ten_thousand_small_segments_are_divided_in_no_time():
    found = group_segments(row(*[64] * 10_000), config=LogConfig(segment_bytes_max=64 * 1000))
    assert [len(run) for run in found] == [1000] * 10
