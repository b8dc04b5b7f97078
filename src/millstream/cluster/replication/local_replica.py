"""This node's replica of one partition: the machine of a leader or a follower, and its log.

    state of the partition changes ─► apply ─┬─ this node leads      LeaderReplica
                                             ├─ another one leads    FollowerReplica, fetched for
                                             └─ no replica here      the log is removed

Changes of role run one after the other, each to its end. The machines decide; this class opens,
truncates and writes the log, and tells the machines what is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topic import Topic
from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.control.proposer import ProposalOutcome
from millstream.cluster.epochs import EpochHistory
from millstream.cluster.follower import Cut, FollowerReplica, ReplicaStopped
from millstream.cluster.leader import UNAVAILABLE, AppendRefusal, LeaderReplica
from millstream.cluster.replica_fetch import ReplicaFetch
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication_state import NO_NODE, Proposal, ReplicationState
from millstream.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotLeader,
    NotLeaderAnymore,
    UnknownLeaderEpoch,
)
from millstream.storage.log import Log

logger = logging.getLogger(__name__)

ACKNOWLEDGE_SECONDS_MAX = 30.0
"""How long a batch may wait for replicas. Then its client is told that nobody knows: most have
given up by then."""


ANY_LIFE = 2**63 - 1
"""As a broker epoch: whichever life of a node is meant."""


class LocalReplica:
    """The replica of one partition on this node. Implements `PartitionReplica` of the broker."""

    def __init__(
        self, context: ReplicaContext, topic: Topic, partition: Partition, key: PartitionId
    ) -> None:
        self.key = key
        self.topic = topic
        self.partition = partition
        self.leader: LeaderReplica | None = None
        self.follower: FollowerReplica | None = None
        self.problem: str | None = None
        """Why the replica does not follow or lead as it should, if so."""
        self.on_leading: Callable[[LocalReplica, int | None], None] = lambda *_: None
        """Called with the leader epoch when this node leads, and with None when it stops."""
        self.on_news: Callable[[LocalReplica], None] = lambda _: None
        """Called when there is something new for the followers of this leader."""
        self.on_due: Callable[[LocalReplica], None] = lambda _: None
        """Called when the leader should look at its followers soon."""
        self._context = context
        self._is_present = False
        self._is_proposing = False
        self._may_be_copied = False
        """Whether the replica is to be copied again, once nobody counts on it."""

    def __str__(self) -> str:
        return str(self.partition)

    # What the broker asks.

    def check_present(self) -> None:
        """Raise unless this node has a replica of the partition."""
        if not self._is_present:
            raise self._not_leader()

    def check_leader(self) -> None:
        """Raise unless this node leads the partition, and may still believe so."""
        leader = self.leader
        if leader is None:
            raise self._not_leader()
        if not leader.may_answer(self._context.clock.monotonic()):
            raise NotLeader(f"{self}: node {self._context.node_id} is not sure to lead it any more")

    def check_in_sync(self, leader_epoch: int) -> None:
        """Raise unless this node follows the partition and is in sync.

        A node that is cut off from the cluster does not know whether it still is, so its lease has
        to be valid. A replica learns the epoch of its leader from metadata: its log has it only
        when there is a batch of it.
        """
        context = self._context
        state = context.state.partitions.get(self.key)
        if (
            state is None
            or not self._is_present
            or self.leader is not None
            or context.node_id not in state.isr_nodes
            or not context.membership.belief.is_valid(context.clock.monotonic())
        ):
            raise self._not_leader()
        if leader_epoch not in (-1, state.leader_epoch):
            is_old = leader_epoch < state.leader_epoch
            error = FencedLeaderEpoch if is_old else UnknownLeaderEpoch
            raise error(f"{self}: leader epoch is {state.leader_epoch}, got {leader_epoch}")

    @property
    def is_following(self) -> bool:
        """Whether another node leads the partition, or none does."""
        return self.leader is None

    def committed_end(self) -> int | None:
        """Return the end of the committed records; None if this node does not lead, or is not sure.

        The high watermark of a new leader may be lower than what its predecessor committed. It is
        sure when that has reached the start of its epoch.
        """
        if self.leader is None:
            return None
        end = self.leader.latest_offset(self._context.clock.monotonic())
        return None if end == UNAVAILABLE else end

    def check_append(self, *, is_all: bool) -> None:
        """Raise unless this node leads the partition and enough replicas are in sync."""
        leader = self.leader
        if self.topic.is_internal:  # Coordinators append to the log itself.
            raise InvalidRequest(f"topic {self.topic.name} is internal to the cluster")
        if leader is None:
            raise self._not_leader()
        refusal = leader.refuses_append(self._context.clock.monotonic(), acks_all=is_all)
        if refusal is None:
            return
        if refusal is AppendRefusal.NOT_ENOUGH_REPLICAS:
            now = self._context.clock.monotonic()
            raise NotEnoughReplicas(
                f"{self}: {leader.in_sync_count(now)} replicas are in sync, and min.insync.replicas"
                f" is {leader.min_insync}"
            )
        raise NotLeader(f"{self}: node {self._context.node_id} does not lead it: {refusal.value}")

    def _not_leader(self) -> NotLeader:
        state = self._context.state.partitions.get(self.key)
        node_id = self._context.node_id
        if state is None or state.leader not in self._context.state.nodes:
            return LeaderNotAvailable(f"{self} has no leader now")
        return NotLeader(
            f"{self} is led by node {state.leader}, this is node {node_id}",
            leader=state.leader,
            leader_epoch=state.leader_epoch,
        )

    async def prepare(self, log: Log) -> None:
        """Begin as a replica that shows what is known to be committed."""
        log.replication.set_high_watermark(log.replication.known_high_watermark)
        await log.replication.become_replica()

    # Roles.

    async def apply(self, state: ReplicationState | None) -> None:
        """Do what a new state of the partition asks for. Calls must not overlap."""
        context = self._context
        now = context.clock.monotonic()
        if self.leader is not None:
            if state is not None and self.leader.state_changed(state, now):
                return
            await self._step_down()
        if state is None or context.node_id not in state.replicas:
            self._leave()
            return
        self._is_present = True
        await self.partition.open()
        mine = (context.node_id, context.membership.broker_epoch)
        if (state.leader, state.leader_broker_epoch) == mine:
            await self._lead(state)
        else:
            await self._follow(state)

    async def end_life(self) -> None:
        """Stop leading and following: the registration of the node is gone."""
        self.follower = None
        if self.leader is not None:
            self.leader.fence()
            await self._step_down()

    async def _lead(self, state: ReplicationState) -> None:
        context, log = self._context, self.partition.log
        self.follower = None
        self.problem = None
        await log.replication.begin_epoch(state.leader_epoch)
        now = context.clock.monotonic()
        leader = LeaderReplica(
            node=context.node_id,
            broker_epoch=context.membership.broker_epoch,
            state=state,
            epochs=_epochs(log),
            log_start=log.start_offset,
            log_end=log.replication.durable_offset,
            high_watermark=log.end_offset,
            min_insync=context.min_insync(self.topic, len(state.target)),
            lease=context.membership.belief,
            policy=context.policy,
            limiter=context.limiter,
            now=now,
        )
        for node in state.replicas:
            if node != context.node_id and node not in context.state.nodes:
                leader.node_gone(node, ANY_LIFE)  # It left before this node led.
        self.partition.producers.lead(int(now * 1000))
        log.replication.watch(self._on_commit)
        self.leader = leader
        context.counters.leaders_begun += 1
        logger.info(
            "%s: node %d leads in epoch %d from offset %d, high watermark %d",
            self,
            context.node_id,
            state.leader_epoch,
            leader.epoch_start,
            leader.high_watermark,
        )
        self._on_commit()
        self.on_leading(self, state.leader_epoch)

    async def _step_down(self) -> None:
        """Stop leading: refuse what is not committed, and keep it only as a replica."""
        leader, self.leader = self.leader, None
        assert leader is not None
        log = self.partition.log
        log.replication.unwatch(self._on_commit)
        self.on_leading(self, None)
        error = NotLeaderAnymore(
            f"{self}: node {self._context.node_id} stopped leading it before the batch was on"
            " enough replicas"
        )
        log.replication.refuse_unreplicated(error)
        self.partition.forget_uncommitted()
        await log.replication.become_replica()
        self._read_waiting(log)
        logger.info("%s: node %d stopped leading it", self, self._context.node_id)

    async def _follow(self, state: ReplicationState) -> None:
        context, log = self._context, self.partition.log
        if self.follower is not None:
            if self.follower.broker_epoch == context.membership.broker_epoch:
                self.follower.state_changed(state)
                await self._restart_if_allowed(state)
                return
        else:
            self._read_waiting(log)
        end = log.replication.position
        self.follower = FollowerReplica(
            node=context.node_id,
            broker_epoch=context.membership.broker_epoch,
            state=state,
            epochs=_epochs(log),
            log_start=log.start_offset,
            log_end=log.replication.durable_offset,
            high_watermark=log.end_offset,
            segment_base=end.segment,
            position=end.position,
        )

    def _read_waiting(self, log: Log) -> None:
        """Read what the batches behind the high watermark tell about producers."""
        producers = self.partition.producers
        producers.truncate(0)
        offset = log.end_offset
        while offset < log.replication.durable_offset:
            slice_ = log.replication.read(offset)
            producers.add(slice_.data)
            offset = slice_.next_offset

    def _leave(self) -> None:
        self.follower = None
        self._is_present = False

    def forget(self) -> None:
        """End the replica: its topic was deleted, and its log with it."""
        if self.leader is not None:
            self.leader.fence()
            self.leader = None
            self.on_leading(self, None)
        self._leave()

    # Leading.

    def _on_commit(self) -> None:
        """Tell the machine what is durable, and readers what is committed."""
        leader = self.leader
        if leader is None:
            return
        log = self.partition.log
        end = log.replication.durable_offset
        if end != leader.written_end:
            leader.written(end, self._context.clock.monotonic())
        leader.synced(end)
        if log.start_offset != leader.log_start:
            leader.started_at(log.start_offset)
        self.publish_high_watermark()
        self.on_news(self)

    def publish_high_watermark(self) -> None:
        """Let readers see what the leader knows to be committed, and answer its producers."""
        leader = self.leader
        if leader is not None and leader.high_watermark != self.partition.log.end_offset:
            self.partition.log.replication.set_high_watermark(leader.high_watermark)

    def tick(self) -> Coroutine[Any, Any, None] | None:
        """Return a change of the ISR, or of the leader, to carry out, if it is time for one."""
        leader = self.leader
        if leader is None or self._is_proposing:
            return None
        leader.min_insync = self._context.min_insync(self.topic, len(leader.state.target))
        self.partition.log.replication.expire_unreplicated(ACKNOWLEDGE_SECONDS_MAX)
        proposal = leader.tick(self._context.clock.monotonic())
        if proposal is None:
            return None
        self._is_proposing = True
        return self._propose(leader, proposal)

    async def _propose(self, leader: LeaderReplica, proposal: Proposal) -> None:
        context = self._context
        before = len(leader.state.isr)
        try:
            outcome = await context.proposer.propose(self.key, proposal)
        finally:
            self._is_proposing = False
        if outcome is ProposalOutcome.APPLIED:
            change = len(proposal.state.isr) - before
            context.counters.isr_shrinks += change < 0
            context.counters.isr_growths += change > 0
            if change:
                logger.info("%s: the ISR is %s", self, list(proposal.state.isr_nodes))
        elif outcome is ProposalOutcome.REFUSED:
            leader.proposal_refused()
        else:
            leader.proposal_unknown()
        state = context.state.partitions.get(self.key)
        if state is not None and self.leader is leader:
            leader.state_changed(state, context.clock.monotonic())
            self.publish_high_watermark()

    def hand_over(self) -> bool:
        """Hand leadership to another member of the ISR; return whether there is one."""
        leader = self.leader
        if leader is None:
            return False
        nodes = self._context.state.nodes
        successors = [
            node
            for node in leader.state.replicas
            if node != leader.node
            and leader.state.member(node) is not None
            and node in nodes
            and not nodes[node].is_stopping
        ]
        if not successors:
            return False
        leader.hand_over(successors[0], self._context.clock.monotonic())
        return True

    # Following.

    @property
    def leader_id(self) -> int:
        """The node to fetch from; -1 if there is none, or this node leads."""
        follower = self.follower
        if follower is None or follower.stopped is not None:
            return NO_NODE
        return follower.leader

    def advance(self) -> None:
        """Let readers see what is committed at the follower."""
        follower = self.follower
        log = self.partition.log
        if follower is not None and follower.high_watermark > log.end_offset:
            now_ms = int(self._context.clock.monotonic() * 1000)
            self.partition.producers.commit(follower.high_watermark, now_ms)
            log.replication.set_high_watermark(follower.high_watermark)

    async def truncate(self, fetch: ReplicaFetch, epoch: int, end: int) -> None:
        """Remove what the leader does not have, unless that was committed."""
        follower = self.follower
        if follower is None:
            return
        decision = follower.diverging(fetch, epoch, end)
        if isinstance(decision, ReplicaStopped):
            self.problem = f"{self}: the replica is stopped: {decision.reason}"
            logger.error("%s", self.problem)
        elif isinstance(decision, Cut):
            await self._cut(follower, decision.offset)

    async def _cut(self, follower: FollowerReplica, offset: int) -> None:
        log = self.partition.log
        before = log.replication.durable_offset
        self.partition.producers.truncate(offset)
        is_forced = offset < log.replication.known_high_watermark  # After an unclean election.
        result = await log.replication.truncate(offset, is_forced=is_forced)
        self._context.counters.truncations += 1
        logger.warning("%s: truncated from offset %d to %d", self, before, result.end_offset)
        if is_forced:
            await self.partition.reopen()  # What is known of producers may be of lost records.
            await self.begin_again()
            return
        position = log.replication.position
        follower.cut_to(
            result.end_offset, segment_base=position.segment, position=position.position
        )

    def stop(self, reason: str) -> None:
        """Stop following until this node is out of the ISR: then it may begin again."""
        self.problem = f"{self}: {reason}; it is copied again once the node is out of the ISR"
        logger.error("%s", self.problem)
        self._context.counters.mismatches += 1
        follower = self.follower
        if follower is not None and follower.stopped is None:
            self._may_be_copied = True
            follower.stopped = ReplicaStopped(follower.written_end, follower.high_watermark, reason)

    async def begin_again(self) -> None:
        """Follow from where the log is: a write failed, and the machine expected more."""
        self.follower = None
        state = self._context.state.partitions.get(self.key)
        if state is not None and self.leader is None:
            await self._follow(state)

    async def restart_at(self, offset: int) -> None:
        """Empty the replica: its leader's log begins at `offset`, behind the end of this one."""
        await self.partition.log.replication.restart_at(offset)
        await self.partition.reopen()  # Nothing is known of its producers any more.
        self._context.counters.restarts += 1
        logger.warning("%s: emptied; it begins at offset %d, as at its leader", self, offset)
        await self.begin_again()

    async def _restart_if_allowed(self, state: ReplicationState) -> None:
        """Copy a stopped replica again once nobody counts on it."""
        follower = self.follower
        is_member = state.member(self._context.node_id) is not None
        if follower is not None and self._may_be_copied and not is_member:
            self.problem = None
            self._may_be_copied = False
            await self.restart_at(self.partition.log.start_offset)


def _epochs(log: Log) -> EpochHistory:
    return EpochHistory((epoch.number, epoch.start_offset) for epoch in log.partition.epochs)
