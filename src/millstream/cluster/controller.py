"""Decisions of the controller: elections, assignment of replicas, reassignment, balance.

The controller is the node that holds the key `controller`. It has no state but what it reads from
the metadata store, so every decision is a function of the partitions and the live nodes, and
becomes a `Proposal` that names the revision that was read and the controller's own epoch. A
decision that was overtaken by another change is refused by the store and made again.

Who may be elected without loss is one rule, `is_electable`. The ISR names each member in one life
(`broker_epoch`); a node that was started again since then counts only if it still has the
directory of that life (`life.py`). Otherwise it does not count until it has caught up and joined
the ISR again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from millstream.cluster.replication_state import (
    NO_LIFE,
    NO_NODE,
    UNCLEAN_EPOCHS_MAX,
    IsrMember,
    Proposal,
    ReplicationState,
)
from millstream.errors import InvalidReplication, InvalidRequest

PartitionKey = TypeVar("PartitionKey", bound=Hashable)

FIRST_EPOCH = 1
"""Leader epoch of a new partition. A log begins with epoch 0, before it has a leader."""

IMBALANCE_MIN = 0.1
"""Part of the mean load by which nodes must differ before replicas are moved."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A registered node, as the controller sees it."""

    id: int
    broker_epoch: int
    continuous_since: int
    """Broker epoch of its first life with the same directory; see `life.py`."""
    rack: str = ""
    is_stopping: bool = False
    """Whether the node is about to stop: it gets no new leaderships and replicas."""


Nodes = Mapping[int, ClusterNode]


# Elections


def is_electable(member: IsrMember, nodes: Nodes) -> bool:
    """Whether a member of the ISR is live and still has the disk that it had as a member."""
    node = nodes.get(member.node)
    return node is not None and member.broker_epoch >= node.continuous_since


def is_led(state: ReplicationState, nodes: Nodes) -> bool:
    """Whether the leader lives, in the life in which it was elected, and can lead.

    A node that was elected, and finds that it cannot use its log, disowns its replica. It does not
    hand over, because it does not lead.
    """
    leader = nodes.get(state.leader)
    is_live = leader is not None and leader.broker_epoch == state.leader_broker_epoch
    member = state.member(state.leader)
    return is_live and (member is None or member.broker_epoch != NO_LIFE)


def candidates(state: ReplicationState, nodes: Nodes) -> list[int]:
    """Return the nodes that may lead without loss, the best first.

    Nodes that stop or that a reassignment removes come last. Otherwise the order is that of the
    replicas, so the preferred leader is first.
    """
    electable = {member.node for member in state.isr if is_electable(member, nodes)}
    ordered = [node for node in state.replicas if node in electable]
    return sorted(ordered, key=lambda node: (node in state.removing, nodes[node].is_stopping))


def elected(
    state: ReplicationState, leader: int, nodes: Nodes, *, min_insync: int
) -> ReplicationState:
    """Return the state with a candidate as leader, in the next epoch.

    Members that cannot be elected leave the ISR, as long as enough remain: first those whose disk
    is another one, then those that are not live. Live ones are members in their present life.
    """
    members: dict[int, IsrMember] = {}
    others: list[IsrMember] = []
    for member in state.isr:
        if is_electable(member, nodes):
            members[member.node] = IsrMember(member.node, nodes[member.node].broker_epoch)
        else:
            others.append(member)
    others.sort(key=lambda member: member.node in nodes)
    for member in others[: max(min_insync - len(members), 0)]:
        members[member.node] = member
    return replace(
        state,
        leader=leader,
        leader_broker_epoch=nodes[leader].broker_epoch,
        leader_epoch=state.leader_epoch + 1,
        isr=tuple(members[node] for node in state.replicas if node in members),
        successor=NO_NODE,
    )


def elect(
    state: ReplicationState, nodes: Nodes, *, min_insync: int, controller_epoch: int
) -> Proposal | None:
    """Return the election of a leader, if there is none and somebody can be elected."""
    if is_led(state, nodes):
        return None
    leaders = candidates(state, nodes)
    if not leaders:
        return None
    new = elected(state, leaders[0], nodes, min_insync=min_insync)
    return _proposal(state, new, nodes, controller_epoch)


class UncleanElection(NamedTuple):
    """An election that may lose committed records, and what is known of the loss."""

    proposal: Proposal
    leader: int
    leader_epoch: int
    """Committed records that the leader does not have when this epoch begins are lost."""
    former_isr: tuple[int, ...]
    """The nodes that had every committed record."""


