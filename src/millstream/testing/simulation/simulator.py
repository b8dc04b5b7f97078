"""Seeded simulation of a partition on three or four nodes: clocks, network, disks, store, faults.

One seed decides everything: delays, losses, cuts, crashes, pauses, lost disks, what clients and
readers do, and what the controller is asked for. The machines, the policy of the ISR and the
controller's decisions are those of the product. While faults happen, promises are checked after
each event; then everything heals, and the cluster has to become whole again.

A failing seed is a command line: `python -m millstream.testing.simulation --seed 17 --verbose`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from millstream.cluster import controller
from millstream.cluster.epochs import EpochHistory
from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy
from millstream.cluster.leader import UNAVAILABLE, LeaderReplica
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.life import LifeRecord, NewLife, begin_life
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
from millstream.cluster.replica_fetch import ReplicaFetch
from millstream.cluster.replication_state import NO_NODE, Proposal, ReplicationState
from millstream.errors import InvalidReplication
from millstream.testing.simulation.replica import (
    SimulatedAnswer,
    SimulatedRecord,
    SimulatedReplica,
)
from millstream.testing.simulation.store import SimulatedStore
from millstream.testing.simulation.violation import Violation

TTL = 2.0
CHAOS_SECONDS = 14.0
HEALING_SECONDS = 14.0
MIN_INSYNC = 2
STORE = 0
"""Stands for the store where nodes are named by their number."""

_POLICY = IsrPolicy(
    lag_seconds_min=0.4, good_fetches_min=2, change_interval_seconds=0.8, hand_over_seconds=0.8
)


class SimulationResult(NamedTuple):
    """What happened in a simulation that broke no promise."""

    events: int
    committed: int
    acknowledged: int
    epochs: int
    isr_changes: int
    crashes: int
    cuts: int
    """Logs that were cut because they diverged."""
    disk_losses: int
    record_losses: int
    """Nodes that lost records of the partition, and said so."""
    hand_overs: int


@dataclass(slots=True)
class _Pending:
    """A record whose client waits for acks=all."""

    leader: LeaderReplica
    offset: int
    record: SimulatedRecord


class SimulatedNode:
    """A node: its replica, its clock, and what it is waiting for."""

    __slots__ = (
        "clock_offset",
        "clock_rate",
        "copies",
        "diverged",
        "fetch",
        "found",
        "id",
        "is_disowned",
        "is_repaired",
        "is_syncing",
        "life",
        "limiter",
        "paused_until",
        "replica",
        "stored_high_watermark",
    )

    def __init__(self, node: int, random_: random.Random) -> None:
        self.id = node
        # Clocks differ in speed by much more than real ones do.
        self.clock_rate = random_.uniform(0.95, 1.05)
        self.clock_offset = random_.uniform(0.0, 1000.0)
        self.copies: list[tuple[Any, Any, Any, Any]] = []
        """What was on its disk at each start."""
        self.diverged: list[tuple[Any, Any]] = []
        """Log and epochs of the partition before each cut: a backup may have been made then."""
        self.stored_high_watermark: CommittedEnd | None = None
        """What `high-watermarks.json` has."""
        self.found: FoundLog | None = None
        """What the node finds on its disk, if that is not what it had."""
        self.is_repaired = False
        """Whether it lost records while it ran, and has not recovered."""
        self.is_disowned = False
        """Whether it has said so."""
        self.life = 0
        """Increases with every start and crash: events of an earlier life have no effect."""
        self.paused_until = 0.0
        self.is_syncing = False
        self.fetch: ReplicaFetch | None = None
        self.limiter = IsrChangeLimiter()
        self.replica = SimulatedReplica(
            node, min_insync=MIN_INSYNC, policy=_POLICY, lease=LeaseBelief(TTL)
        )

    def clock(self, now: float) -> float:
        """Return the node's monotonic clock."""
        return now * self.clock_rate + self.clock_offset


def _found_log(replica: SimulatedReplica) -> FoundLog:
    return FoundLog(len(replica.log), epochs=replica.epochs)


