"""What a replica does next to become whole again, as decisions without a cluster."""

from __future__ import annotations

import pytest

from millstream.cluster.controller import ClusterNode, candidates, elected
from millstream.cluster.isr import IsrPolicy
from millstream.cluster.repair import (
    CommittedEnd,
    FoundLog,
    RepairStep,
    ReplicaCondition,
    disown_step,
    disowning,
    lost_records,
    next_repair,
)
from millstream.cluster.replication_state import NO_LIFE, IsrMember, ReplicationState
from tests.cluster.machines import LeaderOf, newer, state_of

FOLLOWER = ReplicaCondition(is_leader=False, has_leader=True, is_counted=True)
OUTSIDE = FOLLOWER._replace(is_counted=False)
LEADER = ReplicaCondition(is_leader=True, has_leader=False, is_counted=True)


@pytest.mark.parametrize(
    ("condition", "step"),
    [
        (FOLLOWER, RepairStep.NOTHING),
        (FOLLOWER._replace(is_end_lost=True), RepairStep.DISOWN),
        (FOLLOWER._replace(is_unproved=True), RepairStep.DISOWN),
        (OUTSIDE._replace(is_end_lost=True, is_unproved=True), RepairStep.RECOVER_END),
        (OUTSIDE._replace(is_end_lost=True, has_leader=False), RepairStep.NOTHING),
        (OUTSIDE._replace(is_unproved=True, is_damaged=True), RepairStep.PROVE),
        (FOLLOWER._replace(is_damaged=True, was_damaged=True), RepairStep.REPLACE),
        (FOLLOWER._replace(was_damaged=True, is_far_behind=True), RepairStep.REOPEN),
        (FOLLOWER._replace(is_far_behind=True), RepairStep.COPY),
        (LEADER, RepairStep.NOTHING),
        (LEADER._replace(is_end_lost=True), RepairStep.HAND_OVER),
        (LEADER._replace(is_damaged=True, was_damaged=True), RepairStep.REPLACE),
        (LEADER._replace(was_damaged=True), RepairStep.HAND_OVER),
    ],
)
def test_the_next_step_of_a_replica(condition: ReplicaCondition, step: RepairStep):
    assert next_repair(condition) is step


def test_a_follower_never_touches_its_end_while_it_counts():
    for has_leader in (True, False):
        for is_unproved in (True, False):
            condition = FOLLOWER._replace(
                is_end_lost=True, has_leader=has_leader, is_unproved=is_unproved
            )
            assert next_repair(condition) is RepairStep.DISOWN


@pytest.mark.parametrize(
    ("found", "committed", "has_others", "is_lost"),
    [
        (FoundLog(10), CommittedEnd(10), True, False),
        (FoundLog(12), CommittedEnd(10), True, False),
        (FoundLog(9), CommittedEnd(10), True, True),
        (FoundLog(9), CommittedEnd(10), False, True),
        (FoundLog(9), None, True, False),
        (FoundLog(None), CommittedEnd(10), False, True),
        (FoundLog(None), CommittedEnd(0), True, False),
        (FoundLog(None), None, True, True),
        (FoundLog(None), None, False, False),
        (FoundLog(None, "damaged"), None, False, True),
    ],
)
def test_records_that_a_log_had_are_missed(
    found: FoundLog, committed: CommittedEnd | None, has_others: bool, is_lost: bool
):
    reason = lost_records(found, committed, has_others=has_others)
    assert (reason is not None) == is_lost


TWO_EPOCHS = FoundLog(12, epochs=((1, 0), (4, 8)))
"""Offsets 0 to 7 are of epoch 1, and 8 to 11 of epoch 4."""


@pytest.mark.parametrize(
    ("found", "committed", "is_lost"),
    [
        (TWO_EPOCHS, CommittedEnd(12, 4), False),
        (TWO_EPOCHS, CommittedEnd(9, 4), False),
        (TWO_EPOCHS, CommittedEnd(8, 1), False),
        (TWO_EPOCHS, CommittedEnd(12, 5), True),  # An older copy, whose end was replaced.
        (TWO_EPOCHS, CommittedEnd(9, 3), True),
        (TWO_EPOCHS, CommittedEnd(8, 0), True),
        (TWO_EPOCHS, CommittedEnd(12), False),  # A release without epochs stored it.
        (TWO_EPOCHS, CommittedEnd(0), False),
        # Retention removed the record meanwhile.
        (TWO_EPOCHS._replace(start_offset=8), CommittedEnd(8, 3), False),
        (TWO_EPOCHS._replace(start_offset=7), CommittedEnd(8, 3), True),
        (FoundLog(12), CommittedEnd(12, 4), False),
    ],
)
def test_a_log_that_is_long_enough_and_has_other_records_is_noticed(
    found: FoundLog, committed: CommittedEnd, is_lost: bool
):
    assert (lost_records(found, committed, has_others=True) is not None) == is_lost


