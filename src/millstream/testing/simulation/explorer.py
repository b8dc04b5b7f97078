"""Exhaustive exploration of the replication machines, breadth first, within bounds.

Three nodes, one partition. From the first state, every event that could happen next leads to a
next state, until no new state is found: appends, syncs, fetches that arrive late, answers that are
lost, metadata that is learned late, proposals that are late or in doubt, leases that end, crashes
with and without the unsynced tail, restarts, a lost disk. Time is left out: whatever depends on it
may happen at any moment, so the policy of `LeaderReplica.tick` is replaced by all choices that it
could make.

Some events are left out because others have the same effect in a different order:

-   A node that crashes loses its registration at once. While it is down, it does nothing; what the
    others do before its lease expires, they could have done before it crashed. A node that loses
    records (`record_losses`) keeps its registration, because it says so before it starts.
-   The belief of a leader in its lease ends when the lease expires, which is the last moment.
-   A fetch arrives when it is sent, and its answer, if it arrives, at once. With `late_fetches` one
    fetch of the whole cluster may be late: it arrives later, and its answer is ignored.
-   A proposal that cannot take effect any more is forgotten. A leader learns that its proposal was
    applied as it learns any new state. It never waits for an answer: waiting would only keep it
    from making the next proposal.
-   A follower does not look at the ISR, so it learns only states with another leader epoch. Its
    fetches name the newest state, whatever it knows: that allows its leader most. With `end_losses`
    it learns all states, and its fetches name what it knows.
-   A follower syncs what it writes at once, unless `has_unsynced_followers`: that it lost a record
    which was not synced is the same as an answer that was lost, and it tells nobody before.
-   A follower does not know the high watermark, unless `has_follower_high_watermarks`: as leader it
    finds out again, and below the start of its epoch it tells nobody.

What an event does to a node depends on that node only, so it is computed once, with the real
machines, and then looked up. Nodes are alike: of states that differ only in the numbers of nodes,
one is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

from millstream.cluster import controller
from millstream.cluster.controller import ClusterNode
from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy, next_isr
from millstream.cluster.leader import UNAVAILABLE, LeaderReplica
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.repair import (
    RepairStep,
    ReplicaCondition,
    disown_step,
    disowning,
    next_repair,
)
from millstream.cluster.replica_fetch import ReplicaFetch
from millstream.cluster.replication_state import IsrMember, Proposal, ReplicationState
from millstream.testing.simulation.replica import SimulatedLog, SimulatedReplica
from millstream.testing.simulation.replica_copy import (
    Order,
    clone,
    freeze,
    ordered_proposals,
    relabeled_late,
    relabeled_proposals,
    relabeled_replica,
    relabeled_versions,
)
from millstream.testing.simulation.violation import Violation

NODES = (1, 2, 3)
_PERMUTATIONS = tuple(permutations(NODES))
"""The new number of node n is at index n - 1. The first one changes nothing."""
_ORDERS = tuple(tuple(order.index(node) for node in NODES) for order in _PERMUTATIONS)
"""Which index of the old state comes first, second and third in the new one."""
_COMPOSED = tuple(
    tuple(
        _PERMUTATIONS.index(tuple(then[number - 1] for number in order)) for then in _PERMUTATIONS
    )
    for order in _PERMUTATIONS
)
"""The permutation that has the same effect as a first one and then a second one."""
_POLICY = IsrPolicy(good_fetches_min=0)
_LIMITER = IsrChangeLimiter()
_MAX = (1 << 62, 0, 0)
_ANY_REVISION = 1 << 62
_NOW = 0.0
_TTL = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far to explore."""

    records: int
    epochs: int
    versions: int
    """Values that the state of the partition has in the store, the first included."""
    crashes: int = 1
    late_fetches: int = 0
    has_unsynced_followers: bool = False
    has_follower_high_watermarks: bool = False
    disk_losses: int = 0
    record_losses: int = 0
    """Nodes that lose records of this partition when they crash, and notice it when they start."""
    end_losses: int = 0
    """Followers that find while they run that their last records are lost."""
    hand_overs: int = 0
    min_insync: int = 2
    states_max: int | None = None
    """Stop after this many states; None explores all."""


