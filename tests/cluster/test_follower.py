"""A follower: what it fetches, accepts and cuts."""

from __future__ import annotations

import pytest

from millstream.cluster.follower import Cut, OfferedSlice, ReplicaStopped, SliceDecision
from millstream.cluster.replica_fetch import ReplicaFetch

from .machines import follower_of, newer, state_of

EPOCHS = ((1, 0), (3, 10), (4, 25))


def records(base: int, end: int, *, epoch=0, segment=0, position=None) -> OfferedSlice:
    at = base - segment if position is None else position
    return OfferedSlice(base, end, epoch, segment, at, end - base)


def grown(follower, part: OfferedSlice, *, is_synced=True):
    fetch = follower.next_fetch()
    decision = follower.accept(fetch, part)
    assert decision in (SliceDecision.WRITE, SliceDecision.ROLL_AND_WRITE)
    follower.written(part)
    if is_synced:
        follower.synced(part.end_offset)
    return decision


# Fetching


def test_an_empty_follower_fetches_from_the_start():
    assert follower_of().next_fetch() == ReplicaFetch(2, 12, 0, 0, -1, 5)


def test_a_fetch_names_the_end_of_the_log_and_the_epoch_of_its_last_record():
    follower = follower_of(state_of(epoch=6), end=40, epochs=EPOCHS)
    assert follower.next_fetch() == ReplicaFetch(2, 12, 6, 40, 4, 5)


def test_nothing_is_reported_before_it_is_synced():
    follower = follower_of()
    grown(follower, records(0, 5), is_synced=False)
    assert follower.next_fetch() is None
    follower.synced(3)
    assert follower.next_fetch() is None
    follower.synced(5)
    assert follower.next_fetch().offset == 5


def test_a_fetch_is_the_same_until_something_that_it_tells_has_changed():
    follower = follower_of()
    fetch = follower.next_fetch()
    assert follower.is_asked(fetch)
    follower.answered(fetch, 0)
    assert follower.is_asked(fetch), "an answer without records changes nothing"
    follower.state_changed(newer(state_of()))
    assert not follower.is_asked(fetch), "it names an older state"
    fetch = follower.next_fetch()
    part = records(0, 5)
    follower.accept(fetch, part)
    assert not follower.is_asked(fetch), "it was answered"
    follower.written(part)
    follower.synced(5)
    assert not follower.is_asked(fetch)
    assert follower.is_asked(follower.next_fetch())
    follower.stopped = ReplicaStopped(0, 0, "for repair")
    assert not follower.is_asked(follower._asked), "a replica that is stopped asks nothing"


def test_a_new_epoch_has_another_leader_to_fetch_from():
    follower = follower_of()
    state = newer(state_of(), leader=3, leader_broker_epoch=13, leader_epoch=1)
    assert follower.state_changed(state)
    assert (follower.leader, follower.next_fetch().leader_epoch) == (3, 1)
    assert not follower.state_changed(state_of(revision=4))
    assert follower.leader == 3


def test_another_isr_changes_nothing_for_a_follower():
    follower = follower_of()
    fetch = follower.next_fetch()
    assert not follower.state_changed(newer(state_of((1, 2))))
    assert follower.accept(fetch, records(0, 1)) is SliceDecision.ROLL_AND_WRITE


# Accepting


def test_a_segment_begins_when_the_leader_says_so_and_goes_on_where_it_ended():
    follower = follower_of(state_of(epoch=2))
    assert grown(follower, records(0, 5)) is SliceDecision.ROLL_AND_WRITE
    assert grown(follower, records(5, 9)) is SliceDecision.WRITE
    assert grown(follower, records(9, 11, epoch=2, segment=9)) is SliceDecision.ROLL_AND_WRITE
    assert follower.epochs.entries() == ((0, 0), (2, 9))
    assert (follower.segment_base, follower.position) == (9, 2)


@pytest.mark.parametrize(
    "part",
    [
        records(6, 8),
        records(4, 8),
        records(5, 5),
        records(5, 8, position=4),
        records(5, 8, segment=3),
        records(5, 8, segment=5, position=1),
        records(5, 8, epoch=1, segment=0),
        records(5, 8, epoch=3, segment=5),
    ],
)
def test_records_for_another_position_or_epoch_are_a_mismatch(part):
    follower = follower_of(state_of(epoch=2))
    grown(follower, records(0, 5))
    assert follower.accept(follower.next_fetch(), part) is SliceDecision.MISMATCH
    assert follower.written_end == 5


