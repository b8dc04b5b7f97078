"""The leader of one partition: high watermark, fetches of followers, ISR changes, hand-over.

Rules. The explorer and the simulator check that they suffice; `tests/planted` breaks each of them.

1.  A leader exists for one leader epoch and one life of its node. It never changes its epoch; a
    newer state of the partition fences it for good. The shell makes at most one leader per epoch,
    and before that the log is synced and the start of the epoch is durable.
2.  A fetch counts only if it names this leader epoch, if its sender is a replica in its newest
    known life, and if the sender's log agrees with ours up to its end. Its offset says what is
    synced.
3.  The high watermark is the least end over the *maximal ISR*: the members that the store is known
    to have, and those of every proposal that may still take effect. Our own end counts as far as
    it is synced. A member counts only in the life that the ISR names. It never falls.
4.  The ISR changes only by compare and set on the revision of the state. A proposal whose outcome
    is unknown may take effect until the revision has moved, so nothing is taken out of the maximal
    ISR before a newer state was read.
5.  A follower joins if it has every committed record: its end is at least the high watermark *and*
    the start of this epoch. (The first alone loses data: the high watermark of a new leader may be
    lower than that of its predecessor.) Its last fetch names the state that the leader has: a
    replica that loses records moves the revision before it fetches again, so an older fetch may
    tell of records that are gone.
6.  The end of the log is not told to readers before the high watermark has reached the start of
    this epoch: before that, it may be lower than what they were told by the predecessor.
7.  Appends, responses to acks=1 and reads need a lease that is believed valid *at that moment*.
    acks=all needs none: it waits for the high watermark.
8.  An append with acks=all needs enough members of the ISR that are not behind, before it is
    written.
9.  A leader that lives is replaced only by its own hand-over: it stops appending, waits until its
    successor has everything, stops answering, and then proposes the successor with the next
    epoch. So nothing that it acknowledged is lost, and no reader is sent back.

The shell calls a method for each event and then looks at `high_watermark` and at what was returned.
`now` is the monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from millstream.cluster.epochs import NO_EPOCH, EpochHistory
from millstream.cluster.isr import (
    NEVER,
    FollowerProgress,
    IsrChangeLimiter,
    IsrPolicy,
    lag_limit,
    may_join,
    next_isr,
)
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.replica_fetch import (
    FENCED_BROKER_EPOCH,
    FENCED_LEADER_EPOCH,
    NOT_A_REPLICA,
    NOT_LEADER,
    SERVE,
    UNKNOWN_LEADER_EPOCH,
    FetchDecision,
    FetchKind,
    ReplicaFetch,
)
from millstream.cluster.replication_state import (
    NO_LIFE,
    NO_NODE,
    IsrMember,
    Proposal,
    ReplicationState,
)

UNAVAILABLE = -1
"""An offset that the leader may not tell now."""


class AppendRefusal(Enum):
    """Why a leader takes no append now. Nothing was written."""

    NOT_LEADER = "not leader"
    LEASE_EXPIRED = "lease expired"
    HANDING_OVER = "handing over"
    NOT_ENOUGH_REPLICAS = "not enough replicas"


class LeaderReplica:
    """The leader of one partition in one leader epoch."""

    __slots__ = (
        "_counted",
        "_followers",
        "_handed_over_since",
        "_has_log_failed",
        "_is_resigned",
        "_lease",
        "_limiter",
        "_maximal",
        "_members",
        "_next_change_at",
        "_policy",
        "_successor",
        "_waits_for_answer",
        "_waits_for_state",
        "broker_epoch",
        "epoch_start",
        "epochs",
        "high_watermark",
        "is_fenced",
        "leader_epoch",
        "log_start",
        "min_insync",
        "node",
        "state",
        "synced_end",
        "written_end",
    )

    def __init__(
        self,
        *,
        node: int,
        broker_epoch: int,
        state: ReplicationState,
        epochs: EpochHistory,
        log_start: int,
        log_end: int,
        high_watermark: int,
        min_insync: int,
        lease: LeaseBelief,
        policy: IsrPolicy,
        limiter: IsrChangeLimiter,
        now: float,
    ) -> None:
        """Become leader. The log is synced, and `epochs` has this leader epoch durably.

        `high_watermark` is what the node knew as a follower, or as an earlier leader.
        """
        assert (state.leader, state.leader_broker_epoch) == (node, broker_epoch), state
        assert epochs.latest == state.leader_epoch, (epochs.entries(), state)
        self.node = node
        self.broker_epoch = broker_epoch
        self.state = state
        self.leader_epoch = state.leader_epoch
        self.epochs = epochs
        self.epoch_start = epochs.latest_start
        self.log_start = log_start
        self.written_end = log_end
        self.synced_end = log_end
        self.high_watermark = high_watermark
        self.min_insync = min_insync
        """Changes with the configuration of the topic."""
        self.is_fenced = False
        self._has_log_failed = False
        self._lease = lease
        self._policy = policy
        self._limiter = limiter
        self._followers: dict[int, FollowerProgress] = {}
        self._maximal: frozenset[IsrMember] = frozenset()
        self._members: tuple[tuple[FollowerProgress, int], ...] = ()
        self._counted: tuple[tuple[FollowerProgress, int], ...] = ()
        self._waits_for_answer = False
        self._waits_for_state = False
        self._next_change_at = float("-inf")
        self._successor = NO_NODE
        self._handed_over_since = 0.0
        self._is_resigned = False
        self._take(state, now)
        self._advance()

    # The log

    def written(self, end: int, now: float) -> None:
        """Note that the log was appended up to `end`. Followers may fetch it."""
        self.written_end = end
        for follower in self._followers.values():
            if follower.behind_since == NEVER:
                follower.behind_since = now

    def synced(self, end: int) -> bool:
        """Note that the log is durable up to `end`; return whether the high watermark moved."""
        self.synced_end = end
        return self._advance()

    def log_failed(self) -> None:
        """Note that the log takes nothing more, and that nobody can fetch what is not synced.

        A follower that has everything else is not behind, and may be the successor.
        """
        self._has_log_failed = True
        for follower in self._followers.values():
            if follower.end >= self.synced_end:
                follower.behind_since = NEVER

    @property
    def _available_end(self) -> int:
        """The end of what followers can fetch."""
        return self.synced_end if self._has_log_failed else self.written_end

    def started_at(self, log_start: int) -> None:
        """Note that records before `log_start` were deleted."""
        self.log_start = log_start
        self.epochs.drop_before(log_start)

    # Clients

    def refuses_append(self, now: float, *, acks_all: bool) -> AppendRefusal | None:
        """Return why an append must not be written, or None if it may be."""
        if self.is_fenced:
            return AppendRefusal.NOT_LEADER
        if not self._lease.is_valid(now):
            return AppendRefusal.LEASE_EXPIRED
        if self._successor != NO_NODE or self._is_resigned:
            return AppendRefusal.HANDING_OVER
        if acks_all and self.in_sync_count(now) < self.min_insync:
            return AppendRefusal.NOT_ENOUGH_REPLICAS
        return None

    def may_answer(self, now: float) -> bool:
        """Whether acks=1 may be answered and records may be read, at this moment."""
        return self._lease.is_valid(now) and not self.is_fenced and not self._is_resigned

    def latest_offset(self, now: float) -> int:
        """Return the end of what readers may see, or `UNAVAILABLE`."""
        if self.high_watermark < self.epoch_start or not self.may_answer(now):
            return UNAVAILABLE
        return self.high_watermark

    def in_sync_count(self, now: float) -> int:
        """Return the number of ISR members that are not behind, this node included."""
        count = 1
        for follower, broker_epoch in self._members:
            is_known = follower.broker_epoch in (0, broker_epoch) and not follower.is_gone
            if broker_epoch != NO_LIFE and is_known and not self._is_behind(follower, now):
                count += 1
        return count

    # Followers

    def fetch(self, request: ReplicaFetch, now: float) -> FetchDecision:
        """Check a follower's fetch, note its progress, and return the answer.

        The high watermark may have moved.
        """
        if self.is_fenced:
            return NOT_LEADER
        if request.leader_epoch != self.leader_epoch:
            is_old = request.leader_epoch < self.leader_epoch
            return FENCED_LEADER_EPOCH if is_old else UNKNOWN_LEADER_EPOCH
        follower = self._followers.get(request.node)
        if follower is None:
            return NOT_A_REPLICA
        if request.broker_epoch != follower.broker_epoch:
            if request.broker_epoch < follower.broker_epoch:
                return FENCED_BROKER_EPOCH
            follower.begin_life(request.broker_epoch, self._available_end, now)
        offset = request.offset
        difference = self._difference(offset, request.last_epoch)
        if difference is not None:
            return difference
        was_at = follower.end
        good_fetches_max = self._policy.good_fetches_min
        end = self._available_end
        follower.fetched(offset, end, good_fetches_max, now, revision=request.revision)
        if offset != was_at:
            self._advance()
        return SERVE

    def _difference(self, offset: int, last_epoch: int) -> FetchDecision | None:
        """Return how a log with this end differs from ours, if it does."""
        if last_epoch == self.leader_epoch and self.log_start <= offset <= self.written_end:
            return None
        if last_epoch != NO_EPOCH:
            epoch, end = self.epochs.end_of(last_epoch, self.written_end)
            if epoch == NO_EPOCH:
                # All our records are newer. Before the start of our log, we know nothing.
                epoch, end, last_epoch = NO_EPOCH, self.log_start, NO_EPOCH
            # If both logs have the epoch, they agree as far as it goes in both.
            if epoch < last_epoch or end < offset:
                return FetchDecision(FetchKind.DIVERGING, epoch, end)
        if not self.log_start <= offset <= self.written_end:
            return FetchDecision(FetchKind.OUT_OF_RANGE, NO_EPOCH, self.log_start)
        return None

    def counts_fetches(self, node: int) -> bool:
        """Whether each fetch of a follower counts, also one that tells nothing new.

        It needs some in a row before it may join the ISR.
        """
        follower = self._followers.get(node)
        return follower is not None and follower.good_fetches < self._policy.good_fetches_min

    def node_gone(self, node: int, broker_epoch: int) -> None:
        """Note that a node's registration is gone. It leaves the ISR without waiting."""
        follower = self._followers.get(node)
        if follower is not None and follower.broker_epoch <= broker_epoch:
            follower.is_gone = True

    def follower(self, node: int) -> FollowerProgress | None:
        """Return the progress of a follower, for metrics and status."""
        return self._followers.get(node)

    # The state of the partition

    def state_changed(self, state: ReplicationState, now: float) -> bool:
        """Take the state that the store has; return False if this leader is deposed.

        Older states than the known one have no effect. The known one ends the wait after
        `proposal_refused`.
        """
        if self.is_fenced:
            return False
        if state.revision <= self.state.revision:
            self._waits_for_state &= state.revision < self.state.revision
            return True
        mine = (self.node, self.broker_epoch, self.leader_epoch)
        if (state.leader, state.leader_broker_epoch, state.leader_epoch) != mine:
            self.fence()
            return False
        self._take(state, now)
        self._advance()
        return True

    def fence(self) -> None:
        """Step down for good: the epoch is over, or this life of the node is."""
        self.is_fenced = True

    def proposal_refused(self) -> None:
        """Note that the store refused the last proposal. The shell reads the state again."""
        self._waits_for_answer = False
        self._waits_for_state = True

    def proposal_unknown(self) -> None:
        """Note that the outcome of the last proposal is unknown. The shell reads the state again.

        If the state is the same, the proposal may still take effect: the next `tick` proposes again
        to move the revision.
        """
        self._waits_for_answer = False

    def hand_over(self, successor: int, now: float) -> None:
        """Hand leadership over to a follower, as soon as it has everything.

        For a node that stops. The controller asks by `successor` of the state.
        """
        if self._successor == NO_NODE and successor in self._followers:
            self._successor = successor
            self._handed_over_since = now

    @property
    def can_propose(self) -> bool:
        """Whether no proposal of this leader waits for its answer, or for the state after it."""
        return not (self._waits_for_answer or self._waits_for_state or self.is_fenced)

    @property
    def is_handing_over(self) -> bool:
        """Whether `tick` should be called after every fetch, to hand over soon."""
        return self._successor != NO_NODE

    def tick(self, now: float) -> Proposal | None:
        """Return a change of the state to propose now, if there is one.

        Call it every 100 ms or so, and after `node_gone`. The answer goes to `state_changed` if the
        change was applied, else to `proposal_refused` or `proposal_unknown`.
        """
        if not self.can_propose:
            return None
        if self._successor != NO_NODE or self._is_resigned:
            return self._proposed_successor(now)
        is_urgent = len(self._maximal) > len(self.state.isr)
        leaving, joining = [], []
        for follower in self._followers.values():
            member = self.state.member(follower.node)
            is_member = member is not None and member.broker_epoch == follower.broker_epoch
            if member is not None and (follower.is_gone or self._is_behind(follower, now)):
                leaving.append(follower)
                is_urgent = is_urgent or follower.is_gone
            elif not is_member and self._may_propose(follower, now):
                joining.append(IsrMember(follower.node, follower.broker_epoch))
        if not (is_urgent or leaving or joining):
            return None
        leaving.sort(key=lambda follower: follower.end)
        isr = next_isr(
            self.state.isr,
            replicas=self.state.replicas,
            leaving=[follower.node for follower in leaving],
            joining=joining,
            min_insync=self.min_insync,
        )
        if isr == self.state.isr and len(self._maximal) == len(isr):
            return None
        if not is_urgent and (now < self._next_change_at or not self._limiter.take(now)):
            return None
        return self.propose_isr(isr, now)

    def propose_isr(self, isr: tuple[IsrMember, ...], now: float) -> Proposal:
        """Return the proposal of an ISR, and wait for its members from now on."""
        joined = tuple(member for member in isr if member not in self.state.isr)
        self._maximal |= set(isr)
        self._count()
        self._waits_for_answer = True
        self._next_change_at = now + self._policy.change_interval_seconds
        return Proposal(
            state=replace(self.state, isr=isr),
            revision=self.state.revision,
            nodes=(IsrMember(self.node, self.broker_epoch), *joined),
        )

    def may_join(self, node: int) -> bool:
        """Whether a follower has every committed record, as far as this leader knows."""
        return may_join(
            self._followers[node],
            high_watermark=self.high_watermark,
            epoch_start=self.epoch_start,
            revision=self.state.revision,
        )

    # Inside

    def _take(self, state: ReplicationState, now: float) -> None:
        """Take over a state of this epoch. No proposal for an older one can take effect now."""
        self.state = state
        self._maximal = frozenset(state.isr)
        self._waits_for_answer = False
        self._waits_for_state = False
        self._is_resigned = False
        self._followers = {
            node: self._followers.get(node) or FollowerProgress(node, self._available_end, now)
            for node in state.replicas
            if node != self.node
        }
        self._successor = NO_NODE
        if state.successor != NO_NODE:
            self.hand_over(state.successor, now)
        self._count()

    def _count(self) -> None:
        """Note for whose ends the high watermark waits."""
        self._members = self._progress_of(self.state.isr)
        self._counted = self._progress_of(self._maximal)

    def _progress_of(
        self, members: Iterable[IsrMember]
    ) -> tuple[tuple[FollowerProgress, int], ...]:
        followers = self._followers
        return tuple((followers[node], life) for node, life in members if node in followers)

    def _advance(self) -> bool:
        """Move the high watermark as far as it can go; return whether it moved."""
        end = self.synced_end
        for follower, broker_epoch in self._counted:
            if follower.broker_epoch != broker_epoch:
                return False
            end = min(end, follower.end)
        if end <= self.high_watermark or self.is_fenced:
            return False
        self.high_watermark = end
        return True

    def _lag_limit(self, follower: FollowerProgress, now: float) -> float:
        peers = [peer.lag(now) for peer in self._followers.values() if peer is not follower]
        return lag_limit(self._policy, peers)

    def _is_behind(self, follower: FollowerProgress, now: float) -> bool:
        # A follower is rarely behind for longer, so its peers are rarely looked at.
        if now - follower.behind_since <= self._policy.lag_seconds_min:
            return False
        return follower.lag(now) > self._lag_limit(follower, now)

    def _may_propose(self, follower: FollowerProgress, now: float) -> bool:
        """Whether a follower that is not in the ISR, or not in this life, should join it."""
        return (
            follower.good_fetches >= self._policy.good_fetches_min
            and not follower.is_gone
            and follower.node not in self.state.removing
            and not self._is_behind(follower, now)
            and self.may_join(follower.node)
        )

    def _proposed_successor(self, now: float) -> Proposal | None:
        """Return the proposal that ends this leader, or that ends the hand-over."""
        follower = self._followers.get(self._successor)
        member = self.state.member(self._successor)
        is_ready = (
            follower is not None
            and member is not None
            and not follower.is_gone
            and member.broker_epoch == follower.broker_epoch
            and follower.end >= self._available_end <= self.synced_end
        )
        is_late = now >= self._handed_over_since + self._policy.hand_over_seconds
        if is_ready and member is not None and not is_late:
            # It may take effect at any moment from now on, so nothing is answered any more.
            self._is_resigned = True
            successor = member
            state = replace(
                self.state,
                leader=member.node,
                leader_broker_epoch=member.broker_epoch,
                leader_epoch=self.leader_epoch + 1,
                successor=NO_NODE,
            )
        elif self._is_resigned or is_late:
            # Go on. A new revision makes sure that no earlier proposal takes effect.
            successor = IsrMember(self.node, self.broker_epoch)
            state = replace(self.state, successor=NO_NODE)
        else:
            return None
        self._waits_for_answer = True
        return Proposal(
            state=state,
            revision=self.state.revision,
            nodes=(IsrMember(self.node, self.broker_epoch), successor),
        )
