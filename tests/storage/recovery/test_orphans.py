"""Opening a log with rewritten segments: either the old files count or the new ones.

Everything that is removed is also in another file that was read and is valid.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from crc32c import crc32c

from millstream.config.schema import Durability
from millstream.errors import UnknownFormat
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.records.iterate import read_all
from millstream.storage.disk.filesystem import join
from millstream.storage.files.checkpoint import SyncPoint
from millstream.storage.files.document import replace_file
from millstream.storage.files.names import CHECKPOINT_FILE, PARTITION_FILE, SegmentId
from millstream.storage.files.partition_metadata import (
    DeletionRule,
    PartitionMetadata,
    read_partition_metadata,
)
from millstream.storage.files.seal import decode_seal, encode_seal
from millstream.storage.inspect.verify_store import verify_partition
from millstream.storage.recovery.log_recovery import recover
from millstream.storage.segment.segment import write_index
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.disk.crash_states import crash_states
from tests.storage.rewritten import (
    DIRECTORY,
    DROPPED,
    END,
    INPUTS,
    NEW,
    OLD,
    A,
    B,
    C,
    D,
    X,
    Y,
    appended,
    batches_of,
    cut,
    files_of,
    flip,
    log_of,
    logs,
    make_disk,
    make_log_directory,
    names_of,
    path_of,
    put_checkpoint,
    put_log,
    put_seal,
    recovered,
    remove,
    scan_log,
    values,
)

Disk = SimulatedFilesystem
HARMED = 20_000 if os.environ.get("MILLSTREAM_LONG") else 400
PARTITION = join(DIRECTORY, PARTITION_FILE)
CHECKPOINT = join(DIRECTORY, CHECKPOINT_FILE)


def full() -> Disk:
    """The disk after a crash just after a rewrite was sealed: nothing is removed yet."""
    return make_disk(A, B, C, D, X)


def is_damaged(disk: Disk) -> bool:
    """The result of `verify` for the directory."""
    return any(found.is_damage for found in verify_partition(disk, DIRECTORY))


# Each kind of crash and damage, and what is made of it.


def nothing_removed(disk: Disk) -> None:
    """The seal is there."""


def inputs_removed(disk: Disk) -> None:
    remove(disk, *files_of(A, B, C))


def first_input_removed(disk: Disk) -> None:
    remove(disk, *files_of(A))


def last_input_removed(disk: Disk) -> None:
    remove(disk, *files_of(C))


def inputs_half_removed(disk: Disk) -> None:
    """Each of them lost another part."""
    remove(disk, path_of(A, "seal"), path_of(B, "log"), path_of(C, "index"))


def seals_of_inputs_removed(disk: Disk) -> None:
    remove(disk, *(path_of(segment, "seal") for segment in INPUTS))


def logs_of_inputs_removed(disk: Disk) -> None:
    remove(disk, *(path_of(segment, "log") for segment in INPUTS))


def seal_missing(disk: Disk) -> None:
    """The crash came before the seal; or the seal was lost before anything was removed."""
    remove(disk, path_of(X, "seal"))


def seal_and_index_missing(disk: Disk) -> None:
    remove(disk, path_of(X, "seal"), path_of(X, "index"))


def only_index_written(disk: Disk) -> None:
    """Names become durable in any order."""
    remove(disk, path_of(X, "seal"), path_of(X, "log"))


def seal_lost_after_inputs_went(disk: Disk) -> None:
    inputs_removed(disk)
    seal_missing(disk)


def seal_lost_after_first_input_went(disk: Disk) -> None:
    first_input_removed(disk)
    seal_missing(disk)


def seal_lost_after_last_input_went(disk: Disk) -> None:
    """An input with the same base offset is there, and yet the rewritten segment is needed."""
    last_input_removed(disk)
    seal_missing(disk)


def seal_lost_after_an_inputs_log_went(disk: Disk) -> None:
    remove(disk, path_of(B, "log"))
    seal_missing(disk)


def seal_damaged(disk: Disk) -> None:
    flip(disk, path_of(X, "seal"))


def seal_damaged_after_inputs_went(disk: Disk) -> None:
    inputs_removed(disk)
    seal_damaged(disk)


def seal_emptied(disk: Disk) -> None:
    cut(disk, path_of(X, "seal"), 0)


def index_damaged(disk: Disk) -> None:
    flip(disk, path_of(X, "index"))


def index_lost(disk: Disk) -> None:
    remove(disk, path_of(X, "index"))


def input_damaged(disk: Disk) -> None:
    """It was rewritten while it was valid."""
    flip(disk, path_of(B, "log"))
    remove(disk, path_of(B, "seal"))


NEW_SET, OLD_SET = (X, D), (A, B, C, D)

REPAIRED = [
    (nothing_removed, NEW_SET),
    (inputs_removed, NEW_SET),
    (first_input_removed, NEW_SET),
    (last_input_removed, NEW_SET),
    (inputs_half_removed, NEW_SET),
    (seals_of_inputs_removed, NEW_SET),
    (logs_of_inputs_removed, NEW_SET),
    (seal_missing, OLD_SET),
    (seal_and_index_missing, OLD_SET),
    (only_index_written, OLD_SET),
    (seal_lost_after_inputs_went, NEW_SET),
    (seal_lost_after_first_input_went, NEW_SET),
    (seal_lost_after_last_input_went, NEW_SET),
    (seal_lost_after_an_inputs_log_went, NEW_SET),
    (seal_damaged, NEW_SET),
    (seal_damaged_after_inputs_went, NEW_SET),
    (seal_emptied, NEW_SET),
    (index_damaged, NEW_SET),
    (index_lost, NEW_SET),
    (input_damaged, NEW_SET),
]


@pytest.mark.parametrize(("state", "kept"), REPAIRED)
def test_one_set_is_kept_whole_and_the_other_is_removed(
    state: Callable[[Disk], None], kept: tuple[SegmentId, ...]
) -> None:
    disk = full()
    state(disk)
    disk = disk.copy()
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert logs(disk) == names_of(*kept)
    assert values(found) == (NEW if X in kept else OLD)
    assert [(s.base_offset, s.generation) for s in found.sealed] == [*kept]
    for segment in found.sealed:
        assert segment.index()[0].position == 0
    names = [path.rpartition("/")[2] for path in files_of(*kept)]
    assert disk.list(DIRECTORY) == sorted([*names, PARTITION_FILE]), "nothing else is left"
    again = recovered(disk.copy())
    assert (again.actions, again.scanned_bytes) == ([], 0), "and nothing is left to do"
    assert verify_partition(disk.copy(), DIRECTORY) == []
    assert values(recovered(disk.crash())) == values(found)


LOST_SEALS = [
    seal_lost_after_inputs_went,
    seal_lost_after_first_input_went,
    seal_lost_after_last_input_went,
    seal_lost_after_an_inputs_log_went,
    seal_damaged,
    seal_damaged_after_inputs_went,
    seal_emptied,
]


@pytest.mark.parametrize("state", LOST_SEALS, ids=lambda state: state.__name__)
def test_a_seal_that_was_lost_is_told_and_is_found_by_verify(state: Callable[[Disk], None]) -> None:
    disk = full()
    state(disk)
    assert [f.path for f in verify_partition(disk, DIRECTORY) if f.is_damage] == [
        path_of(X, "seal")
    ]
    assert any(path_of(X, "log") in action for action in recovered(disk).actions)


NO_DAMAGE = [
    state for state, _ in REPAIRED if state not in (*LOST_SEALS, index_damaged, index_lost)
]


@pytest.mark.parametrize("state", NO_DAMAGE, ids=lambda state: state.__name__)
def test_what_a_crash_leaves_is_no_damage_to_verify(state: Callable[[Disk], None]) -> None:
    disk = full()
    state(disk)
    assert not is_damaged(disk)


def test_any_part_of_the_inputs_may_be_gone() -> None:
    """Removals are not synced, so a power cut leaves any of them undone."""
    whole = full()
    paths = files_of(*INPUTS)
    for count in range(len(paths) + 1):
        for gone in itertools.combinations(paths, count):
            disk = whole.copy()
            remove(disk, *gone)
            assert not is_damaged(disk), gone
            found = recovered(disk)
            assert (found.damage, found.offline) == ([], None), gone
            assert values(found) == NEW, gone
            assert logs(disk) == names_of(X, D), gone


# Damage: both sets stay, whatever counts.


def log_cut(disk: Disk) -> None:
    """Shorter than its seal says."""
    cut(disk, path_of(X, "log"))


def log_cut_behind_a_batch(disk: Disk) -> None:
    *_, (last, _, _) = batches_of(log_of(X))
    cut(disk, path_of(X, "log"), last)


def log_longer_than_its_seal(disk: Disk) -> None:
    disk.replace_content(path_of(X, "log"), log_of(X) + b"noise")


def bit_of_log_flipped(disk: Disk) -> None:
    """Its size is right, so only reading tells."""
    flip(disk, path_of(X, "log"))


def log_exchanged(disk: Disk) -> None:
    """Valid, of the right size, and not what was sealed."""
    seal = decode_seal(disk.content(path_of(X, "seal")))
    disk.replace_content(path_of(X, "seal"), encode_seal(replace(seal, digest=bytes(16))))


def log_lost(disk: Disk) -> None:
    remove(disk, path_of(X, "log"))


def log_flipped_and_seal_damaged(disk: Disk) -> None:
    *_, (last, _, _) = batches_of(log_of(X))
    flip(disk, path_of(X, "log"), last + 70)
    seal_damaged(disk)


def seal_missing_and_log_flipped(disk: Disk) -> None:
    seal_missing(disk)
    bit_of_log_flipped(disk)


def seal_missing_and_input_flipped(disk: Disk) -> None:
    seal_missing(disk)
    flip(disk, path_of(B, "log"))


def seal_missing_and_input_cut(disk: Disk) -> None:
    seal_missing(disk)
    cut(disk, path_of(C, "log"))


DAMAGED = [
    (log_cut, True),
    (log_cut_behind_a_batch, True),
    (log_longer_than_its_seal, True),
    (bit_of_log_flipped, True),
    (log_exchanged, True),
    (log_lost, True),
    (log_flipped_and_seal_damaged, True),
    (seal_missing_and_log_flipped, False),
    (seal_missing_and_input_flipped, False),
    (seal_missing_and_input_cut, False),
]


@pytest.mark.parametrize(("state", "is_rewritten"), DAMAGED)
def test_where_either_set_is_damaged_both_stay_and_that_is_told(
    state: Callable[[Disk], None], is_rewritten: bool
) -> None:
    disk = full()
    state(disk)
    before = disk.contents()
    assert is_damaged(disk)
    for _ in range(2):
        found = recovered(disk)
        assert found.damage
        assert disk.contents() == before, "nothing is touched, however often it is opened"
    counted = [segment.generation for segment in found.sealed if segment.base_offset < 30]
    assert set(counted) <= {1 if is_rewritten else 0}


@pytest.mark.parametrize("state", [log_cut, bit_of_log_flipped, log_lost])
def test_what_a_rewrite_let_go_does_not_come_back_where_its_output_is_damaged(
    state: Callable[[Disk], None],
) -> None:
    """It was deleted. The inputs are kept for people, who can take the output away by hand."""
    disk = full()
    state(disk)
    readable = [s for s in recovered(disk).sealed if s.generation == 0]
    assert not set(values(readable)) & DROPPED
    remove(disk, *(path for path in files_of(X) if path in disk.paths()))
    assert values(recovered(disk)) == OLD


@pytest.mark.parametrize("state", [log_cut, bit_of_log_flipped, log_lost])
def test_damage_after_the_inputs_went_is_found_by_verify_and_nothing_is_removed(
    state: Callable[[Disk], None],
) -> None:
    disk = full()
    inputs_removed(disk)
    state(disk)
    before = disk.contents()
    assert is_damaged(disk)
    found = recovered(disk)
    assert disk.contents() == before
    assert values(found.sealed[-1:]) == {n: OLD[n] for n in range(30, END)}, "the rest is read"
    assert found.offline is None, "and the log can be written"


def test_a_damaged_output_is_read_as_far_as_it_goes() -> None:
    disk = full()
    log_flipped_and_seal_damaged(disk)
    segment, *_ = recovered(disk).sealed
    assert (segment.path, segment.next_offset) == (path_of(X, "log"), 30)
    sound = dict(itertools.takewhile(lambda item: item[0] < 28, NEW.items()))
    *_, (last, _, _) = batches_of(log_of(X))
    assert {record.offset for record in read_all(segment.view(0, last))} == set(sound)


# Whatever happens to the files: nothing that counts is removed with its last copy.


def available(disk: Disk) -> set[int]:
    """Offsets of records that are intact in any log of the directory."""
    found: set[int] = set()
    for segment in (*INPUTS, X, D):
        path = path_of(segment, "log")
        if path in disk.paths():
            content, whole = disk.content(path), log_of(segment)
            for start, end, offsets in batches_of(whole):
                if content[start:end] == whole[start:end]:
                    found |= offsets
    return found


def harm(disk: Disk, path: str, rng: random.Random) -> None:
    content = disk.content(path)
    kind = rng.choice(["gone", "gone", "flipped", "cut", "emptied", "whole", "whole", "whole"])
    if kind == "gone":
        remove(disk, path)
    elif kind == "flipped":
        flip(disk, path, rng.randrange(len(content)))
    elif kind == "cut":
        ends = [end for _, end, _ in batches_of(content)] if path.endswith(".log") else [50]
        cut(disk, path, rng.choice([*ends, rng.randrange(len(content))]))
    elif kind == "emptied":
        cut(disk, path, 0)


def test_no_damage_makes_recovery_remove_the_last_copy_of_a_record() -> None:
    whole = full()
    rng = random.Random(7)
    for number in range(HARMED):
        disk = whole.copy()
        for path in files_of(*INPUTS, X):
            harm(disk, path, rng)
        before = disk.contents()
        left, damaged = available(disk), is_damaged(disk)
        found = recovered(disk)
        assert left & set(NEW) <= available(disk), (number, sorted(before))
        is_told = bool(found.damage or found.offline)
        if not damaged:
            assert not is_told, number
            assert values(found) in (NEW, OLD), number
        if is_told:
            assert damaged, number
        again = recovered(disk)
        assert left & set(NEW) <= available(disk), (number, "the second time")
        assert bool(again.damage or again.offline) == is_told, number


# Deleted at the front.


def starting_at(start: int, *segments: SegmentId) -> Disk:
    return make_disk(*segments, partition=PartitionMetadata(start_offset=start, is_rewritten=True))


@pytest.mark.parametrize("left", [(), (A,), (B,), (C,), (B, C), (A, B, C)])
@pytest.mark.parametrize("start", [1, 10, 15, 25])
def test_a_first_offset_inside_a_rewritten_segment_keeps_it(
    start: int, left: tuple[SegmentId, ...]
) -> None:
    """Even where an input that holds this offset, and starts later, is still there."""
    disk = starting_at(start, *left, X, D)
    assert not is_damaged(disk)
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert logs(disk) == names_of(X, D)
    assert values(found) == NEW


def test_a_rewritten_segment_before_the_first_offset_is_removed_in_whatever_state() -> None:
    whole = starting_at(35, A, B, C, X, D)
    paths = files_of(B, X)
    for count in range(len(paths) + 1):
        for gone in itertools.combinations(paths, count):
            disk = whole.copy()
            remove(disk, *gone)
            assert not is_damaged(disk), gone
            found = recovered(disk)
            assert (found.damage, found.offline) == ([], None), gone
            assert logs(disk) == names_of(D), gone


@pytest.mark.parametrize("start", [15, 25])
def test_an_unfinished_rewrite_goes_though_its_first_inputs_were_deleted(start: int) -> None:
    kept = [segment for segment in INPUTS if segment.base_offset + 10 > start]
    disk = starting_at(start, *kept, X, D)
    seal_missing(disk)
    assert not is_damaged(disk)
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert logs(disk) == names_of(*kept, D)


def test_an_unfinished_rewrite_stays_where_what_is_left_of_its_inputs_is_damaged() -> None:
    disk = starting_at(25, C, X, D)
    seal_missing(disk)
    flip(disk, path_of(C, "log"))
    before = disk.contents()
    assert recovered(disk).damage
    assert disk.contents() == before


def test_a_lost_seal_is_derived_where_what_is_left_of_the_inputs_is_too_little() -> None:
    disk = starting_at(15, C, X, D)
    seal_missing(disk)
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert logs(disk) == names_of(X, D)
    assert values(found) == NEW


def test_a_log_of_a_weaker_class_that_ends_before_it_starts_goes_on_where_it_starts() -> None:
    partition = PartitionMetadata(Durability.DISK, start_offset=35, is_rewritten=True)
    disk = make_disk(X, partition=partition)
    found = recovered(disk)
    assert (found.damage, found.offline, found.segments) == ([], None, [])
    assert disk.list(DIRECTORY) == [PARTITION_FILE]


# Generations above the first.


@pytest.mark.parametrize("left", [(), (X,), (D,), (X, D), (A, X), (A, B, C, X, D), (A, C)])
def test_a_later_generation_takes_the_place_of_all_before(left: tuple[SegmentId, ...]) -> None:
    disk = make_disk(*left, Y)
    assert not is_damaged(disk)
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert logs(disk) == names_of(Y)
    assert values(found) == NEW


def test_an_unfinished_later_generation_leaves_the_one_before() -> None:
    disk = make_disk(A, B, X, D, Y)
    remove(disk, path_of(Y, "seal"))
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert logs(disk) == names_of(X, D)
    assert values(found) == NEW


# The end of the log.


def unsealed_end(*segments: SegmentId, torn: bytes = b"") -> Disk:
    """A killed process: the last segment grows, and the checkpoint attests it."""
    disk = make_disk(*segments)
    put_log(make_log_directory(disk), D, log_of(D) + torn)
    put_checkpoint(disk, SyncPoint(30, len(log_of(D))))
    return disk.copy()


@pytest.mark.parametrize("torn", [b"", b"torn"])
def test_the_end_of_the_log_is_recovered_beside_a_rewritten_segment(torn: bytes) -> None:
    disk = unsealed_end(A, B, C, X, torn=torn)
    assert not is_damaged(disk)
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert values(found) == NEW
    assert found.growing is not None
    assert found.growing.base_offset == 30
    assert logs(disk) == names_of(X, D)


def test_a_checkpoint_may_speak_of_a_segment_that_was_rewritten() -> None:
    """The last segment was sealed and rewritten, and nothing was appended since."""
    disk = make_disk(X)
    put_checkpoint(disk, SyncPoint(20, len(log_of(C))))
    assert not is_damaged(disk)
    found = recovered(disk)
    assert (found.damage, found.offline) == ([], None)
    assert CHECKPOINT_FILE not in disk.list(DIRECTORY)


def test_a_checkpoint_of_the_input_with_the_same_base_attests_nothing_of_the_output() -> None:
    disk = make_disk(X)
    put_checkpoint(disk, SyncPoint(0, len(log_of(X)) + 1))
    assert not is_damaged(disk)
    assert recovered(disk).offline is None


def test_a_checkpoint_behind_a_rewritten_segment_still_misses_its_own() -> None:
    disk = make_disk(X)
    put_checkpoint(disk, SyncPoint(30, 100))
    assert is_damaged(disk)
    assert "00000000000000000030.log: is missing, but was synced" in str(recovered(disk).offline)


@pytest.mark.parametrize("has_seal", [False, True], ids=["seal lost", "seal damaged"])
def test_a_rewritten_segment_at_the_end_is_never_cut(has_seal: bool) -> None:
    """It was synced before it got its name: damage in it is not a torn write, but data loss."""
    disk = make_disk(X)
    if has_seal:
        seal_damaged(disk)
    else:
        seal_missing(disk)
    cut(disk, path_of(X, "log"))
    before = disk.contents()
    assert is_damaged(disk)
    found = recovered(disk)
    assert "batch ends at byte" in str(found.offline)
    assert disk.contents() == before
    assert set(values(found)) == {n for n in NEW if n < 28}, "what is sound can be read"


def test_a_lost_seal_at_the_end_of_the_log_is_derived() -> None:
    disk = make_disk(X)
    seal_missing(disk)
    found = recovered(disk)
    assert (found.damage, found.offline, found.growing) == ([], None, None)
    assert found.segments[-1].next_offset == 30
    assert verify_partition(disk, DIRECTORY) == []


def test_a_lost_log_at_the_end_takes_the_log_offline_and_keeps_the_inputs() -> None:
    disk = make_disk(A, B, C, X)
    log_lost(disk)
    before = disk.contents()
    assert "the log that it seals is missing" in str(recovered(disk).offline)
    assert disk.contents() == before


def test_a_lost_seal_before_a_rewritten_segment_is_derived() -> None:
    """A rewritten segment attests all before it, as every sealed one does."""
    rewritten = SegmentId(10, 1)
    disk = make_disk(A)
    put_log(make_log_directory(disk), rewritten, appended(10, 20))
    remove(disk, path_of(A, "seal"))
    found = recovered(disk)
    assert [s.base_offset for s in found.sealed] == [0, 10]
    assert (found.damage, found.offline, found.growing) == ([], None, None)


# Overlaps.


def test_a_segment_half_inside_a_rewritten_one_takes_the_log_offline_untouched() -> None:
    disk = make_disk(A, B, X)
    place = make_log_directory(disk)
    put_log(place, C, appended(20, 32))
    put_seal(place, C)
    put_log(place, SegmentId(32, 0), appended(32, 40))
    before = disk.contents()
    assert {f.path for f in verify_partition(disk, DIRECTORY) if f.is_damage} >= {
        path_of(C, "index")
    }
    found = recovered(disk)
    assert f"{path_of(C, 'log')}: shares offsets with {path_of(X, 'log')}" in str(found.offline)
    assert disk.contents() == before
    assert set(values(found)) >= {n for n in NEW if n < 30}, "the rest can be read"


def test_an_input_that_was_opened_again_is_not_removed() -> None:
    """This must not happen; if it did, what was appended would be in this file alone."""
    disk = make_disk(A, B, X)
    put_log(make_log_directory(disk), C, appended(20, 34))
    put_checkpoint(disk, SyncPoint(20, len(appended(20, 34))))
    before = disk.contents()
    assert is_damaged(disk)
    assert recovered(disk).offline
    assert disk.contents() == before


# Keys.


@pytest.mark.parametrize("segment", [A, X])
def test_keys_go_with_their_segment(segment: SegmentId) -> None:
    disk = full()
    if segment == X:
        seal_missing(disk)
    for each in (A, X, D):
        disk.create(path_of(each, "keys")).close()
    recovered(disk)
    kept = [path_of(each, "keys").rpartition("/")[2] for each in (A, X, D) if each != segment]
    assert [name for name in disk.list(DIRECTORY) if name.endswith(".keys")] == kept


@pytest.mark.parametrize("segment", [SegmentId(70, 0), SegmentId(0, 3)])
def test_keys_without_a_log_are_left_over(segment: SegmentId) -> None:
    disk = make_disk(A)
    disk.create(path_of(segment, "keys")).close()
    (note,) = verify_partition(disk, DIRECTORY)
    assert (note.path, note.is_damage) == (path_of(segment, "keys"), False)
    found = recovered(disk)
    assert found.actions == [f"removed: {path_of(segment, 'keys')}"]
    assert found.damage == []


# Power cuts and failing syncs while recovering.


def test_inputs_go_only_after_the_seal_is_durable_whoever_wrote_it() -> None:
    """A process was killed between renaming the seal and syncing its name; then the power goes."""
    disk = make_disk(A, B, C, D)
    place = make_log_directory(disk)
    put_log(place, X)
    found = scan_log(place, X)
    write_index(place, found.index, base_offset=0, log_size=found.stats.size, generation=1)
    disk.sync_directory(DIRECTORY)
    name = path_of(X, "seal").rpartition("/")[2]
    replace_file(disk, DIRECTORY, name, [encode_seal(found.stats.seal(2))])
    begun = len(disk.trace.events)
    assert values(recovered(disk)) == NEW
    points = range(begun, len(disk.trace.events) + 1)
    for state in crash_states(disk.trace, seed=1, points=points):
        after = state.filesystem()
        assert not is_damaged(after), str(state)
        again = recovered(after)
        assert (again.damage, again.offline) == ([], None), str(state)
        assert values(again) in (OLD, NEW), str(state)
    assert values(recovered(disk.crash())) == NEW


def test_inputs_go_only_after_the_seal_was_written_again_where_a_sync_had_failed() -> None:
    """The kernel calls the name clean, and a power cut takes it away all the same."""
    disk = make_disk(A, B, C, D)
    place = make_log_directory(disk)
    put_log(place, X)
    found = scan_log(place, X)
    write_index(place, found.index, base_offset=0, log_size=found.stats.size, generation=1)
    disk.sync_directory(DIRECTORY)
    name = path_of(X, "seal").rpartition("/")[2]
    replace_file(disk, DIRECTORY, name, [encode_seal(found.stats.seal(2))])
    disk.fail_sync_directory(DIRECTORY)
    recovered(disk)
    after = disk.crash()
    assert path_of(X, "seal") in after.paths()
    assert values(recovered(after)) == NEW


@pytest.mark.parametrize(("state", "kept"), REPAIRED)
def test_a_power_cut_while_recovering_changes_nothing(
    state: Callable[[Disk], None], kept: tuple[SegmentId, ...]
) -> None:
    disk = full()
    state(disk)
    disk = disk.copy()
    expected = values(recovered(disk))
    for crash in crash_states(disk.trace, seed=1):
        found = recovered(crash.filesystem())
        assert (found.damage, found.offline) == ([], None), str(crash)
        assert values(found) == expected, str(crash)


# `partition.json`.


@dataclass
class Counted:
    """A clock of one's own."""

    now: int = 100

    def __call__(self) -> int:
        self.now += 1
        return self.now