def test_records_of_an_older_epoch_than_the_last_are_a_mismatch():
    follower = follower_of(state_of(epoch=6), end=40, epochs=EPOCHS, segment_base=25, position=15)
    part = records(40, 41, epoch=3, segment=40)
    assert follower.accept(follower.next_fetch(), part) is SliceDecision.MISMATCH


def test_a_node_that_led_and_wrote_nothing_may_get_records_of_an_older_epoch():
    follower = follower_of(state_of(epoch=6), end=10, epochs=((1, 0), (5, 10)))
    assert follower.epochs.entries() == ((1, 0),)
    grown(follower, records(10, 12, epoch=3, segment=10))
    assert follower.epochs.entries() == ((1, 0), (3, 10))


@pytest.mark.parametrize("event", ["fetched again", "new epoch", "answered"])
def test_late_answers_have_no_effect(event):
    follower = follower_of(end=5, epochs=((0, 0),), segment_base=0, position=5)
    fetch = follower.next_fetch()
    if event == "fetched again":
        follower.next_fetch()
    elif event == "new epoch":
        follower.state_changed(newer(state_of(), leader_epoch=1))
    else:
        follower.accept(fetch, records(5, 6))
    assert follower.accept(fetch, records(5, 6)) is SliceDecision.DROP
    assert follower.diverging(fetch, 0, 2) is None
    assert not follower.answered(fetch, 5)


# The high watermark


def test_the_high_watermark_is_the_least_of_the_leaders_and_the_own_synced_end():
    follower = follower_of()
    fetch = follower.next_fetch()
    assert not follower.answered(fetch, 9)
    part = records(0, 5)
    follower.accept(fetch, part)
    follower.written(part)
    assert follower.high_watermark == 0
    assert follower.synced(5)
    assert follower.high_watermark == 5
    assert not follower.answered(follower.next_fetch(), 3)
    assert follower.high_watermark == 5


# Truncation


@pytest.mark.parametrize(
    ("epoch", "end", "cut"),
    [
        (4, 30, 30),  # Both have the epoch, the leader less of it.
        (3, 20, 20),
        (3, 30, 25),  # The leader has more of it, this replica goes on with another epoch.
        (2, 15, 10),  # This replica does not have the epoch: cut where the one before ends.
        (-1, 0, 0),  # The leader has nothing as old.
    ],
)
def test_a_log_that_diverges_is_cut_at_the_end_of_the_last_common_epoch(epoch, end, cut):
    follower = follower_of(state_of(epoch=6), end=40, epochs=EPOCHS)
    assert follower.diverging(follower.next_fetch(), epoch, end) == Cut(cut)
    follower.cut_to(cut)
    assert follower.next_fetch().offset == cut
    assert follower.next_fetch().last_epoch == follower.epochs.last_epoch(0, cut)


def test_the_cut_is_not_at_the_high_watermark():
    follower = follower_of(state_of(epoch=6), end=40, epochs=EPOCHS, high_watermark=12)
    assert follower.diverging(follower.next_fetch(), 4, 30) == Cut(30)


def test_a_cut_below_the_own_high_watermark_stops_the_replica():
    follower = follower_of(state_of(epoch=6), end=40, epochs=EPOCHS, high_watermark=31)
    stopped = follower.diverging(follower.next_fetch(), 4, 30)
    assert isinstance(stopped, ReplicaStopped)
    assert stopped.reason == (
        "the leader has epoch 4 up to offset 30; this replica would be cut to 30,"
        " below its high watermark 31"
    )
    assert follower.stopped is stopped
    assert follower.next_fetch() is None
    assert follower.written_end == 40


def test_after_an_unclean_election_followers_lose_what_the_leader_lost():
    state = state_of(epoch=6, unclean_epochs=(5,))
    follower = follower_of(state, end=40, epochs=EPOCHS, high_watermark=31)
    assert follower.diverging(follower.next_fetch(), 4, 30) == Cut(30)
    follower.cut_to(30)
    assert follower.high_watermark == 30
    # An unclean election before these records were written does not excuse their loss.
    state = state_of(epoch=6, unclean_epochs=(4,))
    follower = follower_of(state, end=40, epochs=EPOCHS, high_watermark=31)
    assert isinstance(follower.diverging(follower.next_fetch(), 4, 30), ReplicaStopped)


def test_records_that_the_leader_deleted_are_forgotten():
    follower = follower_of(state_of(epoch=6), end=40, epochs=EPOCHS, segment_base=25, position=15)
    follower.started_at(40)
    assert follower.next_fetch() == ReplicaFetch(2, 12, 6, 40, -1, 5)
    grown(follower, records(40, 41, epoch=4, segment=25, position=15))
    assert follower.next_fetch().last_epoch == 4