def test_the_reason_names_the_offset_and_both_epochs():
    assert lost_records(TWO_EPOCHS, CommittedEnd(9, 3), has_others=True) == (
        "its record at offset 8 is of leader epoch 4, and the one that was committed there is of"
        " epoch 3"
    )


STATE = ReplicationState(
    leader=1,
    leader_broker_epoch=5,
    leader_epoch=3,
    isr=(IsrMember(1, 5), IsrMember(2, 6)),
    replicas=(1, 2, 3),
)
NODES = {node: ClusterNode(id=node, broker_epoch=9, continuous_since=1) for node in (1, 2, 3)}


def test_a_disowned_replica_is_a_candidate_no_more_though_its_directory_is_the_same():
    assert candidates(STATE, NODES) == [1, 2]
    disowned = STATE.disowned(1)
    assert disowned.isr == (IsrMember(1, NO_LIFE), IsrMember(2, 6))
    assert not disowned.is_counted(1)
    assert candidates(disowned, NODES) == [2]
    assert candidates(disowned.disowned(2), NODES) == []


def test_an_election_keeps_a_disowned_replica_only_to_wait_for_it():
    new = elected(STATE.disowned(1), 2, NODES, min_insync=2)
    assert new.isr == (IsrMember(1, NO_LIFE), IsrMember(2, 9))
    assert elected(STATE.disowned(1), 2, NODES, min_insync=1).isr == (IsrMember(2, 9),)


def test_a_leader_commits_nothing_while_it_waits_for_a_disowned_replica():
    leader = LeaderOf(state_of((1, 2)))
    leader.append(3)
    leader.fetch(2, 3)
    assert leader.machine.high_watermark == 3
    leader.machine.state_changed(newer(leader.machine.state.disowned(2)), leader.now)
    leader.append(5)
    leader.fetch(2, 5)
    assert leader.machine.high_watermark == 3
    assert leader.machine.in_sync_count(leader.now) == 1
    assert leader.machine.refuses_append(leader.now, acks_all=True) is not None


def test_a_disowned_replica_counts_again_when_its_leader_has_seen_it_catch_up():
    leader = LeaderOf(state_of((1, 2)).disowned(2))
    leader.append(3)
    leader.wait(10)
    for _ in range(IsrPolicy().good_fetches_min + 1):
        leader.fetch(2, 3)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.is_counted(2)
    leader.machine.state_changed(newer(proposal.state), leader.now)
    leader.fetch(2, 3)
    assert leader.machine.high_watermark == 3


def test_a_node_that_starts_disowns_a_replica_only_when_its_former_life_is_gone():
    state = STATE.at(7)
    step = disown_step(state, 2, is_registered=True)
    assert not step.is_done
    assert step.proposal is None
    proposal = disown_step(state, 2, is_registered=False).proposal
    assert proposal is not None
    assert proposal.state == state.disowned(2)
    assert proposal.holds(7, {1: 5}, 0)
    assert not proposal.holds(7, {1: 5, 2: 6}, 0)  # The former life is still there.
    assert not proposal.holds(8, {1: 5}, 0)


def test_a_node_that_starts_waits_for_its_former_life_though_it_is_not_in_the_isr():
    """Its leader may be about to put the former life into it."""
    assert not disown_step(STATE, 3, is_registered=True).is_done
    assert disown_step(STATE, 3, is_registered=False).is_done
    assert disown_step(STATE.disowned(2), 2, is_registered=False).is_done


def test_a_node_that_runs_changes_the_state_before_it_cuts_a_replica_that_is_not_in_the_isr():
    """So that the store refuses a proposal to put it there, by what it fetched before."""
    proposal = disowning(STATE.at(7), 3)
    assert proposal.state.isr == STATE.isr
    assert proposal.revision == 7


def follow(leader: LeaderOf, node: int, end: int, **fields: int) -> None:
    for _ in range(IsrPolicy().good_fetches_min + 1):
        leader.fetch(node, end, **fields)


def test_a_leader_does_not_count_a_disowned_replica_by_what_it_fetched_before():
    leader = LeaderOf(state_of((1, 2, 3)))
    leader.append(3)
    follow(leader, 2, 3)
    follow(leader, 3, 3)
    before = leader.machine.state.revision
    leader.machine.state_changed(newer(leader.machine.state.disowned(2)), leader.now)
    assert leader.machine.tick(leader.now) is None
    follow(leader, 2, 3, revision=before)  # They were sent before, and are late.
    assert leader.machine.tick(leader.now) is None
    follow(leader, 2, 3)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.is_counted(2)


def test_a_disowned_replica_lets_nobody_leave_the_isr_who_has_every_record():
    leader = LeaderOf(state_of((1, 2, 3)).disowned(2))
    leader.append(3)
    leader.machine.node_gone(3, 13)
    assert leader.machine.tick(leader.now) is None
    leader.machine.node_gone(2, 12)
    proposal = leader.machine.tick(leader.now)
    assert proposal is not None
    assert proposal.state.isr_nodes == (1, 3)
