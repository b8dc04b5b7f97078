"""Copies of simulated replicas, keys that identify their states, and other numbers for nodes.

The explorer compares states of the machines, so this module looks into them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from millstream.cluster.epochs import EpochHistory
from millstream.cluster.follower import FollowerReplica
from millstream.cluster.isr import FollowerProgress
from millstream.cluster.leader import LeaderReplica
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.replica_fetch import ReplicaFetch
from millstream.cluster.replication_state import NO_NODE, IsrMember, Proposal, ReplicationState
from millstream.testing.simulation.replica import SimulatedReplica

Order = tuple[int, ...]
"""New numbers of the nodes: that of node n is at index n - 1."""


def clone(replica: SimulatedReplica) -> SimulatedReplica:
    """Return a copy that can be changed."""
    copy: SimulatedReplica = _copied(replica)
    copy.lease = LeaseBelief(replica.lease.ttl_seconds)
    copy.lease.valid_until = replica.lease.valid_until
    machine = replica.machine
    if machine is not None:
        copy.machine = _copied(machine)
        copy.machine.epochs = EpochHistory(machine.epochs.entries())
        if isinstance(copy.machine, LeaderReplica):
            copy.machine._lease = copy.lease
            copy.machine._followers = {
                node: _copied(follower) for node, follower in copy.machine._followers.items()
            }
            copy.machine._count()
    return copy


def _copied(item: Any) -> Any:
    copy = object.__new__(type(item))
    for name in type(item).__slots__:
        setattr(copy, name, getattr(item, name))
    return copy


def freeze(replica: SimulatedReplica, *, has_revisions: bool) -> Hashable:
    """Return everything on which the behaviour of a replica depends, apart from time.

    `has_revisions` tells whether it depends on the states that followers know.
    """
    machine = replica.machine
    role: Hashable = None
    if isinstance(machine, LeaderReplica):
        role = (
            machine.state,
            tuple(
                (
                    follower.node,
                    follower.broker_epoch,
                    follower.end,
                    follower.revision if has_revisions else 0,
                )
                for follower in sorted(machine._followers.values(), key=_node_of)
            ),
            machine._maximal,
            machine._waits_for_answer,
            machine._waits_for_state,
            machine._successor,
            machine._is_resigned,
            machine.is_fenced,
        )
    elif isinstance(machine, FollowerReplica):
        role = (
            machine.leader,
            machine.leader_epoch,
            machine._leader_high_watermark,
            machine._asked,
            machine.revision if has_revisions else 0,
        )
    return (
        replica.node,
        replica.broker_epoch,
        replica.tokens,
        replica.is_alive,
        replica.lacks_records,
        replica.is_disowned,
        replica.log,
        replica.synced_end,
        replica.epochs,
        replica.high_watermark,
        replica.lease.is_valid(0.0),
        replica.state if has_revisions else None,
        role,
    )


def _node_of(follower: FollowerProgress) -> int:
    return follower.node


# Other numbers for nodes


def _relabeled(node: int, order: Order) -> int:
    return node if node == NO_NODE else order[node - 1]


def _relabeled_members(members: Iterable[IsrMember], order: Order) -> tuple[IsrMember, ...]:
    return tuple(sorted(IsrMember(_relabeled(node, order), epoch) for node, epoch in members))


def _relabeled_state(state: ReplicationState, order: Order) -> ReplicationState:
    return replace(
        state,
        leader=_relabeled(state.leader, order),
        isr=_relabeled_members(state.isr, order),
        successor=_relabeled(state.successor, order),
    )


def relabeled_versions(
    versions: tuple[ReplicationState, ...], order: Order
) -> tuple[ReplicationState, ...]:
    return tuple(_relabeled_state(value, order) for value in versions)


def relabeled_proposals(proposals: tuple[Proposal, ...], order: Order) -> tuple[Proposal, ...]:
    return ordered_proposals(
        replace(
            proposal,
            state=_relabeled_state(proposal.state, order),
            nodes=_relabeled_members(proposal.nodes, order),
        )
        for proposal in proposals
    )


def ordered_proposals(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    return tuple(sorted(proposals, key=repr))


def relabeled_late(
    late: tuple[int, ReplicaFetch] | None, order: Order
) -> tuple[int, ReplicaFetch] | None:
    if late is None:
        return None
    to, fetch = late
    return _relabeled(to, order), fetch._replace(node=_relabeled(fetch.node, order))


def relabeled_replica(replica: SimulatedReplica, order: Order) -> SimulatedReplica:
    copy = clone(replica)
    copy.node = _relabeled(replica.node, order)
    if copy.state is not None:
        copy.state = _relabeled_state(copy.state, order)
    machine = copy.machine
    if machine is None:
        return copy
    machine.node = copy.node
    if isinstance(machine, FollowerReplica):
        machine.leader = _relabeled(machine.leader, order)
        if machine._asked is not None:
            machine._asked = machine._asked._replace(node=machine.node)
        return copy
    machine.state = _relabeled_state(machine.state, order)
    machine._maximal = frozenset(_relabeled_members(machine._maximal, order))
    machine._successor = _relabeled(machine._successor, order)
    followers = {}
    for follower in machine._followers.values():
        follower.node = _relabeled(follower.node, order)
        followers[follower.node] = follower
    machine._followers = followers
    machine._count()
    return copy
