"""Leader epochs: which began where, and how two logs compare (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

import pytest

from millstream.cluster.epochs import NO_EPOCH, EpochEnd, EpochHistory
from millstream.storage.files.partition_metadata import LeaderEpoch, PartitionMetadata

HISTORY = [(1, 0), (3, 10), (4, 25)]


def test_the_history_is_fed_from_the_metadata_of_a_partition():
    metadata = PartitionMetadata(epochs=(LeaderEpoch(0, 0), LeaderEpoch(2, 7)))
    history = EpochHistory((epoch.number, epoch.start_offset) for epoch in metadata.epochs)
    assert history.entries() == ((0, 0), (2, 7))
    assert (history.latest, history.latest_start) == (2, 7)


@pytest.mark.parametrize(
    ("epoch", "found"),
    [
        (4, EpochEnd(4, 40)),
        (9, EpochEnd(4, 40)),
        (3, EpochEnd(3, 25)),
        (2, EpochEnd(1, 10)),
        (1, EpochEnd(1, 10)),
        (0, EpochEnd(NO_EPOCH, 0)),
    ],
)
def test_the_end_of_an_epoch_is_that_of_the_greatest_one_that_the_log_has(epoch, found):
    assert EpochHistory(HISTORY).end_of(epoch, 40) == found


def test_an_empty_history_has_no_epoch():
    history = EpochHistory()
    assert history.latest == NO_EPOCH
    assert history.end_of(3, 0) == EpochEnd(NO_EPOCH, 0)
    assert history.epoch_at(0) == NO_EPOCH
    assert history.last_epoch(0, 0) == NO_EPOCH


def test_the_epoch_of_a_record_is_the_last_one_that_began_before_it():
    history = EpochHistory(HISTORY)
    assert [history.epoch_at(offset) for offset in (0, 9, 10, 24, 25, 99)] == [1, 1, 3, 3, 4, 4]
    assert history.last_epoch(0, 25) == 3
    assert history.last_epoch(25, 25) == NO_EPOCH


def test_an_epoch_without_a_record_is_replaced_by_the_next_one():
    history = EpochHistory(HISTORY)
    history.begin(5, 25)
    assert history.entries() == ((1, 0), (3, 10), (5, 25))


def test_epochs_only_increase():
    with pytest.raises(ValueError, match="epoch must be greater than 4, got 4"):
        EpochHistory(HISTORY).begin(4, 30)


def test_a_cut_drops_the_epochs_that_have_no_record_left():
    history = EpochHistory(HISTORY)
    history.cut(25)
    assert history.entries() == ((1, 0), (3, 10))
    history.cut(10)
    assert history.entries() == ((1, 0),)
    history.cut(0)
    assert history.entries() == ()


def test_a_new_start_drops_the_epochs_that_ended_before_it():
    history = EpochHistory(HISTORY)
    history.drop_before(10)
    assert history.entries() == ((3, 10), (4, 25))
    history.drop_before(30)
    assert history.entries() == ((4, 25),)