def elect_uncleanly(
    state: ReplicationState, leader: int, nodes: Nodes, *, controller_epoch: int | None = None
) -> UncleanElection:
    """Return the election of a replica that may lack committed records.

    Only for an operator's explicit command, which records the result. Raise `InvalidRequest` if a
    leader exists, can be elected without loss, or if the node cannot lead.
    """
    clean = [state.leader] if is_led(state, nodes) else candidates(state, nodes)
    if clean:
        raise InvalidRequest(f"node {clean[0]} can lead without loss")
    if leader not in state.replicas or leader not in nodes:
        live = [node for node in state.replicas if node in nodes]
        raise InvalidRequest(f"leader must be one of the live replicas {live}, got {leader}")
    node = nodes[leader]
    epoch = state.leader_epoch + 1
    new = replace(
        state,
        leader=leader,
        leader_broker_epoch=node.broker_epoch,
        leader_epoch=epoch,
        isr=(IsrMember(leader, node.broker_epoch),),
        successor=NO_NODE,
        unclean_epochs=(*state.unclean_epochs, epoch)[-UNCLEAN_EPOCHS_MAX:],
    )
    proposal = _proposal(state, new, nodes, controller_epoch)
    return UncleanElection(proposal, leader, epoch, state.in_sync_nodes)


# Hand-over


def best_successor(state: ReplicationState, nodes: Nodes) -> int:
    """Return the node to which a leader that stops should hand over, or `NO_NODE`."""
    for node in candidates(state, nodes):
        if node != state.leader and may_take_over(state, node, nodes):
            return node
    return NO_NODE


def hand_over(
    state: ReplicationState, successor: int, nodes: Nodes, *, controller_epoch: int | None = None
) -> Proposal:
    """Return the request to the leader to hand over."""
    return _proposal(state, replace(state, successor=successor), nodes, controller_epoch)


def preferred_moves(
    states: Mapping[PartitionKey, ReplicationState], nodes: Nodes, *, moves_max: int
) -> Iterator[tuple[PartitionKey, int]]:
    """Yield partitions that their preferred replica should lead again, and that replica."""
    for key, state in states.items():
        if moves_max <= 0:
            return
        preferred = state.replicas[0]
        is_settled = not state.adding and not state.removing and state.successor == NO_NODE
        if preferred == state.leader or not is_settled or not is_led(state, nodes):
            continue
        if may_take_over(state, preferred, nodes):
            moves_max -= 1
            yield key, preferred


def may_take_over(state: ReplicationState, node: int, nodes: Nodes) -> bool:
    """Whether a leader can hand over to a node: an ISR member in its present life, staying."""
    member = state.member(node)
    live = nodes.get(node)
    if member is None or live is None or node in state.removing:
        return False
    return member.broker_epoch == live.broker_epoch and not live.is_stopping


# Assignment


def assign_replicas(
    nodes: Nodes,
    *,
    partitions: int,
    factor: int,
    existing: Sequence[Sequence[int]] = (),
) -> list[tuple[int, ...]]:
    """Return the replicas of new partitions; the first of each is its preferred leader.

    Leaders and replicas are spread evenly over the nodes, counting the assignments that exist, and
    the replicas of a partition over as many racks as possible. Raise `InvalidReplication` if there
    are too few nodes.
    """
    free = [node for node in nodes.values() if not node.is_stopping]
    if not 1 <= factor <= len(free):
        raise InvalidReplication(
            f"replication factor must be between 1 and {len(free)}, the number of nodes,"
            f" got {factor}"
        )
    counts = _Counts(existing)
    assigned: list[tuple[int, ...]] = []
    for _ in range(partitions):
        replicas: tuple[int, ...] = (counts.next_leader(free),)
        while len(replicas) < factor:
            replicas = (*replicas, counts.next_replica(free, replicas, nodes))
        counts.add(replicas)
        assigned.append(replicas)
    return assigned


