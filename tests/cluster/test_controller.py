"""Decisions of the controller."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from millstream.cluster import controller
from millstream.cluster.controller import ClusterNode
from millstream.cluster.replication_state import NO_NODE, IsrMember, ReplicationState
from millstream.errors import InvalidReplication, InvalidRequest

from .machines import LIVES, members, state_of


def nodes_of(*ids: int, racks=(), **changes) -> dict[int, ClusterNode]:
    """Return nodes in the lives that `machines` gives them; changes are by name `node_1`."""
    nodes = {
        node: ClusterNode(node, LIVES.get(node, 10 + node), LIVES.get(node, 10 + node))
        for node in ids
    }
    for node, rack in zip(ids, racks, strict=False):
        nodes[node] = replace(nodes[node], rack=rack)
    for name, fields in changes.items():
        node = int(name.removeprefix("node_"))
        nodes[node] = replace(nodes[node], **fields)
    return nodes


def elect(state, nodes):
    return controller.elect(state, nodes, min_insync=2, controller_epoch=77)


# Elections


def test_a_partition_whose_leader_lives_needs_no_election():
    assert elect(state_of(), nodes_of(1, 2, 3)) is None


def test_the_first_live_replica_of_the_isr_is_elected_in_the_next_epoch():
    proposal = elect(state_of(epoch=4), nodes_of(2, 3))
    assert proposal is not None
    state = proposal.state
    assert (state.leader, state.leader_broker_epoch, state.leader_epoch) == (2, 12, 5)
    assert state.isr == members(2, 3)
    assert (proposal.revision, proposal.controller_epoch) == (5, 77)
    assert proposal.nodes == members(2)


def test_a_leader_that_was_started_again_needs_a_new_epoch():
    nodes = nodes_of(1, 2, 3, node_1={"broker_epoch": 30})
    proposal = elect(state_of(), nodes)
    assert proposal is not None
    assert (proposal.state.leader, proposal.state.leader_broker_epoch) == (1, 30)
    assert proposal.state.isr == (IsrMember(1, 30), *members(2, 3))


def test_a_leader_that_disowned_its_replica_is_replaced_if_another_can_lead():
    state = state_of().disowned(1)
    proposal = elect(state, nodes_of(1, 2, 3))
    assert proposal is not None
    assert (proposal.state.leader, proposal.state.leader_epoch) == (2, state.leader_epoch + 1)
    assert proposal.state.isr == members(2, 3)
    assert elect(state, nodes_of(1)) is None


def test_nobody_outside_the_isr_is_elected():
    assert elect(state_of((1, 2)), nodes_of(3)) is None


def test_a_node_with_another_directory_is_not_elected_over_any_number_of_restarts():
    empty = {"broker_epoch": 30, "continuous_since": 20}
    assert elect(state_of((1, 2)), nodes_of(2, 3, node_2=empty)) is None
    same = {"broker_epoch": 30, "continuous_since": 12}
    assert elect(state_of((1, 2)), nodes_of(2, 3, node_2=same)).state.leader == 2


def test_an_election_keeps_enough_members_those_that_may_come_back_first():
    only_three = elect(state_of(), nodes_of(3))
    assert only_three.state.isr == members(1, 3)
    empty = {"broker_epoch": 30, "continuous_since": 30}
    other_disk = elect(state_of(), nodes_of(1, 3, node_1=empty))
    assert other_disk.state.isr == members(2, 3)


def test_nodes_that_stop_or_are_removed_are_elected_last():
    nodes = nodes_of(2, 3, node_2={"is_stopping": True})
    assert elect(state_of(), nodes).state.leader == 3
    assert elect(state_of(removing=(2,)), nodes_of(2, 3)).state.leader == 3
    assert elect(state_of(), nodes_of(2, node_2={"is_stopping": True})).state.leader == 2


def test_an_unclean_election_is_recorded_in_the_state_and_in_what_is_returned():
    election = controller.elect_uncleanly(
        state_of((1, 2), epoch=4), 3, nodes_of(3), controller_epoch=77
    )
    state = election.proposal.state
    assert (state.leader, state.leader_epoch, state.isr) == (3, 5, members(3))
    assert state.unclean_epochs == (5,)
    assert (election.leader, election.leader_epoch, election.former_isr) == (3, 5, (1, 2))


@pytest.mark.parametrize(
    ("isr", "live", "leader", "message"),
    [
        ((1, 2), (1, 3), 3, "node 1 can lead without loss"),
        ((1, 2), (2, 3), 3, "node 2 can lead without loss"),
        ((1, 2), (3,), 1, r"must be one of the live replicas \[3\], got 1"),
        ((1, 2), (3, 4), 4, r"must be one of the live replicas \[3\], got 4"),
    ],
)
def test_an_unclean_election_is_refused_if_it_is_not_needed_or_not_possible(
    isr, live, leader, message
):
    with pytest.raises(InvalidRequest, match=message):
        controller.elect_uncleanly(state_of(isr), leader, nodes_of(*live), controller_epoch=77)


# Hand-over


def test_leadership_moves_back_to_preferred_replicas_a_few_at_a_time():
    states = {number: state_of(leader=2) for number in range(9)}
    moves = list(controller.preferred_moves(states, nodes_of(1, 2, 3), moves_max=4))
    assert moves == [(0, 1), (1, 1), (2, 1), (3, 1)]
    state = states[0]
    proposal = controller.hand_over(state, 1, nodes_of(1, 2, 3), controller_epoch=77)
    assert proposal.state == replace(state, successor=1)
    assert proposal.revision == state.revision


@pytest.mark.parametrize(
    ("state", "nodes"),
    [
        (state_of(leader=1), nodes_of(1, 2, 3)),
        (state_of((2, 3), leader=2), nodes_of(1, 2, 3)),
        (state_of(leader=2), nodes_of(2, 3)),
        (state_of(leader=2), nodes_of(1, 2, 3, node_1={"broker_epoch": 30})),
        (state_of(leader=2), nodes_of(1, 2, 3, node_1={"is_stopping": True})),
        (state_of(leader=2, successor=1), nodes_of(1, 2, 3)),
        (state_of(leader=2, removing=(3,)), nodes_of(1, 2, 3)),
        (state_of(leader=2), nodes_of(1, 3)),
    ],
)
def test_no_move_is_asked_for_that_is_not_possible(state, nodes):
    assert list(controller.preferred_moves({"p": state}, nodes, moves_max=9)) == []


def test_a_node_that_stops_hands_over_to_a_member_that_stays():
    stopping = {"is_stopping": True}
    nodes = nodes_of(1, 2, 3, node_1=stopping, node_2=stopping)
    assert controller.best_successor(state_of(), nodes) == 3
    assert controller.best_successor(state_of((1,)), nodes) == NO_NODE


# Assignment


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(1, 9),
    partitions=st.integers(1, 60),
    factor=st.integers(1, 5),
    racks=st.integers(1, 3),
)
def test_leaders_and_replicas_are_spread_over_nodes_and_racks(count, partitions, factor, racks):
    factor = min(factor, count)
    names = [f"rack {node % racks}" for node in range(count)]
    nodes = nodes_of(*range(1, count + 1), racks=names)
    assigned = controller.assign_replicas(nodes, partitions=partitions, factor=factor)
    leaders = Counter(dict.fromkeys(nodes, 0))
    leaders.update(replicas[0] for replicas in assigned)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    for replicas in assigned:
        assert len(set(replicas)) == factor
        used = {nodes[node].rack for node in replicas}
        assert len(used) == min(factor, len(set(names)))
    if racks == 1:
        counts = Counter(dict.fromkeys(nodes, 0))
        counts.update(node for replicas in assigned for node in replicas)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_new_partitions_go_where_there_is_little():
    existing = [(1, 2)] * 4
    assigned = controller.assign_replicas(
        nodes_of(1, 2, 3), partitions=2, factor=2, existing=existing
    )
    assert [replicas[0] for replicas in assigned] == [3, 2]


@pytest.mark.parametrize("factor", [0, 3, 4])
def test_more_replicas_than_nodes_are_refused(factor):
    nodes = nodes_of(1, 2, 3, node_3={"is_stopping": True})
    with pytest.raises(InvalidReplication, match=f"between 1 and 2, .* got {factor}"):
        controller.assign_replicas(nodes, partitions=1, factor=factor)


def test_a_new_partition_is_led_by_its_first_live_replica():
    proposal = controller.new_partition((3, 1, 2), nodes_of(1, 2), controller_epoch=77)
    assert proposal.revision == 0
    assert proposal.state == ReplicationState(1, 11, 1, members(1, 2), (3, 1, 2))
    assert proposal.nodes == members(1)
    assert controller.new_partition((3,), nodes_of(1, 2), controller_epoch=77) is None


# Reassignment


def test_a_reassignment_adds_waits_hands_over_and_removes():
    nodes = nodes_of(1, 2, 3, 4)
    state = controller.reassign(state_of(), (4, 3), nodes)
    assert (state.replicas, state.adding, state.removing) == ((4, 3, 1, 2), (4,), (1, 2))
    assert state.isr == members(3, 1, 2)
    assert controller.next_step(state, nodes, min_insync=2) is None
    state = replace(state, isr=(IsrMember(4, 14), *state.isr))
    asked = controller.next_step(state, nodes, min_insync=2)
    assert asked.successor == 4
    assert controller.next_step(asked, nodes, min_insync=2) is None
    handed = replace(asked, leader=4, leader_broker_epoch=14, leader_epoch=1, successor=NO_NODE)
    done = controller.next_step(handed, nodes, min_insync=2)
    assert (done.replicas, done.adding, done.removing) == ((4, 3), (), ())
    assert done.isr == (IsrMember(4, 14), IsrMember(3, 13))
    assert controller.next_step(done, nodes, min_insync=2) is None


def test_replicas_are_not_removed_while_too_few_others_are_in_sync():
    state = replace(state_of((1, 2)), removing=(1,), leader=2, leader_broker_epoch=12)
    assert controller.next_step(state, nodes_of(1, 2, 3), min_insync=2) is None


def test_replicas_that_lost_records_do_not_let_others_be_removed():
    nodes = nodes_of(1, 2, 3, 4)
    state = controller.reassign(state_of(), (4, 3, 1), nodes)
    state = replace(state, isr=(IsrMember(4, 14), *members(3, 1, 2)))
    assert controller.next_step(state.disowned(4), nodes, min_insync=2) is None
    too_few = state.disowned(3).disowned(1)
    assert controller.next_step(too_few, nodes, min_insync=2) is None
    done = controller.next_step(state.disowned(3), nodes, min_insync=2)
    assert done.replicas == (4, 3, 1)


def lone(node: int) -> ReplicationState:
    """Return the state of a partition with one replica, whose node leads."""
    return replace(state_of((node,), leader=node), replicas=(node,))


def test_lone_replicas_are_spread_until_no_node_has_two_more_than_another():
    nodes = nodes_of(1, 2, 3)
    states = [lone(1) for _ in range(16)]
    counts = Counter({1: 16})
    for number, state in enumerate(states):
        moved = controller.spread(state, nodes, counts)
        if moved is not None:
            assert moved.removing == (1,), "a reassignment as any other"
            counts.subtract(state.target)
            counts.update(moved.target)
            states[number] = moved
    assert sorted(counts.values()) == [5, 5, 6]
    assert Counter(state.target[0] for state in states) == counts
    settled = [lone(node) for node in counts.elements()]
    assert not any(controller.spread(state, nodes, counts) for state in settled)


def test_only_a_lone_replica_that_leads_on_a_node_that_stays_is_moved():
    counts = {1: 16}
    nodes = nodes_of(1, 2)
    assert controller.spread(lone(1), nodes, counts) is not None
    assert controller.spread(state_of((1, 2)), nodes, counts) is None, "it has two replicas"
    moving = controller.reassign(lone(1), (2,), nodes)
    assert controller.spread(moving, nodes, counts) is None, "it is moving"
    assert controller.spread(lone(1), nodes_of(2), counts) is None, "its node is gone"
    leaving = nodes_of(1, 2, node_1={"is_stopping": True})
    assert controller.spread(lone(1), leaving, counts) is None, "its node is leaving"
    leaving = nodes_of(1, 2, node_2={"is_stopping": True})
    assert controller.spread(lone(1), leaving, counts) is None, "the other is leaving"


def test_a_reassignment_can_be_replaced_and_cancelled():
    nodes = nodes_of(1, 2, 3, 4, 5)
    state = controller.reassign(state_of(), (1, 2, 4), nodes)
    other = controller.reassign(state, (1, 2, 5), nodes)
    assert (other.adding, other.removing) == ((5,), (4, 3))
    back = controller.cancel_reassignment(state, nodes)
    assert (back.adding, back.removing, back.target) == ((), (4,), (1, 2, 3))
    done = controller.next_step(back, nodes, min_insync=2)
    assert done.replicas == (1, 2, 3)


@pytest.mark.parametrize("target", [(), (1, 1), (1, 9)])
def test_an_impossible_target_is_refused(target):
    with pytest.raises(InvalidReplication, match="different nodes of the cluster"):
        controller.reassign(state_of(), target, nodes_of(1, 2, 3))


# Balance


def test_a_node_is_removed_by_moving_its_replicas_in_their_place():
    states = {"a": state_of(), "b": replace(state_of(), replicas=(3, 2, 4))}
    nodes = nodes_of(1, 2, 3, 4)
    targets = controller.without_node(states, 1, nodes)
    assert targets == {"a": (4, 2, 3)}
    with pytest.raises(InvalidReplication, match="add a node or lower its replication factor"):
        controller.without_node(states, 1, nodes_of(1, 2, 3))


def test_load_moves_from_the_node_with_the_most_to_the_one_with_the_least():
    states = {number: replace(state_of(), replicas=(1, 2)) for number in range(4)}
    nodes = nodes_of(1, 2, 3)
    loads = dict.fromkeys(states, 10.0)
    targets = controller.balanced(states, nodes, loads, moves_max=10)
    load = Counter(dict.fromkeys(nodes, 0.0))
    for key, state in states.items():
        load.update(dict.fromkeys(targets.get(key, state.replicas), loads[key]))
    assert sorted(load.values()) == [20.0, 30.0, 30.0]
    assert len(controller.balanced(states, nodes, loads, moves_max=1)) == 1


def test_a_balanced_cluster_is_left_alone():
    states = {number: state_of() for number in range(4)}
    assert controller.balanced(states, nodes_of(1, 2, 3), {0: 5.0}, moves_max=9) == {}


def test_balancing_keeps_the_replicas_of_a_partition_in_different_racks():
    nodes = nodes_of(1, 2, 3, racks=("a", "b", "b"))
    states = {number: replace(state_of(), replicas=(1, 2)) for number in range(4)}
    loads = dict.fromkeys(states, 10.0)
    for replicas in controller.balanced(states, nodes, loads, moves_max=9).values():
        assert {nodes[node].rack for node in replicas} == {"a", "b"}
