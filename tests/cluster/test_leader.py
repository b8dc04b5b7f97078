"""The leader of a partition: high watermark, fetches, ISR changes, lease, hand-over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy
from millstream.cluster.leader import UNAVAILABLE, AppendRefusal
from millstream.cluster.replica_fetch import FetchDecision, FetchKind
from millstream.cluster.replication_state import NO_NODE, IsrMember

from .machines import LIVES, LeaderOf, members, newer, state_of


def fetch_well(leader: LeaderOf, node: int, offset: int, *, life=None) -> None:
    """Fetch as often as a follower has to before it joins the ISR."""
    for _ in range(IsrPolicy().good_fetches_min):
        assert leader.fetch(node, offset, life=life).kind is FetchKind.SERVE


def shrunk_to_one_and_two() -> LeaderOf:
    """Return a leader whose ISR is nodes 1 and 2, with three committed records."""
    leader = LeaderOf(state_of((1, 2)))
    leader.append(3)
    leader.fetch(2, 3)
    leader.wait(10)
    assert leader.machine.high_watermark == 3
    return leader


# The high watermark


def test_the_high_watermark_is_the_least_end_over_the_isr():
    leader = LeaderOf()
    leader.append(5)
    assert leader.machine.high_watermark == 0
    leader.fetch(2, 5)
    assert leader.machine.high_watermark == 0
    leader.fetch(3, 4)
    assert leader.machine.high_watermark == 4
    leader.fetch(3, 5)
    assert leader.machine.high_watermark == 5


def test_the_end_of_the_leader_counts_only_as_far_as_it_is_synced():
    leader = LeaderOf()
    leader.append(5, is_synced=False)
    leader.fetch(2, 5)
    leader.fetch(3, 5)
    assert leader.machine.high_watermark == 0
    assert leader.machine.synced(4)
    assert leader.machine.high_watermark == 4
    assert not leader.machine.synced(4)


def test_the_high_watermark_never_falls():
    leader = LeaderOf()
    leader.append(5)
    leader.fetch(2, 5)
    leader.fetch(3, 5)
    leader.fetch(3, 2)
    assert leader.machine.high_watermark == 5


def test_a_lone_replica_commits_what_it_syncs():
    leader = LeaderOf(replace(state_of((1,)), replicas=(1,)), end=7)
    assert leader.machine.high_watermark == 7
    leader.append(9)
    assert leader.machine.high_watermark == 9


def test_a_replica_outside_the_isr_holds_nothing_up():
    leader = LeaderOf(state_of((1, 2)))
    leader.append(5)
    leader.fetch(2, 5)
    assert leader.machine.high_watermark == 5


def test_while_the_outcome_of_a_proposal_is_unknown_both_isrs_count():
    leader = shrunk_to_one_and_two()
    fetch_well(leader, 3, 3)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr == members(1, 2, 3)
    leader.machine.proposal_unknown()
    leader.append(4)
    leader.fetch(2, 4)
    assert leader.machine.high_watermark == 3
    leader.fetch(3, 4)
    assert leader.machine.high_watermark == 4


def test_a_member_that_is_to_leave_counts_until_the_store_has_it():
    leader = LeaderOf()
    leader.append(5)
    leader.fetch(2, 5)
    leader.wait(1)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr == members(1, 2)
    assert not leader.machine.synced(5)
    assert leader.machine.high_watermark == 0
    assert leader.apply(proposal)
    assert leader.machine.high_watermark == 5


def test_a_member_counts_only_in_the_life_that_the_isr_names():
    leader = LeaderOf(state_of((1, 2)))
    leader.append(5)
    leader.fetch(2, 5, life=99)
    assert leader.machine.high_watermark == 0


# Fetches of followers


def test_a_fetch_of_another_epoch_does_not_count():
    leader = LeaderOf(state_of(epoch=3), end=5)
    assert leader.fetch(2, 5, epoch=2).kind is FetchKind.FENCED_LEADER_EPOCH
    assert leader.fetch(2, 5, epoch=4).kind is FetchKind.UNKNOWN_LEADER_EPOCH
    leader.fetch(3, 5)
    assert leader.machine.high_watermark == 0


def test_a_fetch_of_an_earlier_life_is_fenced():
    leader = LeaderOf()
    leader.fetch(2, 0, life=20)
    assert leader.fetch(2, 0, life=12).kind is FetchKind.FENCED_BROKER_EPOCH


def test_only_replicas_fetch():
    leader = LeaderOf()
    LIVES[4] = 14
    try:
        assert leader.fetch(4, 0).kind is FetchKind.NOT_A_REPLICA
    finally:
        del LIVES[4]


@pytest.mark.parametrize(
    ("offset", "last_epoch", "answer"),
    [
        (30, 4, FetchDecision(FetchKind.SERVE)),
        (40, 4, FetchDecision(FetchKind.SERVE)),
        (0, -1, FetchDecision(FetchKind.SERVE)),
        (10, 1, FetchDecision(FetchKind.SERVE)),
        (11, 1, FetchDecision(FetchKind.DIVERGING, 1, 10)),
        (12, 2, FetchDecision(FetchKind.DIVERGING, 1, 10)),
        (41, 4, FetchDecision(FetchKind.DIVERGING, 4, 40)),
        (50, 3, FetchDecision(FetchKind.DIVERGING, 3, 25)),
        (1, 0, FetchDecision(FetchKind.DIVERGING, -1, 0)),
        (0, 0, FetchDecision(FetchKind.SERVE)),
    ],
)
def test_a_follower_whose_log_differs_is_told_where(offset, last_epoch, answer):
    leader = LeaderOf(
        state_of(epoch=5), end=40, epochs=[(1, 0), (3, 10), (4, 25), (5, 40)], high_watermark=5
    )
    assert leader.fetch(2, offset, last_epoch=last_epoch) == answer
    progress = leader.machine.follower(2)
    assert progress is not None
    assert progress.end == (offset if answer.kind is FetchKind.SERVE else -1)


def test_a_follower_before_the_start_of_the_log_is_out_of_range():
    leader = LeaderOf(state_of(epoch=4), end=40, epochs=[(1, 0), (3, 10), (4, 40)])
    leader.machine.started_at(20)
    assert leader.fetch(2, 5, last_epoch=1) == FetchDecision(FetchKind.OUT_OF_RANGE, -1, 20)
    assert leader.fetch(2, 15, last_epoch=3) == FetchDecision(FetchKind.OUT_OF_RANGE, -1, 20)
    assert leader.fetch(2, 30, last_epoch=2) == FetchDecision(FetchKind.DIVERGING, -1, 20)
    assert leader.fetch(2, 20, last_epoch=2).kind is FetchKind.SERVE


# Changes of the ISR


def test_a_follower_that_is_behind_for_too_long_leaves_by_compare_and_set():
    leader = LeaderOf()
    leader.append(5)
    leader.fetch(2, 5)
    assert leader.machine.tick(leader.now + 0.4) is None
    leader.wait(0.6)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr == members(1, 2)
    assert proposal.revision == 5
    assert proposal.nodes == members(1)
    assert leader.machine.tick(leader.now) is None  # One at a time.


def test_a_follower_at_the_end_is_not_behind_however_long_nothing_comes():
    leader = LeaderOf()
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    leader.wait(1000)
    assert leader.machine.tick(leader.now) is None
    leader.append(1)
    assert leader.machine.tick(leader.now + 0.4) is None


def test_if_all_followers_are_slow_none_of_them_leaves():
    leader = LeaderOf()
    leader.append(5)
    leader.wait(3)
    assert leader.machine.tick(leader.now) is None


def test_the_isr_does_not_shrink_below_min_insync_replicas_and_appends_are_refused():
    leader = LeaderOf(state_of((1, 2)))
    leader.append(5)
    leader.fetch(3, 5)
    leader.wait(1)
    assert leader.machine.tick(leader.now) is None
    refusal = leader.machine.refuses_append(leader.now, acks_all=True)
    assert refusal is AppendRefusal.NOT_ENOUGH_REPLICAS
    assert leader.machine.refuses_append(leader.now, acks_all=False) is None


def test_a_node_that_is_gone_leaves_at_once():
    leader = LeaderOf()
    leader.fetch(3, 0)
    leader.machine.node_gone(3, LIVES[3])
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr == members(1, 2)


def test_a_node_that_came_back_since_is_not_gone():
    leader = LeaderOf()
    leader.fetch(3, 0, life=30)
    leader.machine.node_gone(3, LIVES[3])
    assert leader.machine.follower(3).is_gone is False


def test_a_follower_joins_after_ten_good_fetches_in_its_present_life():
    leader = shrunk_to_one_and_two()
    for _ in range(9):
        leader.fetch(3, 3, life=30)
    assert leader.machine.tick(leader.now) is None
    leader.fetch(3, 3, life=30)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr == (*members(1, 2), IsrMember(3, 30))
    assert proposal.nodes == (IsrMember(1, 11), IsrMember(3, 30))


def test_a_member_that_was_started_again_joins_again_in_its_new_life():
    leader = LeaderOf(state_of((1, 2)))
    leader.append(3)
    fetch_well(leader, 2, 3, life=30)
    assert leader.machine.high_watermark == 0
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr == (IsrMember(1, 11), IsrMember(2, 30))
    leader.apply(proposal)
    assert leader.machine.high_watermark == 3


def test_a_new_leader_adds_nobody_who_is_before_the_start_of_its_epoch():
    # The predecessor committed offset 0, and told nobody: the high watermark here is 0.
    leader = LeaderOf(state_of((1, 2), leader=2, epoch=1), end=1, epochs=[(0, 0), (1, 1)])
    fetch_well(leader, 3, 0)
    assert leader.machine.high_watermark == 0
    assert not leader.machine.may_join(3)
    assert leader.machine.tick(leader.now) is None
    leader.fetch(3, 1)
    assert leader.machine.may_join(3)


def test_a_partition_changes_at_most_once_in_five_seconds():
    leader = shrunk_to_one_and_two()
    fetch_well(leader, 3, 3)
    proposal = leader.machine.tick(leader.now)
    leader.apply(proposal)
    leader.append(4)
    leader.fetch(2, 4)
    leader.wait(2)
    assert leader.machine.tick(leader.now) is None
    leader.wait(3)
    assert leader.machine.tick(leader.now) is not None


def test_the_limit_of_the_node_delays_changes_but_not_those_for_nodes_that_are_gone():
    limiter = IsrChangeLimiter(per_second=1)
    leader = LeaderOf(limiter=limiter)
    leader.append(5)
    leader.fetch(2, 5)
    leader.wait(1)
    assert limiter.take(leader.now)
    assert leader.machine.tick(leader.now) is None
    leader.machine.node_gone(3, LIVES[3])
    assert leader.machine.tick(leader.now) is not None


def test_after_an_unknown_outcome_the_leader_proposes_again_to_move_the_revision():
    leader = shrunk_to_one_and_two()
    fetch_well(leader, 3, 3)
    assert leader.machine.tick(leader.now) is not None
    leader.machine.proposal_unknown()
    leader.append(4)
    leader.wait(5)  # Node 3 has stopped fetching meanwhile.
    leader.fetch(2, 4)
    again = leader.machine.tick(leader.now)
    assert again is not None
    assert again.revision == 5
    leader.apply(again)
    assert leader.machine.high_watermark == 4


def test_after_a_refusal_the_leader_waits_until_the_state_was_read_again():
    leader = LeaderOf()
    leader.append(5)
    leader.fetch(2, 5)
    leader.wait(1)
    assert leader.machine.tick(leader.now) is not None
    leader.machine.proposal_refused()
    leader.wait(9)
    leader.fetch(2, 5)
    assert leader.machine.tick(leader.now) is None
    assert leader.machine.state_changed(leader.machine.state, leader.now)
    assert leader.machine.tick(leader.now) is not None


# The state of the partition


@pytest.mark.parametrize(
    "change",
    [
        {"leader": 2, "leader_broker_epoch": 12, "leader_epoch": 1},
        {"leader_epoch": 1},
        {"leader_broker_epoch": 99},
    ],
)
def test_a_newer_leadership_fences_the_leader_for_good(change):
    leader = LeaderOf()
    leader.append(5)
    assert not leader.machine.state_changed(newer(state_of(), **change), leader.now)
    assert leader.fetch(2, 5).kind is FetchKind.NOT_LEADER
    assert leader.machine.refuses_append(leader.now, acks_all=True) is AppendRefusal.NOT_LEADER
    assert not leader.machine.may_answer(leader.now)
    assert leader.machine.tick(leader.now) is None
    assert not leader.machine.state_changed(newer(newer(state_of())), leader.now)


def test_an_older_state_has_no_effect():
    leader = LeaderOf()
    older = state_of(leader=2, epoch=9, revision=4)
    assert leader.machine.state_changed(older, leader.now)
    assert leader.machine.state.revision == 5


def test_replicas_that_are_added_may_fetch_and_those_that_are_removed_may_not():
    leader = LeaderOf(state_of((1, 2)))
    state = newer(leader.machine.state, replicas=(1, 2))
    leader.machine.state_changed(state, leader.now)
    assert leader.fetch(3, 0).kind is FetchKind.NOT_A_REPLICA
    leader.machine.state_changed(newer(state, replicas=(1, 2, 3)), leader.now)
    assert leader.fetch(3, 0).kind is FetchKind.SERVE


# Clients


def test_a_leader_whose_lease_is_in_doubt_neither_appends_nor_answers():
    leader = LeaderOf(end=5)
    leader.fetch(2, 5)
    leader.fetch(3, 5)
    assert leader.machine.latest_offset(leader.now) == 5
    late = leader.now + 2.9
    assert leader.machine.refuses_append(late, acks_all=True) is AppendRefusal.LEASE_EXPIRED
    assert not leader.machine.may_answer(late)
    assert leader.machine.latest_offset(late) == UNAVAILABLE


def test_acks_all_needs_no_lease():
    leader = LeaderOf()
    leader.append(1)
    leader.now += 1000
    leader.fetch(2, 1)
    leader.fetch(3, 1)
    assert leader.machine.high_watermark == 1


def test_the_end_of_the_log_is_not_told_before_the_high_watermark_has_reached_the_epoch_start():
    leader = LeaderOf(state_of((1, 2), epoch=1), end=5, epochs=[(0, 0), (1, 5)], high_watermark=3)
    assert leader.machine.latest_offset(leader.now) == UNAVAILABLE
    assert leader.machine.may_answer(leader.now)
    leader.fetch(2, 5)
    assert leader.machine.latest_offset(leader.now) == 5


def test_a_new_leader_gives_its_followers_time_before_it_refuses_appends():
    leader = LeaderOf()
    assert leader.machine.refuses_append(leader.now + 0.4, acks_all=True) is None
    leader.fetch(2, 0)
    leader.wait(9)
    assert leader.machine.in_sync_count(leader.now) == 2
    assert leader.machine.refuses_append(leader.now, acks_all=True) is None


# Hand-over


def test_a_leader_hands_over_when_its_successor_has_everything():
    leader = LeaderOf()
    leader.append(5)
    leader.machine.state_changed(newer(state_of(), successor=2), leader.now)
    assert leader.machine.is_handing_over
    refusal = leader.machine.refuses_append(leader.now, acks_all=False)
    assert refusal is AppendRefusal.HANDING_OVER
    leader.fetch(2, 4)
    assert leader.machine.tick(leader.now) is None
    assert leader.machine.may_answer(leader.now)
    leader.fetch(2, 5)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    state = proposal.state
    assert (state.leader, state.leader_broker_epoch, state.leader_epoch) == (2, 12, 1)
    assert (state.successor, state.isr) == (NO_NODE, members(1, 2, 3))
    assert proposal.revision == 6
    assert set(proposal.nodes) == set(members(1, 2))
    assert not leader.machine.may_answer(leader.now)
    assert not leader.apply(proposal)


def test_a_leader_does_not_hand_over_before_it_has_synced_what_it_wrote():
    # Else it would follow with an end that the next leader does not take it for.
    leader = LeaderOf()
    leader.append(5, is_synced=False)
    leader.machine.hand_over(2, leader.now)
    leader.fetch(2, 5)
    assert leader.machine.tick(leader.now) is None
    leader.machine.synced(5)
    assert leader.machine.tick(leader.now) is not None


def test_a_leader_whose_log_failed_hands_over_what_it_has_synced():
    leader = LeaderOf()
    leader.append(3)
    leader.append(5, is_synced=False)
    leader.fetch(2, 3)
    leader.machine.log_failed()
    leader.machine.hand_over(2, leader.now)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.leader == 2


def test_nobody_is_behind_because_of_what_a_failed_log_cannot_hand_out():
    leader = LeaderOf()
    leader.append(3)
    leader.append(5, is_synced=False)
    leader.fetch(2, 3)
    leader.fetch(3, 2)
    leader.machine.log_failed()
    leader.wait(0.4)
    leader.fetch(2, 3)
    leader.wait(0.4)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr == members(1, 2), "node 3 lacks a synced record"
    assert leader.fetch(2, 5).kind is FetchKind.SERVE, "it may have fetched more before"


def test_a_leader_whose_hand_over_is_in_doubt_answers_nobody_until_the_revision_has_moved():
    leader = LeaderOf()
    leader.machine.hand_over(2, leader.now)
    leader.fetch(2, 0)
    assert leader.machine.tick(leader.now) is not None
    leader.machine.proposal_unknown()
    leader.machine.node_gone(2, LIVES[2])
    assert not leader.machine.may_answer(leader.now)
    touch = leader.machine.tick(leader.now)
    assert touch is not None
    assert (touch.state.leader, touch.state.leader_epoch) == (1, 0)
    assert not leader.machine.may_answer(leader.now)
    assert leader.apply(touch)
    assert leader.machine.may_answer(leader.now)
    assert leader.machine.refuses_append(leader.now, acks_all=False) is None


def test_a_successor_that_does_not_catch_up_is_given_up():
    leader = LeaderOf()
    leader.append(5)
    leader.machine.hand_over(2, leader.now)
    leader.fetch(2, 1)
    leader.wait(4.9)
    assert leader.machine.tick(leader.now) is None
    leader.wait(0.2)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.leader == 1
    assert leader.apply(proposal)
    assert leader.machine.refuses_append(leader.now, acks_all=False) is None
