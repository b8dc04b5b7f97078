"""Eviction removes a prefix of whole segments, by age or by size, and never too much."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config.schema import DAY_MS, Discard, LogConfig
from millstream.errors import LogFull, RequestError
from millstream.storage.disk.file_cache import FileCache
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.seal import Seal, SegmentStats
from millstream.storage.retention.eviction import (
    Eviction,
    check_capacity,
    is_roll_due,
    plan_eviction,
    segment_age_ms_max,
)
from millstream.storage.segment.segment import GrowingSegment, LogDirectory, SealedSegment, Segment
from millstream.testing import SimulatedFilesystem

NOW_MS = 1_700_000_000_000
PLACE = LogDirectory(SimulatedFilesystem(), "/log", FileCache(1), FileCache(1), 4096)


def sealed(
    base: int,
    records: int = 10,
    *,
    size: int = 100,
    age_ms: int = 0,
    created_ms: int = 0,
    timestamp: int = 0,
) -> SealedSegment:
    seal = Seal(
        base_offset=base,
        next_offset=base + records,
        size=size,
        batch_count=1,
        record_count=records,
        timestamp_min=timestamp,
        timestamp_max=timestamp,
        created_ms=created_ms,
        sealed_ms=NOW_MS - age_ms,
        digest=bytes(16),
        leader_epoch=0,
    )
    return SealedSegment(PLACE, seal)


def growing(base: int, records: int = 10, *, size: int = 100, age_ms: int = 0) -> GrowingSegment:
    tally = SegmentStats(base, leader_epoch=0, created_ms=NOW_MS - age_ms)
    tally.next_offset += records
    tally.record_count = records
    tally.size = size
    return GrowingSegment(PLACE, tally, SegmentIndex(), None)


def plan(
    segments: Sequence[Segment],
    *,
    start: int = 0,
    committed: int | None = None,
    now_ms: int = NOW_MS,
    **config: object,
) -> Eviction | None:
    end = segments[-1].next_offset if committed is None else committed
    settings = LogConfig(**config)
    return plan_eviction(segments, start=start, committed=end, config=settings, now_ms=now_ms)


# By age.


def test_without_limits_nothing_goes():
    assert plan([sealed(0, age_ms=1000 * DAY_MS), growing(10)]) is None


def test_what_was_closed_longer_ago_than_allowed_goes():
    log = [sealed(0, age_ms=3 * DAY_MS), sealed(10, age_ms=2 * DAY_MS), sealed(20), growing(30)]
    assert plan(log, retention_ms=DAY_MS) == Eviction(20, 2, 200, 20, ("age",), "age")


def test_a_segment_may_be_exactly_as_old_as_allowed():
    log = [sealed(0, age_ms=DAY_MS), growing(10)]
    assert plan(log, retention_ms=DAY_MS) is None
    assert plan(log, retention_ms=DAY_MS - 1) is not None


def test_a_young_segment_keeps_those_behind_it():
    """Only a prefix is evicted: a log has no holes."""
    log = [sealed(0), sealed(10, age_ms=9 * DAY_MS), growing(20)]
    assert plan(log, retention_ms=DAY_MS) is None


@pytest.mark.parametrize("timestamp", [0, 253_402_300_799_000, -1])
def test_records_dated_1970_or_9999_are_as_old_as_their_segment(timestamp):
    young = [sealed(0, timestamp=timestamp, age_ms=DAY_MS), growing(10)]
    old = [sealed(0, timestamp=timestamp, age_ms=DAY_MS + 1), growing(10)]
    assert plan(young, retention_ms=DAY_MS) is None
    assert plan(old, retention_ms=DAY_MS) is not None


def test_a_segment_dated_in_the_future_stays():
    assert plan([sealed(0, age_ms=-DAY_MS), growing(10)], retention_ms=0) is None


def test_a_segment_whose_seal_was_derived_without_a_date_counts_from_then():
    undated = sealed(0, age_ms=NOW_MS, created_ms=NOW_MS - DAY_MS)
    assert plan([undated, growing(10)], retention_ms=DAY_MS) is None
    assert plan([undated, growing(10)], retention_ms=DAY_MS - 1) is not None


def test_the_last_segment_may_go_too_once_it_is_closed():
    """Then the log starts where it ends; its file stays until another segment follows."""
    assert plan([sealed(0, age_ms=2)], retention_ms=1) == Eviction(10, 1, 100, 10, ("age",), "age")


def test_a_growing_segment_never_goes():
    assert plan([growing(0, age_ms=9 * DAY_MS)], retention_ms=0) is None


# By size.


def test_segments_go_while_the_rest_still_holds_as_much_as_the_limit():
    log = [sealed(0), sealed(10), sealed(20), growing(30, size=50)]
    assert plan(log, retention_bytes=150) == Eviction(20, 2, 200, 20, ("bytes",), "bytes")
    assert plan(log, retention_bytes=151) == Eviction(10, 1, 100, 10, ("bytes",), "bytes")


def test_a_log_that_would_hold_less_than_the_limit_keeps_all():
    log = [sealed(0), sealed(10), growing(20, size=50)]
    assert plan(log, retention_bytes=151) is None
    assert plan(log, retention_bytes=251) is None


def test_records_are_counted_as_bytes_are():
    log = [sealed(0, 10), sealed(10, 20), sealed(30, 5), growing(35, 5)]
    assert plan(log, retention_records=10) == Eviction(30, 2, 200, 30, ("records",), "records")
    assert plan(log, retention_records=11) == Eviction(10, 1, 100, 10, ("records",), "records")
    assert plan(log, retention_records=31) is None


def test_a_limit_of_nothing_lets_all_go_that_is_closed():
    assert plan([sealed(0), sealed(10), growing(20)], retention_bytes=0) is not None
    assert plan([sealed(0), sealed(10), growing(20)], retention_records=0) is not None


def test_what_was_deleted_before_counts_no_more():
    """A dead segment may still exist: the last, or one whose file could not be removed."""
    log = [sealed(0), sealed(10), sealed(20), growing(30)]
    assert plan(log, start=10, retention_bytes=200) == Eviction(20, 1, 100, 10, ("bytes",), "bytes")
    assert plan(log, start=10, retention_bytes=201) is None


def test_what_is_not_committed_stays():
    log = [sealed(0), sealed(10), growing(20)]
    assert plan(log, committed=15, retention_bytes=0) == Eviction(
        10, 1, 100, 10, ("bytes",), "bytes"
    )
    assert plan(log, committed=5, retention_bytes=0) is None


def test_every_reason_is_named_once():
    log = [sealed(0, age_ms=9), sealed(10), sealed(20), growing(30)]
    found = plan(log, retention_ms=5, retention_bytes=200, retention_records=1)
    assert found == Eviction(30, 3, 300, 30, ("age", "bytes", "records"), "records")
    assert str(found) == (
        "3 segments with 30 records in 300 bytes, all before offset 30, by age, bytes, records"
    )


def test_a_log_that_rejects_evicts_by_age_alone():
    log = [sealed(0, age_ms=9), sealed(10), growing(20)]
    rejecting = {"discard": Discard.REJECT, "retention_bytes": 0, "retention_records": 0}
    assert plan(log, **rejecting) is None
    assert plan(log, **rejecting, retention_ms=5) == Eviction(10, 1, 100, 10, ("age",), "age")


def test_an_empty_log_has_nothing_to_lose():
    assert (
        plan_eviction([], start=7, committed=7, config=LogConfig(retention_ms=0), now_ms=1) is None
    )


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 50), st.integers(61, 5000), st.integers(-5, 500)), max_size=8
)


@settings(max_examples=200, deadline=None)
@given(
    segments=SEGMENTS,
    tail=st.integers(1, 20),
    start=st.integers(0, 100),
    ms=st.none() | st.integers(0, 400),
    size=st.none() | st.integers(0, 20_000),
    count=st.none() | st.integers(0, 200),
)
def test_what_stays_is_never_less_than_policy_and_never_more_than_it_has_to_be(
    segments, tail, start, ms, size, count
):
    log: list[Segment] = []
    base = 0
    for records, bytes_, age in segments:
        log.append(sealed(base, records, size=bytes_, age_ms=age))
        base += records
    log.append(growing(base, tail, size=tail * 61))
    start = min(start, base + tail)
    found = plan(log, start=start, retention_ms=ms, retention_bytes=size, retention_records=count)
    live = [one for one in log if one.next_offset > start]
    before = found.before_offset if found else start
    stays = [one for one in live if one.next_offset > before]
    gone = [one for one in live if one.next_offset <= before]
    for one in gone:
        rest = [other for other in live if other.base_offset > one.base_offset]
        assert isinstance(one, SealedSegment)
        is_old = ms is not None and NOW_MS - one.seal.sealed_ms > ms
        is_much = size is not None and sum(other.size for other in rest) >= size
        is_many = (
            count is not None
            and sum(other.next_offset - other.base_offset for other in rest) >= count
        )
        assert is_old or is_much or is_many
    if stays and isinstance(stays[0], SealedSegment):
        rest = stays[1:]
        assert ms is None or NOW_MS - stays[0].seal.sealed_ms <= ms
        assert size is None or sum(other.size for other in rest) < size
    assert found is None or (found.segments, found.bytes) == (
        len(gone), sum(one.size for one in gone),
    )  # fmt: skip


# Sealing the growing segment.


@pytest.mark.parametrize(
    ("age_ms_max", "settings"),
    [
        (7 * DAY_MS, {}),
        (100, {"segment_age_ms_max": 100, "retention_ms": 200}),
        (200, {"segment_age_ms_max": 300, "retention_ms": 200}),
        (50, {"retention_ms": 200, "is_compacted": True, "compaction_lag_ms_max": 50}),
        (200, {"retention_ms": 200, "is_compacted": False, "compaction_lag_ms_max": 50}),
        (200, {"retention_ms": 200, "is_compacted": True}),
        (0, {"retention_ms": 0}),
    ],
)
def test_a_growing_segment_is_closed_by_the_shortest_age_of_all(age_ms_max, settings):
    config = LogConfig(**settings)
    assert segment_age_ms_max(config) == age_ms_max
    for age, is_due in ((age_ms_max, False), (age_ms_max + 1, True)):
        log = [sealed(0), growing(10, age_ms=age)]
        assert is_roll_due(log, config=config, now_ms=NOW_MS) is is_due


def test_there_may_be_nothing_to_close():
    config = LogConfig(retention_ms=0)
    for log in ([], [sealed(0, age_ms=DAY_MS)], [growing(0, 0, size=0, age_ms=DAY_MS)]):
        assert not is_roll_due(log, config=config, now_ms=NOW_MS)


# Capacity.


def room(config: LogConfig, **held: int) -> None:
    check_capacity("orders/0", config, **held)


def test_a_log_that_discards_what_is_old_always_has_room():
    config = LogConfig(retention_bytes=1, retention_records=1)
    room(config, bytes=100, records=100, batch_bytes=100, batch_records=100)


def test_a_log_that_rejects_takes_what_fits_to_the_last_byte():
    config = LogConfig(retention_bytes=1000, discard=Discard.REJECT)
    room(config, bytes=900, records=9, batch_bytes=100, batch_records=1)
    with pytest.raises(LogFull) as caught:
        room(config, bytes=900, records=9, batch_bytes=101, batch_records=1)
    assert str(caught.value) == (
        "orders/0 is full: it must hold at most 1000 bytes, has 900, and the batch has 101"
    )


def test_a_log_that_rejects_counts_records_too():
    config = LogConfig(retention_records=10, discard=Discard.REJECT)
    room(config, bytes=10**9, records=9, batch_bytes=1, batch_records=1)
    with pytest.raises(LogFull, match=r"at most 10 records, has 9, and the batch has 2"):
        room(config, bytes=1, records=9, batch_bytes=1, batch_records=2)


def test_a_log_that_rejects_without_a_limit_has_room():
    config = LogConfig(discard=Discard.REJECT)
    room(config, bytes=2**62, records=2**62, batch_bytes=1, batch_records=1)


def test_a_full_log_is_no_trouble_that_passes_by_itself():
    assert issubclass(LogFull, RequestError)
    assert str(pickle.loads(pickle.dumps(LogFull("a")))) == "a"
