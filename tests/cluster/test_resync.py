"""How a replica compares its segments with those of its leader, as decisions without a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from millstream.cluster.resync import (
    FETCH,
    KEEP,
    PROVE,
    SLICES,
    OwnLog,
    ResyncKind,
    ResyncStep,
    SegmentIdentity,
    last_step,
    resync_step,
)


def segment(base: int, end: int, digest: bytes = b"same", generation: int = 0) -> SegmentIdentity:
    return SegmentIdentity(base, end, (end - base) * 10, digest, generation)


def own(*segments: SegmentIdentity, end: int | None = None, is_proved: bool = True) -> OwnLog:
    return OwnLog(0, segments[-1].next_offset if end is None else end, segments, is_proved)


def test_an_empty_replica_fetches_what_begins_at_its_end():
    assert resync_step(OwnLog(0, 0, (), is_proved=True), segment(0, 10)) == FETCH
    assert resync_step(OwnLog(10, 10, (), is_proved=True), segment(0, 10)) == KEEP
    assert resync_step(OwnLog(0, 0, (), is_proved=True), segment(10, 20)) == SLICES


def test_an_equal_segment_is_kept_and_read_first_if_nothing_is_proved():
    assert resync_step(own(segment(0, 10)), segment(0, 10)) == KEEP
    assert resync_step(own(segment(0, 10), is_proved=False), segment(0, 10)) == PROVE


def test_a_segment_with_another_digest_is_replaced_unless_it_is_proved():
    mine = segment(0, 10, b"mine")
    assert resync_step(own(mine, is_proved=False), segment(0, 10)) == FETCH
    assert resync_step(own(mine), segment(0, 10)) == KEEP


def test_a_segment_that_takes_the_place_of_several_is_fetched_whole():
    mine = own(segment(0, 5), segment(5, 10), end=20, is_proved=False)
    assert resync_step(mine, segment(0, 10, generation=1)) == FETCH


def test_segments_that_begin_elsewhere_are_cut_and_then_fetched():
    mine = own(segment(0, 7), segment(7, 15), is_proved=False)
    assert resync_step(mine, segment(0, 10)) == ResyncStep(ResyncKind.CUT, 0)
    assert resync_step(mine, segment(10, 20)) == ResyncStep(ResyncKind.CUT, 7)


def test_records_continue_a_segment_that_grows_unless_it_is_not_proved():
    assert resync_step(own(end=15), segment(10, 20)) == SLICES
    mine = own(segment(0, 10), end=15, is_proved=False)
    assert resync_step(mine, segment(10, 20)) == ResyncStep(ResyncKind.CUT, 10)


def test_an_end_that_is_not_proved_goes_last():
    mine = own(segment(0, 10), end=15, is_proved=False)
    assert last_step(mine, 10) == ResyncStep(ResyncKind.CUT, 10)
    assert last_step(mine, 15) == SLICES
    assert last_step(own(end=15), 10) == SLICES


def logs() -> st.SearchStrategy[list[SegmentIdentity]]:
    """Consecutive segments of any sizes, each with the leader's digest or another one."""

    def build(parts: Sequence[tuple[int, bool]]) -> list[SegmentIdentity]:
        found, base = [], 0
        for size, is_same in parts:
            digest = b"same" if is_same else b"other"
            found.append(segment(base, base + size, digest))
            base += size
        return found

    return st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=5).map(build)


@given(logs(), logs().map(lambda found: [s._replace(digest=b"same") for s in found]))
def test_an_unproved_replica_ends_with_the_segments_of_its_leader(
    mine: list[SegmentIdentity], leader: list[SegmentIdentity]
):
    """Carry out the decisions on lists of segments: what is left must be the leader's."""
    log = OwnLog(0, mine[-1].next_offset if mine else 0, tuple(mine), is_proved=False)
    for wanted in leader:
        for _ in range(3):
            step = resync_step(log, wanted)
            if step.kind is ResyncKind.CUT:
                kept = tuple(s for s in log.segments if s.next_offset <= step.offset)
                log = log._replace(end_offset=step.offset, segments=kept)
                continue
            if step.kind is ResyncKind.FETCH:
                others = tuple(
                    s
                    for s in log.segments
                    if not wanted.base_offset <= s.base_offset < wanted.next_offset
                )
                segments = tuple(sorted((*others, wanted)))
                end = max(log.end_offset, wanted.next_offset)
                log = log._replace(end_offset=end, segments=segments)
            break
        assert step.kind is not ResyncKind.CUT
        if step.kind is ResyncKind.SLICES:
            break
    sealed_end = leader[-1].next_offset if leader else 0
    step = last_step(log, sealed_end)
    end = step.offset if step.kind is ResyncKind.CUT else log.end_offset
    left = [s for s in log.segments if s.next_offset <= end]
    assert left == leader[: len(left)]
    assert sum(s.next_offset - s.base_offset for s in left) == end