class _Counts:
    """How many partitions each node leads and has, if every preferred replica leads."""

    def __init__(self, assignments: Sequence[Sequence[int]]) -> None:
        self.leaders: Counter[int] = Counter()
        self.replicas: Counter[int] = Counter()
        for assignment in assignments:
            self.add(assignment)

    def add(self, assignment: Sequence[int]) -> None:
        self.leaders[assignment[0]] += 1
        self.replicas.update(assignment)

    def next_leader(self, nodes: Sequence[ClusterNode]) -> int:
        def cost(node: ClusterNode) -> tuple[int, int, int]:
            return self.leaders[node.id], self.replicas[node.id], node.id

        return min(nodes, key=cost).id

    def next_replica(
        self, nodes: Sequence[ClusterNode], replicas: Sequence[int], known: Nodes
    ) -> int:
        """Return the best node beside `replicas`: another rack, then few replicas."""
        racks = Counter(known[node].rack for node in replicas if node in known)

        def cost(node: ClusterNode) -> tuple[int, int, int, int]:
            # A node that leads little is about to lead more.
            return racks[node.rack], self.replicas[node.id], -self.leaders[node.id], node.id

        return min((node for node in nodes if node.id not in replicas), key=cost).id


def new_partition(
    replicas: Sequence[int], nodes: Nodes, *, controller_epoch: int
) -> Proposal | None:
    """Return the first state of a partition, led by the first of its replicas that is live.

    The log of a new partition is empty, so all live replicas are in the ISR. None if none is live.
    """
    live = [nodes[node] for node in replicas if node in nodes]
    if not live:
        return None
    state = ReplicationState(
        leader=live[0].id,
        leader_broker_epoch=live[0].broker_epoch,
        leader_epoch=FIRST_EPOCH,
        isr=tuple(IsrMember(node.id, node.broker_epoch) for node in live),
        replicas=tuple(replicas),
    )
    return _proposal(state, state, nodes, controller_epoch)


# Reassignment


def reassign(state: ReplicationState, target: Sequence[int], nodes: Nodes) -> ReplicationState:
    """Return the state that begins to move a partition to the replicas `target`.

    Nodes that are added catch up as followers outside the ISR. A reassignment in progress is
    replaced. Raise `InvalidReplication` if the target is not possible.
    """
    unknown = [node for node in target if node not in nodes and node not in state.replicas]
    if not target or len(set(target)) != len(target) or unknown:
        raise InvalidReplication(
            f"replicas must be different nodes of the cluster, got {list(target)}"
        )
    before = [node for node in state.replicas if node not in state.adding]
    leaving = [node for node in state.replicas if node not in target]
    return replace(
        state,
        replicas=(*target, *leaving),
        adding=tuple(node for node in target if node not in before),
        removing=tuple(leaving),
        isr=tuple(
            member for node in (*target, *leaving) if (member := state.member(node)) is not None
        ),
    )


def spread(
    state: ReplicationState, nodes: Nodes, counts: Mapping[int, int]
) -> ReplicationState | None:
    """Return the state that moves the only replica of a partition to a node that has fewer.

    `counts` are the replicas by node that are to be spread. None if the partition is on the right
    node, is moving already, or its node is not there or about to leave.
    """
    if len(state.target) != 1 or state.adding or state.removing:
        return None
    (holder,) = state.target
    free = [node.id for node in nodes.values() if not node.is_stopping]
    if holder not in free or state.leader != holder:
        return None
    least = min(free, key=lambda node: (counts.get(node, 0), node))
    # With a difference of one, a move would only exchange the two nodes.
    if counts.get(holder, 0) - counts.get(least, 0) < 2:
        return None
    return reassign(state, [least], nodes)


def cancel_reassignment(state: ReplicationState, nodes: Nodes) -> ReplicationState:
    """Return the state that moves a partition back to the replicas that it had."""
    return reassign(state, [node for node in state.replicas if node not in state.adding], nodes)


def next_step(state: ReplicationState, nodes: Nodes, *, min_insync: int) -> ReplicationState | None:
    """Return the state after the next step of a reassignment, or None if it has to wait.

    Added replicas join the ISR; then the leader hands over if it is to be removed; then the others
    are removed.
    """
    if not state.adding and not state.removing:
        return None
    target = state.target
    staying = tuple(member for member in state.isr if member.node in target)
    counted = {member.node for member in staying if member.broker_epoch != NO_LIFE}
    if not set(state.adding) <= counted or len(counted) < min(min_insync, len(target)):
        return None
    if state.leader in state.removing:
        if state.successor != NO_NODE or not is_led(state, nodes):
            return None
        successor = best_successor(state, nodes)
        return None if successor == NO_NODE else replace(state, successor=successor)
    return replace(state, replicas=target, isr=staying, adding=(), removing=())


