"""Leaders and followers for tests: three nodes, the broker epoch of node n is 10 + n."""

from __future__ import annotations

from dataclasses import replace

from millstream.cluster.epochs import EpochHistory
from millstream.cluster.follower import FollowerReplica
from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy
from millstream.cluster.leader import LeaderReplica
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.replica_fetch import FetchDecision, ReplicaFetch
from millstream.cluster.replication_state import IsrMember, ReplicationState

LIVES = {1: 11, 2: 12, 3: 13}
TTL = 4.0


def members(*nodes: int) -> tuple[IsrMember, ...]:
    return tuple(IsrMember(node, LIVES[node]) for node in nodes)


def state_of(isr=(1, 2, 3), *, leader=1, epoch=0, revision=5, **fields) -> ReplicationState:
    return ReplicationState(
        leader=leader,
        leader_broker_epoch=LIVES[leader],
        leader_epoch=epoch,
        isr=members(*isr),
        replicas=(1, 2, 3),
        revision=revision,
        **fields,
    )


class LeaderOf:
    """A leader with its lease, and a clock that the test moves."""

    def __init__(
        self, state=None, *, end=0, high_watermark=0, epochs=None, policy=None, limiter=None
    ):
        state = state or state_of()
        self.now = 100.0
        self.lease = LeaseBelief(TTL)
        self.lease.renewed(self.now)
        self.machine = LeaderReplica(
            node=state.leader,
            broker_epoch=state.leader_broker_epoch,
            state=state,
            epochs=EpochHistory(epochs or [(state.leader_epoch, end)]),
            log_start=0,
            log_end=end,
            high_watermark=high_watermark,
            min_insync=2,
            lease=self.lease,
            policy=policy or IsrPolicy(),
            limiter=limiter or IsrChangeLimiter(),
            now=self.now,
        )

    def append(self, end: int, *, is_synced: bool = True) -> None:
        self.machine.written(end, self.now)
        if is_synced:
            self.machine.synced(end)

    def fetch(
        self, node: int, offset: int, *, epoch=None, last_epoch=None, life=None, revision=None
    ) -> FetchDecision:
        machine = self.machine
        if last_epoch is None:
            last_epoch = machine.epochs.last_epoch(0, offset)
        return machine.fetch(
            ReplicaFetch(
                node,
                LIVES[node] if life is None else life,
                machine.leader_epoch if epoch is None else epoch,
                offset,
                last_epoch,
                machine.state.revision if revision is None else revision,
            ),
            self.now,
        )

    def wait(self, seconds: float) -> None:
        """Let time pass. The lease is renewed all the time."""
        self.now += seconds
        self.lease.renewed(self.now)

    def apply(self, proposal) -> bool:
        """Store a proposal, and tell the leader."""
        state = proposal.state.at(self.machine.state.revision + 1)
        return self.machine.state_changed(state, self.now)


def follower_of(state=None, *, node=2, end=0, epochs=(), high_watermark=0, **fields):
    return FollowerReplica(
        node=node,
        broker_epoch=LIVES[node],
        state=state or state_of(),
        epochs=EpochHistory(epochs),
        log_start=0,
        log_end=end,
        high_watermark=high_watermark,
        **fields,
    )


def newer(state: ReplicationState, **fields) -> ReplicationState:
    return replace(state, revision=state.revision + 1, **fields)
