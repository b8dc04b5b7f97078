"""A replica in memory: a log with an unsynced tail, and the machine that drives it.

It does what the broker's shell does around `LeaderReplica` and `FollowerReplica`, without files and
network. A record is a number; a log is a tuple of records with their epochs. Segments begin at each
epoch, and a record has the size of one byte.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.cluster.epochs import NO_EPOCH, EpochHistory
from millstream.cluster.follower import (
    NO_SEGMENT,
    Cut,
    FollowerReplica,
    OfferedSlice,
    ReplicaStopped,
    SliceDecision,
)
from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy
from millstream.cluster.leader import LeaderReplica
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.replica_fetch import NOT_LEADER, FetchDecision, FetchKind, ReplicaFetch
from millstream.cluster.replication_state import ReplicationState
from millstream.testing.simulation.violation import Violation


class SimulatedRecord(NamedTuple):
    """A record of the simulation."""

    epoch: int
    number: int


SimulatedLog = tuple[SimulatedRecord, ...]


class SimulatedAnswer(NamedTuple):
    """Answer of a leader to a fetch."""

    decision: FetchDecision
    high_watermark: int = 0
    segment_base: int = NO_SEGMENT
    records: SimulatedLog = ()


class SimulatedReplica:
    """A replica of the partition on one node, over all lives of the node."""

    __slots__ = (
        "broker_epoch",
        "epochs",
        "high_watermark",
        "is_alive",
        "is_disowned",
        "lacks_records",
        "lease",
        "log",
        "machine",
        "min_insync",
        "node",
        "policy",
        "state",
        "synced_end",
        "tokens",
    )

    def __init__(
        self, node: int, *, min_insync: int, policy: IsrPolicy, lease: LeaseBelief
    ) -> None:
        self.node = node
        self.min_insync = min_insync
        self.policy = policy
        self.lease = lease
        self.broker_epoch = 0
        self.tokens: tuple[str, ...] = ()
        """Tokens of lives that the node's directory has."""
        self.is_alive = False
        self.lacks_records = False
        """Whether the node found records missing, and has not recovered from that."""
        self.is_disowned = False
        """Whether it has said so in the store."""
        self.log: SimulatedLog = ()
        self.synced_end = 0
        self.epochs: tuple[tuple[int, int], ...] = ()
        """Epochs as they are on disk."""
        self.high_watermark = 0
        self.machine: LeaderReplica | FollowerReplica | None = None
        self.state: ReplicationState | None = None

    # Lives

    def start(self, broker_epoch: int) -> None:
        """Start the node, registered with a broker epoch. Recovery syncs what is in the log."""
        self.is_alive = True
        self.broker_epoch = broker_epoch
        self.synced_end = len(self.log)

    def crash(self, *, kept: int | None = None) -> None:
        """Stop the process. Of what was not synced, the log keeps the records before `kept`."""
        end = len(self.log) if kept is None else max(kept, self.synced_end)
        self._set_log(self.log[:end])
        self.synced_end = end
        self.high_watermark = 0
        self.is_alive = False
        self.is_disowned = False
        self.machine = None
        self.state = None
        self.lease.lost()

    def lose_disk(self) -> None:
        """Lose everything that a node that is not running has stored."""
        self._set_log(())
        self.epochs = ()
        self.synced_end = 0
        self.tokens = ()

    def lose_records(self, kept: int) -> None:
        """Lose the records from offset `kept` on, of this partition only, while not running."""
        self._set_log(self.log[:kept])
        self.synced_end = kept
        self.lacks_records = True

    def recover_end(self, kept: int) -> None:
        """Remove the records from offset `kept` on, as a follower that lost them, and follow."""
        assert self.state is not None
        self._set_log(self.log[:kept])
        self.synced_end = kept
        self.high_watermark = min(self.high_watermark, kept)
        self.machine = self._new_follower(self.state)

    def _set_log(self, log: SimulatedLog) -> None:
        self.log = log
        history = EpochHistory(self.epochs)
        history.cut(len(log))
        self.epochs = history.entries()

    # Roles

    @property
    def leader(self) -> LeaderReplica | None:
        """The machine, if this node leads and has not been deposed."""
        machine = self.machine
        return machine if isinstance(machine, LeaderReplica) and not machine.is_fenced else None

    @property
    def follower(self) -> FollowerReplica | None:
        return self.machine if isinstance(self.machine, FollowerReplica) else None

    def learn(self, state: ReplicationState, now: float, limiter: IsrChangeLimiter) -> None:
        """Take a state of the partition from the store."""
        if self.state is not None and state.revision < self.state.revision:
            return
        self.state = state
        machine = self.machine
        if isinstance(machine, LeaderReplica):
            if machine.state_changed(state, now):
                self._moved()
                return
            self._keep(machine)
            machine = None
        is_mine = (state.leader, state.leader_broker_epoch) == (self.node, self.broker_epoch)
        if is_mine:
            if machine is not None:
                self._keep(machine)
            self.machine = self._new_leader(state, now, limiter)
            self._moved()
        elif machine is not None:
            machine.state_changed(state)
        else:
            self.machine = self._new_follower(state)

    def _keep(self, machine: LeaderReplica | FollowerReplica) -> None:
        self.high_watermark = machine.high_watermark

    def _new_leader(
        self, state: ReplicationState, now: float, limiter: IsrChangeLimiter
    ) -> LeaderReplica:
        self.lacks_records = self.is_disowned = False
        # An epoch begins with a segment of its own, and the one before is synced then.
        self.synced_end = len(self.log)
        history = EpochHistory(self.epochs)
        history.begin(state.leader_epoch, len(self.log))
        self.epochs = history.entries()
        return LeaderReplica(
            node=self.node,
            broker_epoch=self.broker_epoch,
            state=state,
            epochs=history,
            log_start=0,
            log_end=len(self.log),
            high_watermark=self.high_watermark,
            min_insync=self.min_insync,
            lease=self.lease,
            policy=self.policy,
            limiter=limiter,
            now=now,
        )

    def _new_follower(self, state: ReplicationState) -> FollowerReplica:
        segment_base, position = self._end_position()
        return FollowerReplica(
            node=self.node,
            broker_epoch=self.broker_epoch,
            state=state,
            epochs=EpochHistory(self.epochs),
            log_start=0,
            log_end=len(self.log),
            synced_end=self.synced_end,
            high_watermark=self.high_watermark,
            segment_base=segment_base,
            position=position,
        )

    def _end_position(self) -> tuple[int, int]:
        """Return where the last segment with a record begins, and its size."""
        if not self.log:
            return NO_SEGMENT, 0
        base = self._segment_base(len(self.log) - 1)
        return base, len(self.log) - base

    def _segment_base(self, offset: int) -> int:
        epoch = self.log[offset].epoch
        while offset and self.log[offset - 1].epoch == epoch:
            offset -= 1
        return offset

    def _moved(self) -> None:
        assert self.machine is not None
        self.high_watermark = self.machine.high_watermark

    # The log

    def append(self, number: int, now: float) -> None:
        """Append a record of a client, as leader."""
        leader = self.leader
        assert leader is not None
        self.log = (*self.log, SimulatedRecord(leader.leader_epoch, number))
        leader.written(len(self.log), now)

    def sync(self, end: int | None = None) -> None:
        """Make durable what was written up to `end`, or everything."""
        self.synced_end = len(self.log) if end is None else end
        if self.machine is not None:
            self.machine.synced(self.synced_end)
            self._moved()

    # Fetches

    def next_fetch(self) -> tuple[int, ReplicaFetch] | None:
        """Return the node to fetch from, and the fetch."""
        follower = self.follower
        if follower is None or follower.leader in (self.node, -1):
            return None
        fetch = follower.next_fetch()
        return None if fetch is None else (follower.leader, fetch)

    def answer(self, fetch: ReplicaFetch, now: float, *, records_max: int = 1) -> SimulatedAnswer:
        """Answer a fetch of a follower."""
        leader = self.leader
        if leader is None:
            return SimulatedAnswer(NOT_LEADER)
        decision = leader.fetch(fetch, now)
        self._moved()
        if decision.kind is not FetchKind.SERVE or fetch.offset >= len(self.log):
            return SimulatedAnswer(decision, leader.high_watermark)
        offset = fetch.offset
        end = min(offset + records_max, len(self.log))
        while self.log[end - 1].epoch != self.log[offset].epoch:
            end -= 1
        base = self._segment_base(offset)
        return SimulatedAnswer(decision, leader.high_watermark, base, self.log[offset:end])

    def take_answer(self, fetch: ReplicaFetch, answer: SimulatedAnswer) -> Cut | None:
        """Carry out an answer; return the cut that it caused."""
        follower = self.follower
        if follower is None:
            return None
        kind = answer.decision.kind
        if kind is FetchKind.DIVERGING:
            return self._diverge(follower, fetch, answer.decision)
        if kind is not FetchKind.SERVE:
            return None
        follower.answered(fetch, answer.high_watermark)
        if answer.records:
            self._write(follower, fetch, answer)
        self._moved()
        return None

    def _write(
        self, follower: FollowerReplica, fetch: ReplicaFetch, answer: SimulatedAnswer
    ) -> None:
        records = OfferedSlice(
            base_offset=fetch.offset,
            end_offset=fetch.offset + len(answer.records),
            epoch=answer.records[0].epoch,
            segment_base=answer.segment_base,
            position=fetch.offset - answer.segment_base,
            size=len(answer.records),
        )
        decision = follower.accept(fetch, records)
        if decision is SliceDecision.MISMATCH:
            raise Violation(f"node {self.node} is not where its leader takes it for: {records}")
        if decision is not SliceDecision.DROP:
            self.log += answer.records
            follower.written(records)
            self.epochs = follower.epochs.entries()

    def _diverge(
        self, follower: FollowerReplica, fetch: ReplicaFetch, decision: FetchDecision
    ) -> Cut | None:
        cut = follower.diverging(fetch, decision.epoch, decision.offset)
        if isinstance(cut, ReplicaStopped):
            raise Violation(f"node {self.node} stopped: {cut.reason}")
        if cut is not None:
            self._set_log(self.log[: cut.offset])
            self.synced_end = len(self.log)
            segment_base, position = self._end_position()
            follower.cut_to(len(self.log), segment_base=segment_base, position=position)
        return cut

    @property
    def last_epoch(self) -> int:
        return self.log[-1].epoch if self.log else NO_EPOCH