def propose(
    old: ReplicationState,
    new: ReplicationState,
    nodes: Nodes,
    *,
    controller_epoch: int | None = None,
) -> Proposal:
    """Return the proposal of a state: by the controller, or by any node for an operator."""
    return _proposal(old, new, nodes, controller_epoch)


# Balance


def without_node(
    states: Mapping[PartitionKey, ReplicationState],
    node: int,
    nodes: Nodes,
    *,
    may_shrink: bool = False,
) -> dict[PartitionKey, tuple[int, ...]]:
    """Return new replicas for the partitions of a node that is to be removed.

    If the other nodes are too few for a partition, it loses a replica if it `may_shrink` and has
    another one; otherwise raise `InvalidReplication`.
    """
    free = [other for other in nodes.values() if other.id != node and not other.is_stopping]
    counts = _Counts([state.target for state in states.values()])
    targets: dict[PartitionKey, tuple[int, ...]] = {}
    for key, state in states.items():
        if node not in state.target:
            continue
        staying = tuple(replica for replica in state.target if replica != node)
        if not any(other.id not in staying for other in free):
            if may_shrink and staying:
                targets[key] = staying
                continue
            raise InvalidReplication(
                f"partition {key} has {len(state.target)} replicas, and without node {node} there"
                f" are {len(free)} nodes; add a node or lower its replication factor first"
            )
        new = counts.next_replica(free, staying, nodes)
        counts.replicas[new] += 1
        counts.replicas[node] -= 1
        # The new replica takes the place of the old one, so preferred leaders stay spread.
        targets[key] = tuple(new if replica == node else replica for replica in state.target)
    return targets


def balanced(
    states: Mapping[PartitionKey, ReplicationState],
    nodes: Nodes,
    loads: Mapping[PartitionKey, float],
    *,
    moves_max: int,
) -> dict[PartitionKey, tuple[int, ...]]:
    """Return new replicas for some partitions, so that nodes have more equal loads.

    `loads` is what a partition costs the nodes that have it, in any unit. Each move takes one
    replica from the node with the most load to the one with the least; a move that would put two
    replicas into one rack, where there were none, is not made. Partitions in a reassignment stay.
    """
    targets = {key: state.target for key, state in states.items()}
    load: dict[int, float] = {id_: 0.0 for id_, node in nodes.items() if not node.is_stopping}
    for key, replicas in targets.items():
        for node in replicas:
            if node in load:
                load[node] += loads.get(key, 0.0)
    moved: dict[PartitionKey, tuple[int, ...]] = {}
    mean = sum(load.values()) / max(len(load), 1)
    while len(moved) < moves_max and load:
        most = max(load, key=lambda node: (load[node], node))
        least = min(load, key=lambda node: (load[node], node))
        gap = load[most] - load[least]
        if gap <= IMBALANCE_MIN * mean:
            break
        movable = [
            key
            for key, replicas in targets.items()
            if key not in moved
            and not states[key].adding
            and not states[key].removing
            and most in replicas
            and least not in replicas
            and 0 < loads.get(key, 0.0) < gap
            and _racks_stay_spread(replicas, most, least, nodes)
        ]
        if not movable:
            break
        # Half of the gap makes both equal.
        key = min(movable, key=lambda key: abs(loads[key] - gap / 2))
        moved[key] = tuple(least if node == most else node for node in targets[key])
        targets[key] = moved[key]
        load[most] -= loads[key]
        load[least] += loads[key]
    return moved


def _racks_stay_spread(replicas: Sequence[int], old: int, new: int, nodes: Nodes) -> bool:
    others = {nodes[node].rack for node in replicas if node != old and node in nodes}
    return nodes[new].rack not in others or nodes[old].rack in others


def _proposal(
    old: ReplicationState, new: ReplicationState, nodes: Nodes, controller_epoch: int | None
) -> Proposal:
    # A leader must be in the life for which it was chosen; it is not started again meanwhile.
    is_elected = new.leader_epoch != old.leader_epoch or old.revision == 0
    leader = IsrMember(new.leader, nodes[new.leader].broker_epoch) if is_elected else None
    return Proposal(
        state=new,
        revision=old.revision,
        nodes=() if leader is None else (leader,),
        controller_epoch=controller_epoch,
    )