def test_a_seal_is_dated_by_the_time_that_is_passed_in() -> None:
    disk = full()
    seal_lost_after_inputs_went(disk)
    found = recover(make_log_directory(disk), ManualClock(), now_ms=Counted())
    seal = found.sealed[0].seal
    assert (seal.created_ms, seal.sealed_ms) == (101, 102)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "never said"])
def test_rewritten_segments_are_written_down_again(is_lost: bool) -> None:
    """An older release must refuse the log."""
    disk = make_disk(X, D, partition=PartitionMetadata())
    if is_lost:
        remove(disk, PARTITION)
    assert recovered(disk).partition.is_rewritten
    assert read_partition_metadata(disk, DIRECTORY).is_rewritten
    assert b'"version":3' in disk.content(PARTITION)


def test_a_log_that_was_never_rewritten_is_described_as_ever() -> None:
    disk = make_disk(A, B, partition=PartitionMetadata())
    remove(disk, PARTITION)
    assert not recovered(disk).partition.is_rewritten
    assert b'"version":1' in disk.content(PARTITION)


def test_what_is_written_down_does_not_reach_behind_the_end_of_the_log() -> None:
    """Class `disk` has lost its end, and the offsets are given again to other records."""
    rules = tuple(DeletionRule(KeyMatch(b"k", is_prefix=False), before) for before in (15, 20, 40))
    partition = PartitionMetadata(
        Durability.DISK, cleaned_offset=35, is_rewritten=True, deletions=rules
    )
    disk = make_disk(A, B, partition=partition)
    clamped = recovered(disk).partition
    assert clamped.cleaned_offset == 20
    assert [rule.before for rule in clamped.deletions] == [15, 20, 20]
    assert read_partition_metadata(disk, DIRECTORY) == clamped
    before = disk.contents()
    recovered(disk)
    assert disk.contents() == before


def test_what_does_not_reach_behind_the_end_is_left_as_it_is() -> None:
    rule = DeletionRule(KeyMatch(b"k", is_prefix=True), 20)
    disk = make_disk(A, B, partition=PartitionMetadata(cleaned_offset=20, deletions=(rule,)))
    before = disk.contents()
    recovered(disk)
    assert disk.contents() == before


def test_what_is_written_down_of_a_log_without_segments_ends_where_it_starts() -> None:
    partition = PartitionMetadata(Durability.DISK, start_offset=20, cleaned_offset=30)
    disk = make_disk(partition=partition)
    assert recovered(disk).partition == replace(partition, cleaned_offset=20)


def test_a_seal_of_another_version_is_refused_in_every_generation() -> None:
    disk = full()
    body = b"MSSL\x02" + disk.content(path_of(X, "seal"))[5:-4]
    disk.replace_content(path_of(X, "seal"), body + crc32c(body).to_bytes(4, "little"))
    before = disk.contents()
    with pytest.raises(UnknownFormat, match=r"00\.1\.seal: seal has version 2"):
        recovered(disk)
    assert disk.contents() == before