class ExplorationResult(NamedTuple):
    """What an exploration found."""

    states: int
    steps: int
    depth: int
    is_exhausted: bool


class _State(NamedTuple):
    """A state of the cluster. Numbers stand for values that are kept once, in a `_Table`."""

    first: int
    second: int
    third: int
    versions: int
    """States of the partition that a node may still learn, and the present one, oldest first."""
    proposals: int
    """Transactions in flight to the store that can take effect."""
    late: int
    """A fetch that has not arrived, and where it goes to."""
    committed: int
    shown: int = 0
    """The greatest end of the log that a reader was told."""
    appended: int = 0
    disk_losses: int = 0
    record_losses: int = 0
    end_losses: int = 0
    hand_overs: int = 0


_Step = tuple[tuple[Any, ...], _State]
"""What happens, as a pattern and its values, and the state after it."""


class _Facts:
    """What is asked again and again about a state of one node."""

    __slots__ = ("choices", "knows", "node", "registered", "replica")

    def __init__(self, replica: SimulatedReplica, *, has_revisions: bool) -> None:
        self.replica = replica
        is_registered = replica.lease.is_valid(_NOW)
        self.registered = replica.broker_epoch if is_registered else 0
        self.node = (
            ClusterNode(replica.node, replica.broker_epoch, int(replica.tokens[-1]))
            if is_registered
            else None
        )
        self.knows: tuple[bool, int, int] | None = None
        """Whether it leads, and the newest epoch and revision that it knows, if they matter."""
        if replica.leader is not None:
            self.knows = (True, 0, replica.leader.state.revision)
        elif replica.follower is not None:
            revision = replica.follower.revision if has_revisions else 0
            self.knows = (False, replica.follower.leader_epoch, revision)
        self.choices: tuple[tuple[IsrMember, ...], ...] | None = None