def _diverged_copies(node: SimulatedNode) -> list[tuple[Any, Any]]:
    """Return older copies of the partition that are long enough, and have other records.

    The node must notice each of them: what it knew to be committed is not in it.
    """
    stored = node.stored_high_watermark
    if stored is None:
        return []
    end, log = stored.offset, node.replica.log
    return [
        (copy, epochs)
        for copy, epochs in node.diverged
        if len(copy) >= end and copy[:end] != log[:end]
    ]


class Simulation:
    """A simulation of one seed."""

    def __init__(self, seed: int, *, is_verbose: bool = False) -> None:
        self.seed = seed
        self.lines: list[str] = []
        self._is_verbose = is_verbose
        self._random = random.Random(seed)  # noqa: S311 - a repeatable sequence.
        self._now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._events = 0
        count = 4 if self._random.random() < 0.4 else 3
        self._nodes = {node: SimulatedNode(node, self._random) for node in range(1, count + 1)}
        self._store = SimulatedStore(TTL)
        self._cut: set[frozenset[int]] = set()
        self._loss = self._random.choice((0.0, 0.02, 0.1))
        self._delay = self._random.choice((0.005, 0.03, 0.12))
        self._is_healing = False
        # What was promised.
        self._committed: tuple[SimulatedRecord, ...] = ()
        self._committed_in: list[int] = []
        """The leader epoch in which each record was committed; it never falls."""
        self._acknowledged: dict[int, SimulatedRecord] = {}
        self._shown = 0
        self._answered_epoch = 0
        self._pending: list[_Pending] = []
        self._counts = dict.fromkeys(
            (
                "appended",
                "crashes",
                "cuts",
                "disk losses",
                "record losses",
                "hand-overs",
                "ISR changes",
            ),
            0,
        )

    def run(self) -> SimulationResult:
        """Run to the end; raise `Violation` if a promise is broken."""
        try:
            self._begin()
            self._run_until(CHAOS_SECONDS)
            self._heal()
            self._run_until(CHAOS_SECONDS + HEALING_SECONDS)
            self._check_whole()
        except Violation as violation:
            raise Violation(f"seed {self.seed} at {self._now:.3f} s: {violation}") from violation
        return SimulationResult(
            events=self._events,
            committed=len(self._committed),
            acknowledged=len(self._acknowledged),
            epochs=self._store.state.leader_epoch + 1,
            isr_changes=self._counts["ISR changes"],
            crashes=self._counts["crashes"],
            cuts=self._counts["cuts"],
            disk_losses=self._counts["disk losses"],
            record_losses=self._counts["record losses"],
            hand_overs=self._counts["hand-overs"],
        )

    # Time

    def _at(self, delay: float, event: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self._now + delay, self._sequence, event, args))

    def _run_until(self, end: float) -> None:
        while self._queue and self._queue[0][0] <= end:
            self._now, _, event, args = heapq.heappop(self._queue)
            self._events += 1
            event(*args)
        self._now = end

    def _on(self, node: SimulatedNode, life: int, event: Callable[..., None], *args: Any) -> None:
        """Let something happen at a node in this life of it; if it is paused, then later."""
        if node.life != life:
            return
        if node.paused_until > self._now:
            self._at(node.paused_until - self._now, self._on, node, life, event, *args)
            return
        event(node, *args)
        self._check(node)

    def _later(
        self, node: SimulatedNode, delay: float, event: Callable[..., None], *args: Any
    ) -> None:
        self._at(delay, self._on, node, node.life, event, *args)

    def _say(self, text: str) -> None:
        if self._is_verbose:
            self.lines.append(f"{self._now:7.3f} {text}")

    # Network

    def _send(self, a: int, b: int, event: Callable[..., None], *args: Any) -> None:
        """Let a message from one place to another arrive, unless it is lost."""
        if frozenset((a, b)) in self._cut or self._random.random() < self._loss:
            return
        delay = self._random.expovariate(1 / self._delay)
        self._at(delay, event, *args)

    def _to_store(self, node: SimulatedNode, event: Callable[..., None], *args: Any) -> None:
        self._send(node.id, STORE, event, node, node.life, *args)

    def _from_store(
        self, node: SimulatedNode, life: int, event: Callable[..., None], *args: Any
    ) -> None:
        self._send(STORE, node.id, self._on, node, life, event, *args)

    # Beginning and healing

    def _begin(self) -> None:
        for node in self._nodes.values():
            life = self._new_life(node)
            assert self._store.register(node.id, life.record, 0, 0.0) is not None
        proposal = controller.new_partition(
            (1, 2, 3), self._store.live(0.0), controller_epoch=self._store.controller_epoch
        )
        assert proposal is not None
        assert self._store.commit(proposal, 0.0)
        for node in self._nodes.values():
            self._live(node, self._store.registrations[node.id].broker_epoch)
        self._at(0.1, self._control)
        self._at(0.05, self._produce)
        self._at(0.05, self._read)
        self._at(self._random.uniform(0.2, 1.5), self._fault)

    def _heal(self) -> None:
        """End all faults. Nodes that are down start again."""
        self._say("everything heals")
        self._is_healing = True
        self._cut.clear()
        self._loss = 0.0
        self._delay = 0.01
        for node in self._nodes.values():
            node.paused_until = 0.0
            if not node.replica.is_alive:
                self._start(node)

    # Lives of nodes

    def _start(self, node: SimulatedNode) -> None:
        replica = node.replica
        if not replica.is_alive:
            node.life += 1
            found = node.found or _found_log(replica)
            reason = lost_records(found, node.stored_high_watermark, has_others=True)
            replica.lacks_records = reason is not None
            self._register(node)

    def _register(self, node: SimulatedNode) -> None:
        """At a node that starts: ask for the record of its last life, until it is registered.

        A node that lacks records says so first.
        """
        if not node.replica.is_alive:
            tell = self._tell_registration if node.replica.lacks_records else self._tell_life
            self._to_store(node, tell)
            self._later(node, 0.4, self._register)

    def _tell_registration(self, node: SimulatedNode, life: int) -> None:
        is_registered = node.id in self._store.live(self._now)
        self._from_store(node, life, self._disown_first, self._store.state, is_registered)

    def _disown_first(
        self,
        node: SimulatedNode,
        state: ReplicationState,
        is_registered: bool,  # noqa: FBT001 - an event.
    ) -> None:
        if node.replica.is_alive or not node.replica.lacks_records:
            return
        step = disown_step(state, node.id, is_registered=is_registered)
        if step.is_done:
            self._is_disowned(node)
        elif step.proposal is not None:
            self._to_store(node, self._disown, step.proposal, self._is_disowned)

    def _is_disowned(self, node: SimulatedNode) -> None:
        """At a node that starts: everybody knows that it lacks records."""
        node.replica.lacks_records = False
        self._to_store(node, self._tell_life)

    def _disown(
        self, node: SimulatedNode, life: int, proposal: Proposal, then: Callable[..., None]
    ) -> None:
        """At the store: a node says that it lacks records."""
        before = self._store.state
        if self._store.commit(proposal, self._now):
            self._say(f"node {node.id} disowns its replica")
            self._stored(before)
            self._from_store(node, life, then)

    def _tell_life(self, node: SimulatedNode, life: int) -> None:
        self._from_store(node, life, self._begin_life, *self._store.last_life(node.id))

    def _begin_life(self, node: SimulatedNode, last: LifeRecord | None, revision: int) -> None:
        if not node.replica.is_alive:
            life = self._new_life(node, last, revision)
            self._to_store(node, self._registered, life.record, revision)

    def _new_life(
        self, node: SimulatedNode, last: LifeRecord | None = None, revision: int = 0
    ) -> NewLife:
        self._sequence += 1
        life = begin_life(last, revision, node.replica.tokens, f"token {self._sequence}")
        node.replica.tokens = life.tokens
        return life

    def _registered(
        self, node: SimulatedNode, life: int, record: LifeRecord, revision: int
    ) -> None:
        """At the store: a node registers."""
        broker_epoch = self._store.register(node.id, record, revision, self._now)
        if broker_epoch is not None:
            self._from_store(node, life, self._live, broker_epoch)

    def _live(self, node: SimulatedNode, broker_epoch: int) -> None:
        """At a node: it is registered and takes part."""
        if node.replica.is_alive:
            return
        node.life += 1
        replica = node.replica
        node.copies.append(
            (replica.log, replica.epochs, replica.tokens, node.stored_high_watermark)
        )
        node.found = None
        node.is_repaired = node.is_disowned = False
        self._say(f"node {node.id} lives with broker epoch {broker_epoch}")
        node.replica.start(broker_epoch)
        node.is_syncing = False
        node.fetch = None
        self._renew(node)
        self._refresh(node)
        self._tick(node)
        self._poll(node)
        self._store_high_watermark(node)

    def _crash(self, node: SimulatedNode, *, keeps_all: bool = False) -> None:
        if not node.replica.is_alive:
            return
        replica = node.replica
        kept = len(replica.log)
        if not keeps_all and self._random.random() < 0.7:
            kept = self._random.randint(replica.synced_end, len(replica.log))
        lost = len(replica.log) - kept
        self._say(f"node {node.id} crashes and loses {lost} of {len(replica.log)} records")
        self._counts["crashes"] += 1
        node.life += 1
        replica.crash(kept=kept)
        self._pending = [one for one in self._pending if one.leader.node != node.id]

    def _renew(self, node: SimulatedNode) -> None:
        sent_at = node.clock(self._now)
        self._to_store(node, self._renewed, node.replica.broker_epoch, sent_at)
        self._later(node, 0.5, self._renew)

    def _renewed(self, node: SimulatedNode, life: int, broker_epoch: int, sent_at: float) -> None:
        is_there = self._store.renew(node.id, broker_epoch, self._now)
        self._from_store(node, life, self._lease_answered, is_there, sent_at)

    def _lease_answered(self, node: SimulatedNode, is_there: bool, sent_at: float) -> None:  # noqa: FBT001 - an event.
        if is_there:
            node.replica.lease.renewed(sent_at)
            return
        self._say(f"node {node.id} has lost its lease and starts again")
        self._crash(node, keeps_all=True)
        self._start(node)

    # Metadata

    def _refresh(self, node: SimulatedNode) -> None:
        """Read the state of the partition from time to time: watches may be lost."""
        self._to_store(node, self._tell)
        self._later(node, self._random.uniform(0.3, 0.9), self._refresh)

    def _tell(self, node: SimulatedNode, life: int) -> None:
        self._from_store(node, life, self._learn, self._store.state)

    def _changed(self) -> None:
        """At the store: the state of the partition changed. Watches lag, some by much."""
        state = self._store.state
        self._say(f"version {state.revision}: {state}")
        for node in self._nodes.values():
            if self._random.random() < 0.8:
                self._from_store(node, node.life, self._learn, state)

    def _learn(self, node: SimulatedNode, state: ReplicationState) -> None:
        leader = node.replica.leader
        if not node.replica.is_alive or (node.id not in state.replicas and leader is None):
            return
        node.replica.learn(state, node.clock(self._now), node.limiter)
        if node.replica.leader is not None and node.replica.leader is not leader:
            self._say(f"node {node.id} leads in epoch {state.leader_epoch}")
            self._check_log(node, state.leader_epoch)
        for other in self._nodes.values():
            registration = self._store.registrations.get(other.id)
            if leader is not None and registration is None:
                leader.node_gone(other.id, other.replica.broker_epoch)

    def _tick(self, node: SimulatedNode) -> None:
        leader = node.replica.leader
        if leader is not None:
            proposal = leader.tick(node.clock(self._now))
            if proposal is not None:
                self._propose(node, leader, proposal)
        self._later(node, 0.15, self._tick)

    def _propose(self, node: SimulatedNode, leader: LeaderReplica, proposal: Proposal) -> None:
        self._say(f"node {node.id} proposes {proposal}")
        answered: list[bool] = []
        self._to_store(node, self._decide, leader, proposal, answered)
        self._later(node, 0.6, self._gave_up, leader, answered)

    def _decide(
        self,
        node: SimulatedNode,
        life: int,
        leader: LeaderReplica,
        proposal: Proposal,
        answered: list[bool],
    ) -> None:
        before = self._store.state
        is_applied = self._store.commit(proposal, self._now)
        if is_applied:
            self._stored(before)
        self._from_store(node, life, self._decided, leader, is_applied, self._store.state, answered)

    def _decided(
        self,
        node: SimulatedNode,
        leader: LeaderReplica,
        is_applied: bool,  # noqa: FBT001 - an event.
        state: ReplicationState,
        answered: list[bool],
    ) -> None:
        if answered:
            return
        answered.append(True)
        if not is_applied:
            leader.proposal_refused()
        self._learn(node, state)

    def _gave_up(self, node: SimulatedNode, leader: LeaderReplica, answered: list[bool]) -> None:
        if not answered:
            answered.append(False)
            leader.proposal_unknown()
            self._to_store(node, self._tell)

    def _stored(self, before: ReplicationState) -> None:
        """Check a change of the state, and tell it."""
        state = self._store.state
        if state.leader_epoch != before.leader_epoch:
            elected = self._nodes[state.leader]
            if elected.replica.is_alive:
                self._check_log(elected, state.leader_epoch)
        elif state.leader != before.leader:
            raise Violation(f"epoch {state.leader_epoch} has two leaders")
        elif state.isr != before.isr:
            self._counts["ISR changes"] += 1
        self._changed()

    # The controller

    def _control(self) -> None:
        """Read, decide, and let the decision arrive later. Another controller may come between."""
        if self._random.random() < 0.03:
            self._store.controller_epoch += 1
        state, nodes = self._store.state, self._store.live(self._now)
        epoch = self._store.controller_epoch
        proposal = controller.elect(state, nodes, min_insync=MIN_INSYNC, controller_epoch=epoch)
        if proposal is None:
            step = controller.next_step(state, nodes, min_insync=MIN_INSYNC)
            if step is not None:
                proposal = controller.propose(state, step, nodes, controller_epoch=epoch)
        if proposal is None and self._random.random() < 0.2:
            for _, successor in controller.preferred_moves({"p": state}, nodes, moves_max=1):
                proposal = controller.hand_over(state, successor, nodes, controller_epoch=epoch)
        if proposal is not None and self._random.random() >= self._loss:
            delay = self._random.expovariate(1 / self._delay)
            self._at(delay, self._control_decided, proposal)
        self._at(0.25, self._control)

    def _control_decided(self, proposal: Proposal) -> None:
        before = self._store.state
        if self._store.commit(proposal, self._now):
            if proposal.state.successor != NO_NODE:
                self._counts["hand-overs"] += 1
            self._stored(before)

    def _reassign(self) -> None:
        nodes = self._store.live(self._now)
        if len(nodes) < 3:
            return
        target = self._random.sample(sorted(nodes), 3)
        state = self._store.state
        try:
            new = controller.reassign(state, target, nodes)
        except InvalidReplication:
            return
        epoch = self._store.controller_epoch
        self._control_decided(controller.propose(state, new, nodes, controller_epoch=epoch))

    # Replication

    def _poll(self, node: SimulatedNode) -> None:
        """Fetch from time to time, also if a leader has to be learned or a sync to end first."""
        if node.fetch is None:
            self._fetch(node)
        self._later(node, 0.15, self._poll)

    def _fetch(self, node: SimulatedNode) -> None:
        """Send the next fetch, if the machine allows one."""
        if node.is_repaired:
            return
        asked = node.replica.next_fetch()
        if asked is None:
            return
        to, fetch = asked
        node.fetch = fetch
        self._send(node.id, to, self._fetched, self._nodes[to], node, node.life, fetch)
        self._later(node, 0.5, self._fetch_again, fetch)

    def _fetch_again(self, node: SimulatedNode, fetch: ReplicaFetch) -> None:
        if node.fetch is fetch:
            node.fetch = None
            self._fetch(node)

    def _fetched(
        self, leader: SimulatedNode, node: SimulatedNode, life: int, fetch: ReplicaFetch
    ) -> None:
        self._on(leader, leader.life, self._answer, node, life, fetch)

    def _answer(
        self, leader: SimulatedNode, node: SimulatedNode, life: int, fetch: ReplicaFetch
    ) -> None:
        if not leader.replica.is_alive:
            return
        answer = leader.replica.answer(
            fetch, leader.clock(self._now), records_max=self._random.choice((1, 3, 50))
        )
        self._send(leader.id, node.id, self._on, node, life, self._answered, fetch, answer)

    def _answered(self, node: SimulatedNode, fetch: ReplicaFetch, answer: SimulatedAnswer) -> None:
        replica = node.replica
        log, epochs = replica.log, replica.epochs
        cut = replica.take_answer(fetch, answer)
        if cut is not None:
            node.diverged.append((log, epochs))
            self._counts["cuts"] += 1
            self._say(f"node {node.id} cuts its log from {len(log)} to {cut.offset}")
            for offset in range(cut.offset, min(len(log), len(self._committed))):
                if log[offset] == self._committed[offset]:
                    raise Violation(f"node {node.id} cuts the committed record {offset}")
        if node.fetch is not fetch:
            return
        node.fetch = None
        if replica.synced_end < len(replica.log):
            self._sync(node)
        if answer.records or cut is not None:
            self._fetch(node)

    def _sync(self, node: SimulatedNode) -> None:
        if not node.is_syncing:
            node.is_syncing = True
            self._later(
                node, self._random.expovariate(1 / 0.01), self._synced, len(node.replica.log)
            )

    def _synced(self, node: SimulatedNode, end: int) -> None:
        node.is_syncing = False
        replica = node.replica
        if replica.synced_end < end <= len(replica.log):
            replica.sync(end)
        if replica.synced_end < len(replica.log):
            self._sync(node)
        elif node.fetch is None:
            self._fetch(node)

    # Clients

    def _produce(self) -> None:
        """Append a record at a node that thinks that it leads."""
        self._at(self._random.uniform(0.05, 0.7), self._produce)
        leaders = [node for node in self._nodes.values() if node.replica.leader is not None]
        if not leaders:
            return
        node = self._random.choice(leaders)
        acks_all = self._random.random() < 0.7
        self._on(node, node.life, self._append, acks_all)

    def _append(self, node: SimulatedNode, acks_all: bool) -> None:  # noqa: FBT001 - an event.
        leader = node.replica.leader
        if leader is None:
            return
        if leader.refuses_append(node.clock(self._now), acks_all=acks_all) is not None:
            return
        self._counts["appended"] += 1
        offset = len(node.replica.log)
        node.replica.append(self._counts["appended"], node.clock(self._now))
        record = node.replica.log[offset]
        self._say(f"node {node.id} appends {record} at offset {offset}, acks_all={acks_all}")
        self._sync(node)
        if acks_all:
            self._pending.append(_Pending(leader, offset, record))
        else:
            self._later(node, self._random.expovariate(1 / 0.05), self._answer_client, leader)

    def _answer_client(self, node: SimulatedNode, leader: LeaderReplica) -> None:
        """Answer acks=1."""
        if leader.may_answer(node.clock(self._now)):
            self._answers(leader)

    def _read(self) -> None:
        """Ask every node that thinks that it leads for the end of the log."""
        self._at(self._random.uniform(0.05, 0.4), self._read)
        for node in self._nodes.values():
            self._on(node, node.life, self._tell_end)

    def _tell_end(self, node: SimulatedNode) -> None:
        leader = node.replica.leader
        end = UNAVAILABLE if leader is None else leader.latest_offset(node.clock(self._now))
        if leader is None or end == UNAVAILABLE:
            return
        self._answers(leader)
        if end < self._shown:
            raise Violation(f"node {node.id} tells a reader {end}, who was told {self._shown}")
        self._shown = end

    def _answers(self, leader: LeaderReplica) -> None:
        """Check that no leader answers after a later one did."""
        if leader.leader_epoch < self._answered_epoch:
            raise Violation(
                f"node {leader.node} answers in epoch {leader.leader_epoch},"
                f" epoch {self._answered_epoch} has answered before"
            )
        self._answered_epoch = leader.leader_epoch

    # Faults

    def _fault(self) -> None:
        if self._is_healing:
            return
        self._at(self._random.expovariate(1 / 0.9), self._fault)
        node = self._random.choice(list(self._nodes.values()))
        kind = self._random.random()
        if kind < 0.35:
            self._crash(node)
            self._lose(node)
            self._at(self._random.uniform(0.1, 4.0), self._start, node)
        elif kind < 0.65:
            places = [STORE, *self._nodes]
            other = self._random.choice([place for place in places if place != node.id])
            self._cut_off(frozenset((node.id, other)))
        elif kind < 0.75:
            for place in (STORE, *self._nodes):
                if place != node.id:
                    self._cut_off(frozenset((node.id, place)))
        elif kind < 0.85:
            self._say(f"node {node.id} is paused")
            node.paused_until = self._now + self._random.uniform(0.2, 4.0)
        elif kind < 0.92:
            self._on(node, node.life, self._lose_end)
        else:
            self._reassign()

    def _lose(self, node: SimulatedNode) -> None:
        """Let a node that is down lose something, or nothing."""
        loss = self._random.random()
        if loss < 0.5 and self._is_whole():
            if loss < 0.1 and self._counts["disk losses"] == 0:
                self._lose_disk(node)
            else:
                self._lose_records(node)

    def _lose_disk(self, node: SimulatedNode) -> None:
        """Let a node that is down come back with an empty disk, or with an older copy."""
        self._counts["disk losses"] += 1
        node.life += 1  # It may have been starting.
        replica = node.replica
        if len(node.copies) < 2 or self._random.random() < 0.5:
            self._say(f"node {node.id} loses its disk")
            replica.lose_disk()
            node.stored_high_watermark = None
            node.found = FoundLog(None)
            return
        # A copy that was made in its last life cannot be told from the disk itself.
        copy = self._random.choice(node.copies[:-1])
        self._say(f"node {node.id} gets an older copy of its disk, with {len(copy[0])} records")
        replica.log, replica.epochs, replica.tokens, node.stored_high_watermark = copy
        replica.synced_end = len(replica.log)
        node.found = _found_log(replica)

    def _is_whole(self) -> bool:
        """Whether no member of the ISR has lost records since it joined: so one may lose them."""
        if any(node.found is not None or node.is_repaired for node in self._nodes.values()):
            return False
        for member in self._store.state.isr:
            record, revision = self._store.last_life(member.node)
            if record is None or record.continuous_since(revision) > member.broker_epoch:
                return False
        return True

    def _store_high_watermark(self, node: SimulatedNode) -> None:
        """Store outside of the log what it has, from time to time."""
        if not node.is_repaired:
            offset = min(node.replica.high_watermark, node.replica.synced_end)
            epoch = EpochHistory(node.replica.epochs).last_epoch(0, offset)
            node.stored_high_watermark = CommittedEnd(offset, epoch)
        self._later(node, 0.5, self._store_high_watermark)

    def _lose_records(self, node: SimulatedNode) -> None:
        """Let a node that is down lose records of the partition, in a way that it can notice."""
        replica, stored = node.replica, node.stored_high_watermark
        older = _diverged_copies(node)
        if older:
            self._counts["record losses"] += 1
            node.life += 1  # It may have been starting.
            replica.log, replica.epochs = self._random.choice(older)
            replica.synced_end = len(replica.log)
            node.found = _found_log(replica)
            self._say(f"node {node.id} gets an older copy of the partition: {node.found}")
            return
        kinds = [(0, FoundLog(None))]
        if replica.log:
            kept = self._random.randrange(len(replica.log))
            kinds.append((kept, FoundLog(None, "its end is damaged")))
        if stored is not None and stored.offset:
            kept = self._random.randrange(stored.offset)
            kinds.append((kept, FoundLog(kept)))
        kept, found = self._random.choice(kinds)
        if lost_records(found, stored, has_others=True) is None:
            return
        self._counts["record losses"] += 1
        self._say(f"node {node.id} loses the records from offset {kept} on: {found}")
        node.life += 1  # It may have been starting.
        replica.lose_records(kept)
        node.found = found

    def _lose_end(self, node: SimulatedNode) -> None:
        """Let a follower that runs find that its last records are lost."""
        replica = node.replica
        if replica.follower is None or not replica.log or replica.state is None:
            return
        if not self._is_whole():  # Asked now: the node may have been paused.
            return
        self._counts["record losses"] += 1
        kept = self._random.randrange(len(replica.log))
        self._say(f"node {node.id} finds that the records from offset {kept} on are lost")
        node.is_repaired = True
        self._repair(node, kept)

    def _repair(self, node: SimulatedNode, kept: int) -> None:
        """Do the next step of a follower that lost its end, and look again later."""
        replica = node.replica
        state, follower = replica.state, replica.follower
        if not node.is_repaired or state is None:
            return
        if follower is None:
            node.is_repaired = node.is_disowned = False  # It leads, with what it has.
            return
        step = next_repair(
            ReplicaCondition(
                is_leader=False,
                has_leader=follower.leader not in (NO_NODE, node.id),
                is_counted=state.is_counted(node.id) or not node.is_disowned,
                is_end_lost=True,
            )
        )
        if step is RepairStep.DISOWN:
            self._to_store(node, self._disown, disowning(state, node.id), self._disowned_end)
            self._to_store(node, self._tell)
        elif step is RepairStep.RECOVER_END:
            self._say(f"node {node.id} removes its records from offset {kept} on")
            replica.recover_end(min(kept, len(replica.log)))
            node.is_repaired = node.is_disowned = False
            node.fetch = None
            self._fetch(node)
            return
        self._later(node, 0.3, self._repair, kept)

    def _disowned_end(self, node: SimulatedNode) -> None:
        node.is_disowned = node.is_repaired

    def _cut_off(self, link: frozenset[int]) -> None:
        self._say(f"cut between {sorted(link)}")
        self._cut.add(link)
        self._at(self._random.uniform(0.3, 4.0), self._join, link)

    def _join(self, link: frozenset[int]) -> None:
        self._cut.discard(link)

    # Promises

    def _check(self, node: SimulatedNode) -> None:
        """Check what a node did."""
        leader = node.replica.leader
        if leader is None:
            return
        end = leader.high_watermark
        known = len(self._committed)
        if end > known:
            log = node.replica.log[:end]
            if log[:known] != self._committed:
                raise Violation(f"node {node.id} commits records that contradict committed ones")
            self._check_durable(log)
            self._committed = log
            self._committed_in += [leader.leader_epoch] * (end - known)
        if self._pending:
            self._acknowledge(leader)

    def _check_log(self, node: SimulatedNode, epoch: int) -> None:
        """Check that a node that is to lead has everything that earlier leaders committed.

        It may learn late that it was elected, when others have been elected since.
        """
        log = node.replica.log
        end = sum(committing < epoch for committing in self._committed_in)
        if log[:end] != self._committed[:end]:
            raise Violation(
                f"node {node.id} is to lead in epoch {epoch} with {len(log)} records, which do not"
                f" begin with the {end} that were committed before"
            )

    def _acknowledge(self, leader: LeaderReplica) -> None:
        kept = []
        for one in self._pending:
            if one.leader is leader and one.offset < leader.high_watermark:
                if self._committed[one.offset] != one.record:
                    raise Violation(f"{one.record} is acknowledged, and another record is there")
                self._acknowledged[one.offset] = one.record
            elif not one.leader.is_fenced:
                kept.append(one)
        self._pending = kept

    def _check_durable(self, log: tuple[SimulatedRecord, ...]) -> None:
        count = 0
        for node in self._nodes.values():
            replica = node.replica
            count += replica.synced_end >= len(log) and replica.log[: len(log)] == log
        if count < MIN_INSYNC and self._is_whole():
            raise Violation(f"{len(log)} records are committed, but synced on {count} disks only")

    def _check_whole(self) -> None:
        """Check that the cluster has healed, with everything that was acknowledged."""
        state = self._store.state
        leader = self._nodes[state.leader].replica.leader
        if leader is None or leader.leader_epoch != state.leader_epoch:
            raise Violation(f"nobody leads: {state}")
        log = self._nodes[state.leader].replica.log
        for offset, record in self._acknowledged.items():
            if offset >= len(log) or log[offset] != record:
                raise Violation(f"the acknowledged record {record} at offset {offset} is lost")
        if log[: len(self._committed)] != self._committed:
            raise Violation("committed records are lost")
        if set(state.in_sync_nodes) != set(state.target):
            raise Violation(f"not all replicas are in sync: {state}")
        for node in state.target:
            own = self._nodes[node].replica.log
            common = min(len(own), len(log))
            if own[:common] != log[:common] or abs(len(own) - len(log)) > 3:
                raise Violation(f"node {node} has {len(own)} records, the leader {len(log)}")
        if leader.high_watermark < len(log) - 3:
            raise Violation(f"the high watermark is {leader.high_watermark} of {len(log)}")
