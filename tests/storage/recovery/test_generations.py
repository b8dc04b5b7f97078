"""Several generations of a segment: which of them are the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptFile
from millstream.storage.files.names import SEGMENT_SUFFIXES, SegmentId
from millstream.storage.files.seal import Seal
from millstream.storage.recovery.generations import (
    GenerationCandidate,
    GenerationChoice,
    choose_generations,
)
from millstream.storage.segment.lifecycle import unseal_segment
from millstream.storage.segment.segment import SealedSegment, read_seal, remove_segment, write_index
from tests.storage.rewritten import (
    DIRECTORY,
    NEW,
    A,
    B,
    C,
    D,
    X,
    Y,
    make_disk,
    make_log_directory,
    path_of,
    remove,
    scan_log,
    values,
)

ENDS = {A: 10, B: 20, C: 30, D: 40, X: 30, Y: 40}

SEAL = Seal(
    base_offset=0,
    next_offset=0,
    size=100,
    batch_count=1,
    record_count=1,
    timestamp_min=0,
    timestamp_max=0,
    created_ms=0,
    sealed_ms=0,
    digest=bytes(16),
    leader_epoch=0,
)


def whole(segment: SegmentId, end: int | None = None) -> GenerationCandidate:
    """A segment with a log and a valid seal."""
    end = ENDS[segment] if end is None else end
    seal = replace(SEAL, base_offset=segment.base_offset, next_offset=end)
    return GenerationCandidate(id=segment, log_size=seal.size, has_seal=True, seal=seal)


def unsealed(segment: SegmentId, end: int | None = None) -> GenerationCandidate:
    """A segment whose end is known only from its log."""
    return GenerationCandidate(id=segment, log_size=100, has_seal=False, seal=None)


def seal_damaged(segment: SegmentId, end: int | None = None) -> GenerationCandidate:
    return GenerationCandidate(id=segment, log_size=100, has_seal=True, seal=None)


def without_log(segment: SegmentId, end: int | None = None) -> GenerationCandidate:
    return replace(whole(segment, end), log_size=None)


def log_longer_than_seal(segment: SegmentId, end: int | None = None) -> GenerationCandidate:
    return replace(whole(segment, end), log_size=101)


def chosen(
    *candidates: GenerationCandidate, start: int = 0, ends: dict[SegmentId, int] | None = None
) -> GenerationChoice:
    known = {**ENDS, **(ends or {})}
    return choose_generations(
        candidates, start_offset=start, read_end=lambda segment: known[segment]
    )


def read_nothing(segment: SegmentId) -> int:
    raise AssertionError(f"{segment} need not be read")


# What counts.


def test_what_was_never_rewritten_counts_and_is_not_read() -> None:
    choice = choose_generations(
        [whole(B), unsealed(C), whole(A)], start_offset=0, read_end=read_nothing
    )
    assert choice == GenerationChoice(live=[A, B, C])


def test_a_rewritten_segment_with_a_seal_counts_and_nothing_is_read() -> None:
    candidates = [whole(A), whole(B), whole(C), whole(D), whole(X)]
    choice = choose_generations(candidates, start_offset=0, read_end=read_nothing)
    assert choice == GenerationChoice(live=[X, D], superseded={A: X, B: X, C: X})


def test_what_is_left_of_an_input_is_read_where_it_has_no_seal() -> None:
    assert chosen(unsealed(B), whole(D), whole(X)) == GenerationChoice(
        live=[X, D], superseded={B: X}
    )


def test_a_damaged_seal_counts_as_one() -> None:
    choice = chosen(whole(A), whole(B), whole(C), seal_damaged(X))
    assert choice == GenerationChoice(live=[X], superseded={A: X, B: X, C: X})


def test_without_a_seal_it_is_unfinished_while_all_inputs_are_there() -> None:
    choice = chosen(whole(A), whole(B), whole(C), whole(D), unsealed(X))
    assert choice == GenerationChoice(live=[A, B, C, D], unfinished={X: [A, B, C]})


@pytest.mark.parametrize("left", [(), (A,), (B,), (C,), (A, B), (A, C), (B, C)])
def test_without_a_seal_it_counts_where_an_input_is_gone(left: tuple[SegmentId, ...]) -> None:
    choice = chosen(*map(whole, left), whole(D), unsealed(X))
    assert choice == GenerationChoice(live=[X, D], superseded=dict.fromkeys(left, X))


def test_an_unfinished_rewrite_may_be_of_one_segment_alone() -> None:
    rewritten = SegmentId(10, 1)
    choice = chosen(whole(A), whole(B), whole(C), unsealed(rewritten), ends={rewritten: 20})
    assert choice == GenerationChoice(live=[A, B, C], unfinished={rewritten: [B]})


# Deleted at the front.


def test_inputs_that_were_deleted_need_not_be_there() -> None:
    choice = chosen(whole(C), whole(D), unsealed(X), start=25)
    assert choice == GenerationChoice(live=[C, D], unfinished={X: [C]})


def test_inputs_that_hold_less_than_what_was_not_deleted_are_not_all() -> None:
    choice = chosen(whole(B), whole(D), unsealed(X), start=25)
    assert choice == GenerationChoice(live=[X, D], superseded={B: X})


def test_what_was_deleted_whole_is_not_unfinished() -> None:
    """It counts, and is removed with all else before the first offset."""
    assert chosen(whole(D), unsealed(X), start=35) == GenerationChoice(live=[X, D])


def test_a_rewrite_that_nothing_sound_is_left_of_is_not_taken_for_held() -> None:
    assert chosen(unsealed(X), ends={X: 0}) == GenerationChoice(live=[X])
    assert chosen(whole(A), unsealed(X), ends={X: 0}) == GenerationChoice(
        live=[A], unfinished={X: [A]}
    )


# Lost logs.


def test_a_seal_without_its_log_is_lost() -> None:
    assert chosen(whole(A), without_log(B), whole(C)) == GenerationChoice(live=[A, C], lost=[B])


def test_what_was_rewritten_does_not_come_back_where_the_log_is_lost() -> None:
    choice = chosen(whole(A), whole(C), whole(D), without_log(X))
    assert choice == GenerationChoice(live=[D], lost=[X], superseded={A: X, C: X})


def test_a_seal_that_is_left_of_an_input_is_superseded_too() -> None:
    assert chosen(without_log(B), whole(X)) == GenerationChoice(live=[X], superseded={B: X})


# Several generations.


def test_the_highest_generation_supersedes_all_below() -> None:
    choice = chosen(whole(A), whole(C), whole(D), whole(X), whole(Y))
    assert choice == GenerationChoice(live=[Y], superseded={A: Y, C: Y, D: Y, X: Y})


def test_an_unfinished_generation_leaves_the_one_below_with_what_it_superseded() -> None:
    choice = chosen(whole(A), whole(B), whole(C), whole(D), whole(X), unsealed(Y))
    assert choice.live == [X, D]
    assert choice.superseded == {A: X, B: X, C: X}
    assert choice.unfinished == {Y: [X, D]}


def test_neighbours_of_one_generation_stand_side_by_side() -> None:
    other = SegmentId(30, 1)
    choice = chosen(whole(B), whole(D), whole(X), whole(other, 40))
    assert choice == GenerationChoice(live=[X, other], superseded={B: X, D: other})


# Overlaps.


@pytest.mark.parametrize(
    ("segment", "end"),
    [(A, 31), (C, 31), (SegmentId(29, 0), 40)],
    ids=["starts alike", "ends behind", "starts inside"],
)
def test_half_inside_a_rewritten_segment_is_neither(segment: SegmentId, end: int) -> None:
    choice = chosen(whole(segment, end), whole(X))
    assert choice == GenerationChoice(live=[X], overlapping={segment: X})


def test_a_segment_that_reaches_into_a_rewritten_one_overlaps_it() -> None:
    rewritten = SegmentId(20, 1)
    choice = chosen(whole(B, 25), whole(rewritten, 30))
    assert choice == GenerationChoice(live=[rewritten], overlapping={B: rewritten})


def test_an_input_that_has_grown_since_is_measured_by_its_log() -> None:
    """Its seal is an old one that was put back."""
    choice = chosen(log_longer_than_seal(C), whole(X), ends={C: 32})
    assert choice == GenerationChoice(live=[X], overlapping={C: X})


def test_a_rewritten_segment_never_grows() -> None:
    choice = choose_generations(
        [log_longer_than_seal(X), whole(C)], start_offset=0, read_end=read_nothing
    )
    assert choice == GenerationChoice(live=[X], superseded={C: X})


# Whatever there is.

Kind = Callable[[SegmentId, int], GenerationCandidate]
KINDS: list[Kind] = [whole, unsealed, seal_damaged, without_log, log_longer_than_seal]


@given(
    st.dictionaries(
        st.builds(SegmentId, st.sampled_from([0, 10, 20, 30]), st.integers(0, 3)),
        st.tuples(st.sampled_from(KINDS), st.integers(1, 40)),
    ),
    st.integers(0, 45),
)
def test_every_candidate_is_exactly_one_thing_and_no_two_live_ones_start_alike(
    found: dict[SegmentId, tuple[Kind, int]], start: int
) -> None:
    ends = {segment: segment.base_offset + size for segment, (_, size) in found.items()}
    candidates = [kind(segment, ends[segment]) for segment, (kind, _) in found.items()]
    choice = chosen(*candidates, start=start, ends=ends)
    everything = [
        *choice.live,
        *choice.lost,
        *choice.superseded,
        *choice.unfinished,
        *choice.overlapping,
    ]
    assert sorted(everything) == sorted(found)
    counted = [*choice.live, *choice.lost]
    assert len({segment.base_offset for segment in counted}) == len(counted)
    assert all(holder in counted for holder in choice.superseded.values())
    assert not set(choice.unfinished) & {
        source for held in choice.unfinished.values() for source in held
    }


# The files of a generation.


def test_a_rewritten_segment_is_read_from_files_of_its_own() -> None:
    disk = make_disk(A, B, C, X)
    place = make_log_directory(disk)
    segment = SealedSegment(place, read_seal(place, *X), X.generation)
    assert segment.path == f"{DIRECTORY}/00000000000000000000.1.log"
    assert segment.keys_path == f"{DIRECTORY}/00000000000000000000.1.keys"
    assert (segment.base_offset, segment.next_offset) == (0, 30)
    assert values([segment]) == {n: value for n, value in NEW.items() if n < 30}
    assert segment.index()[0].position == 0


def test_the_seal_of_another_base_offset_is_refused_in_every_generation() -> None:
    disk = make_disk(B, X)
    disk.replace_content(path_of(X, "seal"), disk.content(path_of(B, "seal")))
    with pytest.raises(CorruptFile, match=r"00\.1\.seal: seal has base offset 10"):
        read_seal(make_log_directory(disk), *X)


def test_a_derived_index_is_written_back_beside_its_own_log() -> None:
    disk = make_disk(A, B, C, X)
    before = disk.contents()
    place = make_log_directory(disk)
    remove(disk, path_of(X, "index"))
    SealedSegment(place, read_seal(place, *X), X.generation).index()
    assert disk.contents() == before


def test_an_index_is_written_for_one_generation_alone() -> None:
    disk = make_disk(A, B, C, X)
    before = disk.contents()
    found = scan_log(make_log_directory(disk), A)
    write_index(
        make_log_directory(disk),
        found.index,
        base_offset=0,
        log_size=found.stats.size,
        generation=7,
    )
    assert disk.content(path_of(SegmentId(0, 7), "index")) == before[path_of(A, "index")]
    assert disk.content(path_of(X, "index")) == before[path_of(X, "index")]


@pytest.mark.parametrize(("gone", "other"), [(A, X), (X, A)])
def test_removing_a_segment_leaves_its_other_generations(gone: SegmentId, other: SegmentId) -> None:
    disk = make_disk(A, X)
    for segment in (A, X):
        disk.create(path_of(segment, "keys")).close()
    place = make_log_directory(disk)
    remove_segment(place, SealedSegment(place, read_seal(place, *gone), gone.generation))
    assert disk.list(DIRECTORY) == [
        *sorted(path_of(other, suffix).rpartition("/")[2] for suffix in SEGMENT_SUFFIXES),
        "partition.json",
    ]


def test_maps_of_a_removed_segment_are_given_back() -> None:
    disk = make_disk(X)
    place = make_log_directory(disk)
    segment = SealedSegment(place, read_seal(place, *X), X.generation)
    segment.view(0, 1), segment.index()
    place.map_cache.get(segment.keys_path, lambda: memoryview(b"keys"))
    assert (len(place.map_cache), len(place.index_cache)) == (2, 1)
    remove_segment(place, segment)
    assert (len(place.map_cache), len(place.index_cache)) == (0, 0)


def test_a_rewritten_segment_is_not_opened_again() -> None:
    disk = make_disk(X)
    before = disk.contents()
    place = make_log_directory(disk)
    with pytest.raises(AssertionError, match="was rewritten and does not grow"):
        unseal_segment(place, SealedSegment(place, read_seal(place, *X), X.generation))
    assert disk.contents() == before


def test_the_keys_of_a_segment_go_when_it_is_opened_again() -> None:
    disk = make_disk(A)
    disk.create(path_of(A, "keys")).close()
    place = make_log_directory(disk)
    unseal_segment(place, SealedSegment(place, read_seal(place, *A)))
    assert disk.list(DIRECTORY) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "checkpoint",
        "partition.json",
    ]
