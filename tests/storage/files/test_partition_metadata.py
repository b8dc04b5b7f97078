"""`partition.json`: the class of a log, its first offset and its leader epochs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.schema import Durability
from millstream.errors import CorruptFile, UnknownFormat
from millstream.records.decision import CleaningDecision
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.files.document import encode_document
from millstream.storage.files.partition_metadata import (
    AgeMark,
    AppliedDecisions,
    Caps,
    CleaningMark,
    DeletionRule,
    LeaderEpoch,
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from millstream.testing import SimulatedFilesystem

THREE_EPOCHS = PartitionMetadata(
    epochs=(LeaderEpoch(0, 0), LeaderEpoch(4, 100), LeaderEpoch(5, 130))
)
GOLDEN = (
    b'{"content":{"durability":"disk","leader_epochs":[[0,0],[7,90]],"start_offset":0},'
    b'"crc32c":"b9281b4e","format":"millstream-partition","version":1}\n'
)
GOLDEN_DELETED = (
    b'{"content":{"durability":"disk","leader_epochs":[[0,0],[7,90]],"start_offset":40},'
    b'"crc32c":"ef3e11a6","format":"millstream-partition","version":2}\n'
)
GOLDEN_REWRITTEN = (
    b'{"content":{"cleaned_offset":60,'
    b'"deletions":[["key","6b31",70,5],["prefix","00ff",80,0]],"durability":"disk",'
    b'"eviction_floor":30,"is_rewritten":true,"leader_epochs":[[0,0],[7,90]],"start_offset":40},'
    b'"crc32c":"153705dc","format":"millstream-partition","version":3}\n'
)
RULES = (
    DeletionRule(KeyMatch(b"k1", is_prefix=False), 70, made_ms=5),
    DeletionRule(KeyMatch(b"\x00\xff", is_prefix=True), 80),
)
REWRITTEN = PartitionMetadata(
    Durability.DISK,
    40,
    (LeaderEpoch(0, 0), LeaderEpoch(7, 90)),
    eviction_floor=30,
    cleaned_offset=60,
    is_rewritten=True,
    deletions=RULES,
)
CONTENT = {"durability": "fsync", "start_offset": 0, "leader_epochs": [[0, 0]]}


def disk() -> SimulatedFilesystem:
    return SimulatedFilesystem({"/p": None})


def disk_with(content: object, *, version: int = 1) -> SimulatedFilesystem:
    data = encode_document("millstream-partition", version, content)
    return SimulatedFilesystem({"/p": None, "/p/partition.json": data})


# Epochs.


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, 0), (99, 0), (100, 4), (129, 4), (130, 5), (2**62, 5)]
)
def test_a_segment_bears_the_epoch_that_had_begun_at_its_first_offset(offset, epoch):
    assert THREE_EPOCHS.epoch_at(offset) == epoch


def test_a_segment_before_the_first_known_epoch_bears_that_one():
    assert (
        PartitionMetadata(
            start_offset=50, epochs=(LeaderEpoch(3, 50), LeaderEpoch(4, 90))
        ).epoch_at(10)
        == 3
    )


def test_a_new_log_is_in_epoch_zero():
    assert PartitionMetadata().leader_epoch == 0
    assert PartitionMetadata().epoch_at(0) == 0


def test_a_newer_epoch_follows_those_before_it():
    partition = THREE_EPOCHS.with_epoch(9, 200)
    assert partition.epochs == (*THREE_EPOCHS.epochs, LeaderEpoch(9, 200))
    assert partition.leader_epoch == 9


@pytest.mark.parametrize(
    ("start_offset", "kept"),
    [(130, (LeaderEpoch(0, 0), LeaderEpoch(4, 100))), (100, (LeaderEpoch(0, 0),)), (0, ())],
)
def test_a_newer_epoch_replaces_those_that_no_batch_bore(start_offset, kept):
    partition = THREE_EPOCHS.with_epoch(9, start_offset)
    assert partition.epochs == (*kept, LeaderEpoch(9, start_offset))


def test_a_newer_epoch_leaves_all_else_as_it_was():
    partition = PartitionMetadata(Durability.DISK, 40, (LeaderEpoch(1, 40),)).with_epoch(2, 60)
    assert (partition.durability, partition.start_offset) == (Durability.DISK, 40)


@given(st.lists(st.integers(0, 3), max_size=12))
def test_numbers_rise_and_start_offsets_rise_however_epochs_begin(steps):
    partition, end = PartitionMetadata(), 0
    for number, step in enumerate(steps, start=1):
        end += step
        partition = partition.with_epoch(number, end)
        assert partition.epoch_at(end) == number
    numbers = [epoch.number for epoch in partition.epochs]
    starts = [epoch.start_offset for epoch in partition.epochs]
    assert numbers == sorted(set(numbers))
    assert starts == sorted(set(starts))


@pytest.mark.parametrize(
    ("first_base", "kept"),
    [
        (0, THREE_EPOCHS.epochs),
        (99, THREE_EPOCHS.epochs),
        (100, THREE_EPOCHS.epochs[1:]),
        (130, THREE_EPOCHS.epochs[2:]),
        (10**6, THREE_EPOCHS.epochs[2:]),
    ],
)
def test_deleting_forgets_the_epochs_that_no_segment_bears_any_more(first_base, kept):
    partition = THREE_EPOCHS.starting_at(first_base + 1, first_base=first_base)
    assert (partition.start_offset, partition.epochs) == (first_base + 1, kept)
    assert partition.epoch_at(first_base) == THREE_EPOCHS.epoch_at(first_base)


def test_deleting_leaves_what_was_evicted_and_evicting_says_so():
    assert REWRITTEN.starting_at(50, first_base=41).eviction_floor == 30
    evicted = REWRITTEN.starting_at(50, first_base=41, eviction_floor=50, eviction_reason="bytes")
    assert (evicted.start_offset, evicted.eviction_floor) == (50, 50)
    assert evicted.eviction_reason == "bytes"
    assert (evicted.deletions, evicted.is_rewritten) == (RULES, True)


def test_what_was_lost_at_the_end_is_hit_by_no_rule_when_its_offsets_are_given_again():
    shorter = REWRITTEN.ending_at(75)
    assert [rule.before for rule in shorter.deletions] == [70, 75]
    assert [rule.match for rule in shorter.deletions] == [rule.match for rule in RULES]
    assert (shorter.cleaned_offset, REWRITTEN.ending_at(55).cleaned_offset) == (60, 55)
    assert REWRITTEN.ending_at(80) == REWRITTEN


# The file.


def test_a_partition_lies_as_it_is_described():
    filesystem = disk()
    write_partition_metadata(
        filesystem,
        "/p",
        PartitionMetadata(Durability.DISK, 0, (LeaderEpoch(0, 0), LeaderEpoch(7, 90))),
    )
    assert filesystem.content("/p/partition.json") == GOLDEN


def test_a_partition_of_which_something_was_deleted_is_of_a_version_that_older_releases_refuse():
    filesystem = disk()
    write_partition_metadata(
        filesystem,
        "/p",
        PartitionMetadata(Durability.DISK, 40, (LeaderEpoch(0, 0), LeaderEpoch(7, 90))),
    )
    assert filesystem.content("/p/partition.json") == GOLDEN_DELETED


def test_a_partition_with_rewritten_segments_lies_as_it_is_described():
    filesystem = disk()
    write_partition_metadata(filesystem, "/p", REWRITTEN)
    assert filesystem.content("/p/partition.json") == GOLDEN_REWRITTEN
    assert read_partition_metadata(filesystem, "/p") == REWRITTEN


@pytest.mark.parametrize(
    "what",
    [
        {"start_offset": 9, "eviction_floor": 9},
        {"cleaned_offset": 1},
        {"is_rewritten": True},
        {"deletions": RULES[:1]},
    ],
    ids=str,
)
def test_what_older_releases_know_nothing_of_they_must_not_open(what):
    filesystem = disk()
    write_partition_metadata(filesystem, "/p", PartitionMetadata(**what))
    assert b'"version":3' in filesystem.content("/p/partition.json")


def test_once_there_is_nothing_left_that_older_releases_do_not_know_they_may_open_it():
    filesystem = disk()
    write_partition_metadata(filesystem, "/p", PartitionMetadata(deletions=RULES))
    write_partition_metadata(filesystem, "/p", PartitionMetadata())
    assert b'"version":1' in filesystem.content("/p/partition.json")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_known_version_says_the_same(version):
    content = CONTENT | {"start_offset": 7}
    assert read_partition_metadata(disk_with(content, version=version), "/p") == PartitionMetadata(
        start_offset=7
    )


@given(
    durability=st.sampled_from(Durability),
    start_offset=st.integers(0, 2**63 - 1),
    epochs=st.lists(
        st.builds(LeaderEpoch, *[st.integers(0, 2**63 - 1)] * 2), min_size=1, max_size=5
    ),
    floor=st.floats(0, 1),
    cleaned_offset=st.integers(0, 2**63 - 1),
    is_rewritten=st.booleans(),
    deletions=st.lists(
        st.builds(
            DeletionRule,
            st.builds(KeyMatch, st.binary(max_size=5), is_prefix=st.booleans()),
            st.integers(0, 2**63 - 1),
        ),
        max_size=3,
    ),
    caps=st.builds(Caps, *[st.none() | st.integers(0, 2**63 - 1)] * 2),
    age_marks=st.lists(st.builds(AgeMark, *[st.integers(0, 2**63 - 1)] * 2), max_size=3),
)
def test_a_partition_reads_back_as_it_was_written(
    durability,
    start_offset,
    epochs,
    floor,
    cleaned_offset,
    is_rewritten,
    deletions,
    caps,
    age_marks,
):
    filesystem = disk()
    partition = PartitionMetadata(
        durability,
        start_offset,
        tuple(epochs),
        min(int(start_offset * floor), start_offset),
        cleaned_offset,
        is_rewritten,
        tuple(deletions),
        caps=caps,
        age_marks=tuple(age_marks),
    )
    write_partition_metadata(filesystem, "/p", partition)
    assert read_partition_metadata(filesystem, "/p") == partition


def test_limits_and_age_marks_keep_no_older_release_from_opening_a_log():
    """It only shows records again that are hidden, and keeps them longer."""
    filesystem = disk()
    write_partition_metadata(
        filesystem, "/p", PartitionMetadata(caps=Caps(1, 2), age_marks=(AgeMark(3, 4),))
    )
    document = json.loads(filesystem.content("/p/partition.json"))
    content = document["content"]
    assert (document["version"], content["caps"], content["age_marks"]) == (1, [1, 2], [[3, 4]])


def test_deleting_forgets_the_marks_before_the_start():
    marks = (AgeMark(3, 1), AgeMark(5, 2), AgeMark(9, 3))
    partition = PartitionMetadata(age_marks=marks)
    assert partition.starting_at(5, first_base=0).age_marks == (AgeMark(9, 3),)


def test_a_partition_is_durable_once_it_is_written():
    filesystem = disk()
    write_partition_metadata(filesystem, "/p", THREE_EPOCHS)
    assert read_partition_metadata(filesystem.crash(), "/p") == THREE_EPOCHS


def test_a_partition_that_is_not_there_is_not_found():
    with pytest.raises(FileNotFoundError):
        read_partition_metadata(disk(), "/p")


def test_a_partition_of_a_newer_version_is_unknown_and_not_corrupt():
    with pytest.raises(
        UnknownFormat, match=r"expected millstream-partition version 1-6, got .* version 7"
    ):
        read_partition_metadata(disk_with(CONTENT, version=7), "/p")


DECISIONS = AppliedDecisions(
    offset=70,
    cleaning=CleaningDecision(60, 20),
    marks=(CleaningMark(40, 1_000), CleaningMark(60, 2_000)),
    tombstones_cleaned=10,
    tombstones_copied=15,
)


def test_a_log_of_a_cluster_is_of_a_version_that_older_releases_refuse():
    filesystem = SimulatedFilesystem({"/p": None})
    for decisions in (AppliedDecisions(), DECISIONS):
        partition = PartitionMetadata(decisions=decisions)
        write_partition_metadata(filesystem, "/p", partition)
        assert b'"version":5' in filesystem.content("/p/partition.json")
        assert read_partition_metadata(filesystem, "/p") == partition


def test_a_log_that_lost_its_end_knows_no_decision_about_it():
    shorter = PartitionMetadata(cleaned_offset=60, decisions=DECISIONS).ending_at(50)
    assert shorter.decisions == AppliedDecisions(
        offset=50,
        cleaning=CleaningDecision(50, 20),
        marks=(CleaningMark(40, 1_000),),
        tombstones_cleaned=10,
        tombstones_copied=15,
    )
    assert DECISIONS.tombstones_removed == 20


@pytest.mark.parametrize(
    "change",
    [
        {"durability": "forever"},
        {"durability": None},
        {"start_offset": "many"},
        {"start_offset": None},
        {"leader_epochs": []},
        {"decisions": {}},
        {"decisions": 7},
        {"decisions": {"offset": 1, "cleaning": [1], "marks": []}},
        {"leader_epochs": None},
        {"leader_epochs": [[0]]},
        {"leader_epochs": [[0, 0, 0]]},
        {"leader_epochs": [0, 0]},
        {"leader_epochs": [[None, 0]]},
        {"eviction_floor": 1},
        {"eviction_floor": -1},
        {"cleaned_offset": "far"},
        {"deletions": [["key", "6b", 7]]},
        {"deletions": [["word", "6b", 7, 0]]},
        {"deletions": [["key", "6", 7, 0]]},
        {"deletions": [["key", "6b", None, 0]]},
        {"deletions": 7},
        {"caps": 7},
        {"caps": [1]},
        {"caps": ["many", None]},
        {"age_marks": [[1]]},
        {"age_marks": [[1, None]]},
    ],
    ids=str,
)
def test_content_that_makes_no_sense_is_corrupt_though_its_sum_is_right(change):
    with pytest.raises(CorruptFile, match=r"^/p/partition\.json: "):
        read_partition_metadata(disk_with(CONTENT | change), "/p")


@pytest.mark.parametrize("key", CONTENT)
def test_content_that_lacks_a_key_is_corrupt(key):
    content = {name: value for name, value in CONTENT.items() if name != key}
    with pytest.raises(CorruptFile, match=key):
        read_partition_metadata(disk_with(content), "/p")