class _Table:
    """Values, each kept once, and what becomes of them if nodes get other numbers."""

    def __init__(
        self, relabel: Callable[[Any, Order], Any], key: Callable[[Any], Hashable]
    ) -> None:
        self.values: list[Any] = []
        self._relabel = relabel
        self._key = key
        self._numbers: dict[Hashable, int] = {}
        self._images: list[tuple[int, ...] | None] = []

    def add(self, value: Any) -> int:
        """Return the number of a value."""
        key = self._key(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
            self._images.append(None)
        return number

    def images(self, number: int) -> tuple[int, ...]:
        """Return the number of the value under each permutation of the nodes."""
        images = self._images[number]
        if images is None:
            value = self.values[number]
            images = tuple(self.add(self._relabel(value, order)) for order in _PERMUTATIONS)
            for index, image in enumerate(images):
                self._images[image] = tuple(images[after] for after in _COMPOSED[index])
        return images


class Explorer:
    """Explores all states within bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._has_revisions = bounds.end_losses > 0
        self._replicas = _Table(
            relabeled_replica, partial(freeze, has_revisions=self._has_revisions)
        )
        self._versions = _Table(relabeled_versions, _itself)
        self._proposals = _Table(relabeled_proposals, _itself)
        self._late = _Table(relabeled_late, _itself)
        self._logs = _Table(_same_log, _itself)
        self._memory: dict[Hashable, Any] = {}
        self._known: list[_Facts | None] = []

    def run(self) -> ExplorationResult:
        """Explore; raise `Violation` with the events that lead to it."""
        first = self._first()
        start = self._canonical(first)
        parents: dict[_State, _State | None] = {start: None}
        frontier = [start]
        steps = depth = 0
        while frontier:
            following: list[_State] = []
            for state in frontier:
                try:
                    for _, after in self._steps(state):
                        steps += 1
                        key = self._canonical(after)
                        if key not in parents:
                            parents[key] = state
                            following.append(key)
                except Violation as violation:
                    trace = self._trace(first, _path(parents, state))
                    raise Violation(f"{violation}\n{trace}") from violation
                if self.bounds.states_max is not None and len(parents) >= self.bounds.states_max:
                    return ExplorationResult(len(parents), steps, depth, is_exhausted=False)
            frontier = following
            depth += 1
        return ExplorationResult(len(parents), steps, depth, is_exhausted=True)

    def _trace(self, state: _State, path: list[_State]) -> str:
        """Return the events of a path, with the numbers that nodes have at its start."""
        lines = []
        for number, key in enumerate(path[1:], 1):
            for name, after in self._steps(state):
                if self._canonical(after) == key:
                    lines.append(f"{number:3} {_described(name)}")
                    state = after
                    break
        try:
            list(self._steps(state))
        except Violation as violation:
            lines.append(f"    then: {violation}")
        return "\n".join(lines)

    def _canonical(self, state: _State) -> _State:
        """Return the least of the states that differ only in the numbers of the nodes."""
        images = [self._replicas.images(number) for number in state[:3]]
        nodes, indexes = _MAX, list[int]()
        for index, (first, second, third) in enumerate(_ORDERS):
            image = (images[first][index], images[second][index], images[third][index])
            if image < nodes:
                nodes, indexes = image, [index]
            elif image == nodes:
                indexes.append(index)
        versions = self._versions.images(state[3])
        proposals = self._proposals.images(state[4])
        late = self._late.images(state[5])
        rest = min((versions[index], proposals[index], late[index]) for index in indexes)
        return _State(*nodes, *rest, *state[6:])

    def _facts(self, number: int) -> _Facts:
        known = self._known
        while number >= len(known):
            known.append(None)
        facts = known[number]
        if facts is None:
            facts = known[number] = _Facts(
                self._replicas.values[number], has_revisions=self._has_revisions
            )
        return facts

    def _do(
        self, number: int, name: Hashable, event: Callable[[SimulatedReplica], Any]
    ) -> tuple[int, Any]:
        """Return the state of a node after an event, and what the event returned."""
        key = (number, name)
        result: tuple[int, Any] | None = self._memory.get(key)
        if result is None:
            replica = clone(self._replicas.values[number])
            returned = event(replica)
            result = self._memory[key] = (self._replicas.add(replica), returned)
        return result

    def _first(self) -> _State:
        state = ReplicationState(
            leader=1,
            leader_broker_epoch=1,
            leader_epoch=0,
            isr=tuple(IsrMember(node, 1) for node in NODES),
            replicas=NODES,
            revision=1,
        )
        numbers = []
        for node in NODES:
            lease = LeaseBelief(_TTL)
            replica = SimulatedReplica(
                node, min_insync=self.bounds.min_insync, policy=_POLICY, lease=lease
            )
            _start(replica, state)
            numbers.append(self._replicas.add(replica))
        first, second, third = numbers
        return _State(
            first,
            second,
            third,
            versions=self._versions.add((state,)),
            proposals=self._proposals.add(()),
            late=self._late.add(None),
            committed=self._logs.add(()),
        )

    # Events

    def _steps(self, state: _State) -> Iterator[_Step]:
        """Yield every event that can happen, and the state after it."""
        replicas = [self._replicas.values[number] for number in state[:3]]
        crashes = sum(one.broker_epoch - one.is_alive for one in replicas)
        for index, replica in enumerate(replicas):
            if not replica.is_alive:
                yield from self._dead_steps(state, index, replica)
                continue
            yield from self._node_steps(state, index, replica)
            if replica.leader is not None:
                yield from self._leader_steps(state, index, replica.leader)
            elif replica.lacks_records:
                yield from self._repair_steps(state, index, replica)
            elif replica.follower is not None:
                yield from self._fetch_steps(state, index, replica)
                yield from self._end_loss_steps(state, index, replica)
            if crashes < self.bounds.crashes:
                yield from self._crash_steps(state, index, replica)
        yield from self._store_steps(state)

    def _node_steps(self, state: _State, index: int, replica: SimulatedReplica) -> Iterator[_Step]:
        versions = self._versions.values[state.versions]
        newer = next(iter(self._unlearned(versions, replica)), None)
        if newer is not None:
            after, _ = self._do(state[index], ("learn", newer), lambda one: _learn(one, newer))
            yield (
                ("node {} learns version {}", replica.node, newer.revision),
                self._with(state, index, after),
            )
        if replica.synced_end < len(replica.log):
            after, _ = self._do(state[index], "sync", SimulatedReplica.sync)
            yield ("node {} syncs", replica.node), self._with(state, index, after)
        # Nobody else has to go before another leader can be elected.
        if replica.lease.is_valid(_NOW) and versions[-1].leader == replica.node:
            after, _ = self._do(state[index], "expire", lambda one: one.lease.lost())
            yield ("the lease of node {} expires", replica.node), self._with(state, index, after)

    def _leader_steps(self, state: _State, index: int, leader: LeaderReplica) -> Iterator[_Step]:
        node = leader.node
        may_append = state.appended < self.bounds.records
        if may_append and leader.refuses_append(_NOW, acks_all=True) is None:
            number = state.appended + 1
            after, _ = self._do(
                state[index], ("append", number), lambda one: one.append(number, _NOW)
            )
            appended = state._replace(appended=number)
            yield ("node {} appends record {}", node, number), self._with(appended, index, after)
        if leader.can_propose and len(self._proposals.values[state.proposals]) < 2:
            yield from self._proposal_steps(state, index, leader)

    def _proposal_steps(self, state: _State, index: int, leader: LeaderReplica) -> Iterator[_Step]:
        node = leader.node
        if leader.is_handing_over or leader._is_resigned:
            after, proposal = self._do(state[index], "tick", _tick)
            if proposal is not None and self._may_hold(state, proposal):
                name = ("node {} proposes: {}", node, proposal.state)
                yield name, self._sent(state, index, after, proposal)
            return
        if state.hand_overs < self.bounds.hand_overs:
            for successor in leader.state.isr_nodes:
                if successor != node:
                    name = ("node {} is to hand over to node {}", node, successor)
                    after, _ = self._do(state[index], name, _hand_over(successor))
                    handed = state._replace(hand_overs=state.hand_overs + 1)
                    yield name, self._with(handed, index, after)
        if leader.state.revision >= self.bounds.versions:
            return  # Whatever it proposes would exceed the bound of the store.
        facts = self._facts(state[index])
        if facts.choices is None:
            facts.choices = tuple(_choices(leader))
        for isr in facts.choices:
            after, proposal = self._do(state[index], ("propose", isr), _propose(isr))
            if not self._may_hold(state, proposal):
                continue
            yield (
                ("node {} proposes: {}", node, proposal.state),
                self._sent(state, index, after, proposal),
            )

    def _may_hold(self, state: _State, proposal: Proposal) -> bool:
        present = self._versions.values[state.versions][-1]
        return proposal.holds(present.revision, self._broker_epochs(state), 0)

    def _broker_epochs(self, state: _State) -> dict[int, int]:
        epochs = {}
        for index, node in enumerate(NODES):
            if epoch := self._facts(state[index]).registered:
                epochs[node] = epoch
        return epochs

    def _sent(self, state: _State, index: int, after: int, proposal: Proposal) -> _State:
        key = (state.proposals, proposal)
        number = self._memory.get(key)
        if number is None:
            proposals = {*self._proposals.values[state.proposals], proposal}
            number = self._memory[key] = self._proposals.add(ordered_proposals(proposals))
        return self._with(state._replace(proposals=number), index, after)

    def _fetch_steps(self, state: _State, index: int, replica: SimulatedReplica) -> Iterator[_Step]:
        asked, sent = self._do(state[index], "fetch", SimulatedReplica.next_fetch)
        if sent is None:
            return
        to, fetch = sent
        if not self._has_revisions:
            fetch = fetch._replace(revision=_ANY_REVISION)
        if self.bounds.late_fetches and self._late.values[state.late] != (to, fetch):
            late = state._replace(late=self._late.add((to, fetch)))
            yield ("a fetch of node {} is late: {}", replica.node, fetch), late
        leader = self._replicas.values[state[to - 1]]
        if leader.leader is None:
            return
        served, answer = self._do(state[to - 1], ("answer", fetch), _answer(fetch))
        arrived = self._with(state, to - 1, served)
        name = "node {} fetches from node {} at offset {}"
        names = (replica.node, to, fetch.offset)
        if served != state[to - 1]:
            yield (f"{name}; the answer is lost", *names), arrived
        if not self.bounds.has_follower_high_watermarks:
            answer = answer._replace(high_watermark=0)
        after, cut = self._do(
            asked, ("take", answer), _take(answer, is_synced=not self.bounds.has_unsynced_followers)
        )
        if cut is not None:
            _check_cut(replica, cut.offset, self._logs.values[state.committed])
        yield (f"{name}: {{}}", *names, answer), self._with(arrived, index, after)

    def _end_loss_steps(
        self, state: _State, index: int, replica: SimulatedReplica
    ) -> Iterator[_Step]:
        if replica.log and state.end_losses < self.bounds.end_losses:
            lost = state._replace(end_losses=state.end_losses + 1)
            after, _ = self._do(state[index], "lose end", _lose_end)
            name = ("node {} finds that its last records are lost", replica.node)
            yield name, self._with(lost, index, after)

    def _repair_steps(
        self, state: _State, index: int, replica: SimulatedReplica
    ) -> Iterator[_Step]:
        """Let a follower that lost its end, and does not fetch, do its next step."""
        known, follower, node = replica.state, replica.follower, replica.node
        assert known is not None
        assert follower is not None
        step = next_repair(
            ReplicaCondition(
                is_leader=False,
                has_leader=follower.leader != node,
                is_counted=known.is_counted(node) or not replica.is_disowned,
                is_end_lost=True,
            )
        )
        if step is RepairStep.DISOWN and self._may_hold(state, disowning(known, node)):
            disowned = self._put(state, disowning(known, node).state)
            if disowned is not None:
                stored = self._versions.values[disowned.versions][-1]
                after, _ = self._do(state[index], ("disown", stored), _note_stored(stored))
                yield ("disowned: {}", stored), self._with(disowned, index, after)
        elif step is RepairStep.RECOVER_END:
            for kept in range(len(replica.log)):
                after, _ = self._do(state[index], ("recover", kept), _recover_end(kept))
                yield (
                    ("node {} removes its records from {} on", node, kept),
                    self._with(state, index, after),
                )

    def _late_steps(self, state: _State) -> Iterator[_Step]:
        late = self._late.values[state.late]
        if late is None:
            return
        to, fetch = late
        empty = state._replace(late=self._late.add(None))
        if self._replicas.values[state[to - 1]].leader is not None:
            after, _ = self._do(state[to - 1], ("answer", fetch), _answer(fetch))
            if after != state[to - 1]:
                name = ("the late fetch {} arrives at node {}", fetch, to)
                yield name, self._with(empty, to - 1, after)

    def _crash_steps(self, state: _State, index: int, replica: SimulatedReplica) -> Iterator[_Step]:
        after, _ = self._do(state[index], "crash", lambda one: one.crash())
        yield ("node {} crashes", replica.node), self._with(state, index, after)
        if replica.synced_end < len(replica.log):
            after, _ = self._do(state[index], "lose", lambda one: one.crash(kept=0))
            name = ("node {} crashes and loses what was not synced", replica.node)
            yield name, self._with(state, index, after)
        if state.record_losses < self.bounds.record_losses:
            lost = state._replace(record_losses=state.record_losses + 1)
            for kept in range(len(replica.log)):
                after, _ = self._do(state[index], ("damage", kept), _damage(kept))
                yield (
                    ("node {} crashes and loses the records from {} on", replica.node, kept),
                    self._with(lost, index, after),
                )

    def _dead_steps(self, state: _State, index: int, replica: SimulatedReplica) -> Iterator[_Step]:
        present = self._versions.values[state.versions][-1]
        is_registered = replica.lease.is_valid(_NOW)
        if is_registered:
            after, _ = self._do(state[index], "expire", lambda one: one.lease.lost())
            yield ("the lease of node {} expires", replica.node), self._with(state, index, after)
        if replica.lacks_records:
            yield from self._disown_steps(state, index, is_registered=is_registered)
            return
        if is_registered:
            return
        after, _ = self._do(state[index], ("start", present), lambda one: _start(one, present))
        yield ("node {} starts", replica.node), self._with(state, index, after)
        if state.disk_losses < self.bounds.disk_losses and replica.tokens:
            after, _ = self._do(state[index], "lose disk", SimulatedReplica.lose_disk)
            lost = state._replace(disk_losses=state.disk_losses + 1)
            yield ("node {} loses its disk", replica.node), self._with(lost, index, after)

    def _disown_steps(self, state: _State, index: int, *, is_registered: bool) -> Iterator[_Step]:
        """Let a node say that it lacks records. It registers later, and does not look again."""
        present = self._versions.values[state.versions][-1]
        step = disown_step(present, NODES[index], is_registered=is_registered)
        after, _ = self._do(state[index], "disown", _note_disowned)
        if step.is_done:
            name = ("node {} is in the ISR in no life", NODES[index])
            yield name, self._with(state, index, after)
        elif step.proposal is not None and self._may_hold(state, step.proposal):
            disowned = self._put(state, step.proposal.state)
            if disowned is not None:
                yield ("disowned: {}", step.proposal.state), self._with(disowned, index, after)

    # The store

    def _store_steps(self, state: _State) -> Iterator[_Step]:
        yield from self._late_steps(state)
        present = self._versions.values[state.versions][-1]
        facts = [self._facts(number) for number in state[:3]]
        nodes = {one.node.id: one.node for one in facts if one.node is not None}
        for proposal in self._proposals.values[state.proposals]:
            after = self._put(state, proposal.state)
            if after is not None:
                yield ("stored: {}", proposal.state), after
        if controller.is_led(present, nodes):
            return
        for candidate in controller.candidates(present, nodes):
            new = controller.elected(present, candidate, nodes, min_insync=self.bounds.min_insync)
            after = self._put(state, new)
            if after is not None:
                yield ("elected: {}", new), after

    def _put(self, state: _State, value: ReplicationState) -> _State | None:
        versions = self._versions.values[state.versions]
        present = versions[-1]
        if present.revision >= self.bounds.versions or value.leader_epoch >= self.bounds.epochs:
            return None
        old = (present.leader, present.leader_broker_epoch)
        if value.leader_epoch != present.leader_epoch:
            committed = self._logs.values[state.committed]
            elected = self._replicas.values[state[value.leader - 1]]
            # A node that is down never leads in the life for which it was elected.
            if elected.is_alive and elected.log[: len(committed)] != committed:
                raise Violation(
                    f"node {value.leader} is elected with log {elected.log}, committed is"
                    f" {committed}"
                )
        elif (value.leader, value.leader_broker_epoch) != old:
            raise Violation(f"epoch {value.leader_epoch} has two leaders")
        versions = (*versions, value.at(present.revision + 1))
        return self._settled(state._replace(versions=self._versions.add(versions)))

    def _settled(self, state: _State) -> _State:
        """Forget states that every node has learned, and proposals that cannot take effect."""
        versions = self._versions.values[state.versions]
        proposals = self._proposals.values[state.proposals]
        if len(versions) == 1 and not proposals:
            return state
        facts = [self._facts(number) for number in state[:3]]
        key = (
            state.versions,
            state.proposals,
            *[(one.knows, one.registered) for one in facts],
        )
        settled = self._memory.get(key)
        if settled is None:
            unlearned = {value for one in facts for value in self._unlearned(versions, one.replica)}
            needed = (*(value for value in versions[:-1] if value in unlearned), versions[-1])
            epochs = self._broker_epochs(state)
            kept = [one for one in proposals if one.holds(versions[-1].revision, epochs, 0)]
            settled = self._memory[key] = (
                self._versions.add(needed),
                self._proposals.add(ordered_proposals(kept)),
            )
        return state._replace(versions=settled[0], proposals=settled[1])

    def _unlearned(
        self, versions: tuple[ReplicationState, ...], replica: SimulatedReplica
    ) -> list[ReplicationState]:
        """Return the states that would change something at a node."""
        if not replica.is_alive:
            return []
        follower = replica.follower
        if replica.leader is not None:
            known = replica.leader.state.revision
        elif follower is not None and self._has_revisions:
            known = follower.revision
        else:
            assert follower is not None
            return [value for value in versions if value.leader_epoch > follower.leader_epoch]
        return [value for value in versions if value.revision > known]

    # Promises

    def _with(self, state: _State, index: int, number: int) -> _State:
        """Return the state with another state of one node, after checking the promises."""
        if state[index] == number:
            return state
        before: SimulatedReplica = self._replicas.values[state[index]]
        replica: SimulatedReplica = self._replicas.values[number]
        state = _State._make((*state[:index], number, *state[index + 1 :]))
        leader = replica.leader
        if leader is not None:
            state = self._checked(state, index, replica, leader, is_new=before.leader is None)
        return self._settled(state)

    def _checked(
        self,
        state: _State,
        index: int,
        replica: SimulatedReplica,
        leader: LeaderReplica,
        *,
        is_new: bool,
    ) -> _State:
        """Check what a leader does; return the state with what it committed and told."""
        known = self._logs.values[state.committed]
        committed = replica.log[: leader.high_watermark]
        common = min(len(known), len(committed))
        if committed[:common] != known[:common]:
            raise Violation(f"{committed} is committed, but {known} was before")
        if len(committed) > len(known):
            self._check_durable(state, committed)
            state = state._replace(committed=self._logs.add(committed))
        shown = leader.latest_offset(_NOW)
        if shown not in (UNAVAILABLE, state.shown):
            if shown < state.shown:
                raise Violation(f"a reader was told {state.shown}, and is told {shown} now")
            state = state._replace(shown=shown)
        if is_new and leader.may_answer(_NOW):
            for other, number in enumerate(state[:3]):
                rival = self._replicas.values[number].leader
                if other != index and rival is not None and rival.may_answer(_NOW):
                    raise Violation(f"nodes {leader.node} and {rival.node} both answer clients")
        return state

    def _check_durable(self, state: _State, committed: SimulatedLog) -> None:
        """Check that acknowledged records are synced on enough disks at that moment."""
        if state.disk_losses or state.record_losses or state.end_losses:
            return
        replicas = [self._replicas.values[number] for number in state[:3]]
        end = len(committed)
        count = sum(one.synced_end >= end and one.log[:end] == committed for one in replicas)
        if count < self.bounds.min_insync:
            raise Violation(f"{committed} is committed, but synced on {count} disks only")


# Events of one node


def _start(replica: SimulatedReplica, state: ReplicationState) -> None:
    # The token of a life is the first one with the same disk.
    replica.tokens = replica.tokens or (str(replica.broker_epoch + 1),)
    replica.start(replica.broker_epoch + 1)
    replica.lease.renewed(_NOW)
    replica.learn(state, _NOW, _LIMITER)


def _damage(kept: int) -> Callable[[SimulatedReplica], None]:
    def damage(replica: SimulatedReplica) -> None:
        replica.crash()
        replica.lose_records(kept)
        replica.lease.renewed(_NOW)  # At the store, until it expires.

    return damage


def _note_disowned(replica: SimulatedReplica) -> None:
    replica.lacks_records = False


def _lose_end(replica: SimulatedReplica) -> None:
    replica.lacks_records = True
    assert replica.follower is not None
    replica.follower._asked = None


def _note_stored(state: ReplicationState) -> Callable[[SimulatedReplica], None]:
    def note(replica: SimulatedReplica) -> None:
        replica.is_disowned = True
        _learn(replica, state)

    return note


def _recover_end(kept: int) -> Callable[[SimulatedReplica], None]:
    def recover(replica: SimulatedReplica) -> None:
        replica.recover_end(kept)
        replica.lacks_records = replica.is_disowned = False

    return recover


def _learn(replica: SimulatedReplica, state: ReplicationState) -> None:
    replica.learn(state, _NOW, _LIMITER)


def _answer(fetch: ReplicaFetch) -> Callable[[SimulatedReplica], Any]:
    return lambda replica: replica.answer(fetch, _NOW)


def _take(answer: Any, *, is_synced: bool) -> Callable[[SimulatedReplica], Any]:
    def take(replica: SimulatedReplica) -> Any:
        follower = replica.follower
        assert follower is not None
        assert follower._asked is not None
        cut = replica.take_answer(follower._asked, answer)
        follower._asked = None  # The next fetch replaces it anyway.
        if is_synced:
            replica.sync()
        return cut

    return take


def _tick(replica: SimulatedReplica) -> Proposal | None:
    assert replica.leader is not None
    proposal = replica.leader.tick(_NOW)
    replica.leader.proposal_unknown()
    return proposal


def _hand_over(successor: int) -> Callable[[SimulatedReplica], None]:
    def hand_over(replica: SimulatedReplica) -> None:
        assert replica.leader is not None
        replica.leader.hand_over(successor, _NOW)

    return hand_over


def _propose(isr: tuple[IsrMember, ...]) -> Callable[[SimulatedReplica], Proposal]:
    def propose(replica: SimulatedReplica) -> Proposal:
        assert replica.leader is not None
        proposal = replica.leader.propose_isr(isr, _NOW)
        replica.leader.proposal_unknown()
        return proposal

    return propose


def _choices(leader: LeaderReplica) -> Iterator[tuple[IsrMember, ...]]:
    """Yield every ISR that the policy of a leader could propose."""
    state = leader.state
    joining = []
    for follower in leader._followers.values():
        member = IsrMember(follower.node, follower.broker_epoch)
        if follower.broker_epoch and member not in state.isr and leader.may_join(follower.node):
            joining.append(member)
    leaving = [node for node in state.isr_nodes if node != leader.node]
    seen = {state.isr} if len(leader._maximal) == len(state.isr) else set()
    for joined in _subsets(joining):
        for left in _subsets(leaving):
            isr = next_isr(
                state.isr,
                replicas=state.replicas,
                leaving=left,
                joining=joined,
                min_insync=leader.min_insync,
            )
            if isr not in seen:
                seen.add(isr)
                yield isr


def _subsets(items: list[Any]) -> Iterator[list[Any]]:
    for mask in range(1 << len(items)):
        yield [item for number, item in enumerate(items) if mask >> number & 1]


# Promises


def _check_cut(replica: SimulatedReplica, offset: int, committed: SimulatedLog) -> None:
    for number in range(offset, min(len(replica.log), len(committed))):
        if replica.log[number] == committed[number]:
            raise Violation(f"node {replica.node} cuts the committed record at offset {number}")


def _described(name: tuple[Any, ...]) -> str:
    pattern, *values = name
    return str(pattern.format(*[_shown(value) for value in values]))


def _shown(value: Any) -> Any:
    if isinstance(value, ReplicationState):
        isr = [tuple(member) for member in value.isr]
        return f"leader {value.leader} in epoch {value.leader_epoch} with ISR {isr}"
    return value


def _path(parents: dict[_State, _State | None], state: _State) -> list[_State]:
    path: list[_State] = []
    step: _State | None = state
    while step is not None:
        path.append(step)
        step = parents[step]
    return path[::-1]


def _same_log(log: SimulatedLog, _: Order) -> SimulatedLog:
    return log


def _itself(value: Hashable) -> Hashable:
    return value
