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
from dataclasses import dataclass
from typing import Any

from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topic import Topic
from millstream.clock import Clock
from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.control.proposer import ProposalOutcome
from millstream.cluster.epochs import NO_EPOCH, EpochHistory
from millstream.cluster.follower import Cut, FollowerReplica, ReplicaStopped
from millstream.cluster.leader import UNAVAILABLE, AppendRefusal, LeaderReplica
from millstream.cluster.repair import CommittedEnd, may_remove_files
from millstream.cluster.replica_fetch import ReplicaFetch
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication_state import NO_NODE, Proposal, ReplicationState
from millstream.errors import (
    CorruptData,
    DamagedRecords,
    FencedLeaderEpoch,
    InvalidRequest,
    LeaderNotAvailable,
    MillstreamError,
    NotEnoughReplicas,
    NotLeader,
    NotLeaderAnymore,
    Unavailable,
    UnknownFormat,
    UnknownLeaderEpoch,
)
from millstream.storage.log import Log
from millstream.storage.segment.replica_slice import ReplicaSlice

logger = logging.getLogger(__name__)

ACKNOWLEDGE_SECONDS_MAX = 30.0
"""How long a batch may wait for replicas. Then its client is told that nobody knows: most have
given up by then."""

REPAIR_SECONDS_MAX = 60.0
"""How long readers of damaged records are asked to try again, while these are copied from another
replica. Then they are told that the records are damaged.
"""

ANY_LIFE = 2**63 - 1
"""As a broker epoch: whichever life of a node is meant."""

ANY_OFFSET = 2**63 - 1
"""As an end: greater than every offset."""


@dataclass(slots=True)
class ResyncProgress:
    """How far a copy of whole segments is."""

    source: int
    """The node that they come from."""
    bytes_total: int
    bytes_done: int = 0

    @property
    def bytes_left(self) -> int:
        return max(0, self.bytes_total - self.bytes_done)


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
        # Each problem has one owner, which sets and clears it. With one for all, nobody would know
        # whether the last one who set it is the one whose problem is over.
        self.role_problem: str | None = None
        """Why the replica could not take its role. Of `ReplicaManager`."""
        self.repair_problem: str | None = None
        """Why the last attempt to repair it failed. Of `ReplicaRepair`."""
        self.follow_problem: str | None = None
        """Why it stopped following; ends when it follows again."""
        self.on_leading: Callable[[LocalReplica, int | None], None] = lambda *_: None
        """Called with the leader epoch when this node leads, and with None when it stops."""
        self.on_news: Callable[[LocalReplica], None] = lambda _: None
        """Called when there is something new for the followers of this leader."""
        self.on_high_watermark: Callable[[LocalReplica], None] = lambda _: None
        """Called when this leader has told its readers of a new high watermark."""
        self.on_due: Callable[[LocalReplica], None] = lambda _: None
        """Called when the leader should look at its followers soon."""
        self._context = context
        self.is_present = False
        """Whether this node has a replica of the partition."""
        self._is_proposing = False
        self._cleaned: dict[int, int] = {}
        """By node: up to which offset a follower has compacted its log, in this epoch."""
        self._lacks_records = False
        """Whether clients must not read here: the replica lacks records that were committed."""
        self._has_looked = False
        """Whether it was looked where the records come from that the node found at its start."""
        self.resync: ResyncProgress | None = None
        """Progress of copying whole segments, while that is done."""
        self.is_unproved = False
        """Whether all segments have to be compared with the leader's before it follows."""
        self.is_end_lost = False
        """Whether the end of the log cannot be trusted."""
        self.is_disowned = False
        """Whether the node has said in the metadata store that this replica lacks records."""
        self.was_damaged = False
        """Whether batches behind the high watermark could not be read when it began to follow."""
        self.is_far_behind = False
        """Whether the leader has finished segments behind the end of this replica."""
        self._damage_met_at: float | None = None
        """When a reader first met damage that is not repaired yet."""
        self.slices_until = 0
        """Offset up to which records are fetched and no segments: that is not worth it."""

    def __str__(self) -> str:
        return str(self.partition)

    @property
    def problem(self) -> str | None:
        """Why the replica does not follow or lead as it should, if so."""
        return self.repair_problem or self.role_problem or self.follow_problem

    # What the broker asks.

    def check_present(self) -> None:
        """Raise unless this node has a replica of the partition that may be read."""
        if not self.is_present or (self._lacks_records and self.leader is None):
            raise self._not_leader()

    @property
    def is_in_sync(self) -> bool:
        """Whether this node leads the partition, or its replica is in the ISR.

        Any other replica is being copied, or is behind: readers are better served by the leader.
        """
        if self.leader is not None:
            return True
        state = self._context.state.partitions.get(self.key)
        return self.is_present and state is not None and state.is_counted(self._context.node_id)

    def check_end(self) -> None:
        """Raise unless this node leads, and shows readers everything that was committed."""
        self.check_leader()
        leader = self.leader
        assert leader is not None
        if leader.latest_offset(self._context.clock.monotonic()) == UNAVAILABLE:
            raise LeaderNotAvailable(f"{self}: node {self._context.node_id} is taking it over")

    def leader_node(self) -> int:
        """Return the node that leads the partition; raises if none does, or if it is this one.

        This node may have been elected a moment ago, and not lead yet.
        """
        refusal = self._not_leader()
        if refusal.leader in (NO_NODE, self._context.node_id):
            raise LeaderNotAvailable(f"{self} has no leader now")
        return refusal.leader

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
            or not self.is_present
            or self.leader is not None
            or not state.is_counted(context.node_id)
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
            raise self._not_enough(leader)
        raise NotLeader(f"{self}: node {self._context.node_id} does not lead it: {refusal.value}")

    def _not_enough(self, leader: LeaderReplica) -> NotEnoughReplicas:
        count = leader.in_sync_count(self._context.clock.monotonic())
        return NotEnoughReplicas(
            f"{self}: {count} replicas are in sync, and min.insync.replicas is {leader.min_insync}"
        )

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

    def awaits_repair(self) -> bool:
        """Return whether damaged records are going to be copied from another replica soon.

        While all nodes that may have them are down, the time does not run: a repair has to have
        its chance before a reader gives the records up, or a queue buries its jobs.
        """
        context = self._context
        state = context.state.partitions.get(self.key)
        if state is None:
            return False
        if self.repair_sources():
            now = context.clock.monotonic()
            if self._damage_met_at is None:
                self._damage_met_at = now
            return now - self._damage_met_at < REPAIR_SECONDS_MAX
        self._damage_met_at = None
        others = [node for node in state.replicas if node != context.node_id]
        return any(node not in context.state.nodes for node in others)

    def note_repaired(self) -> None:
        """Note that nothing is damaged any more."""
        self._damage_met_at = None

    def repair_sources(self) -> list[int]:
        """Return the live nodes from which finished segments can be copied."""
        context = self._context
        state = context.state.partitions.get(self.key)
        if state is None or context.node_id not in state.replicas:
            return []
        if self.leader is None:
            nodes = [state.leader]
        else:
            nodes = [member.node for member in state.isr if state.is_counted(member.node)]
        return [n for n in nodes if n != context.node_id and n in context.state.nodes]

    async def prepare(self, log: Log) -> None:
        """Begin as a replica that shows what is known to be committed."""
        log.replication.set_high_watermark(log.replication.known_high_watermark)
        if log.offline is None:  # Else it is repaired first.
            await log.replication.become_replica()
        await log.replication.decisions.settle()

    # What the log asks before it decides something: `DecisionHooks`.

    def check_decision(self) -> None:
        """Raise unless this node leads the partition and enough replicas are in sync."""
        leader, now = self.leader, self._context.clock.monotonic()
        if leader is None or not leader.may_answer(now):
            raise self._not_leader()
        if leader.refuses_append(now, acks_all=True) is AppendRefusal.NOT_ENOUGH_REPLICAS:
            raise self._not_enough(leader)

    def cleaned_offset(self) -> int:
        """Return the offset up to which every other replica has compacted its log."""
        leader = self.leader
        others = () if leader is None else leader.state.replicas
        mine = self._context.node_id
        return min((self._cleaned.get(n, 0) for n in others if n != mine), default=ANY_OFFSET)

    def note_cleaned(self, node: int, offset: int) -> None:
        """Note up to which offset a follower has compacted its log."""
        self._cleaned[node] = offset

    # Roles.

    async def apply(self, state: ReplicationState | None) -> None:
        """Do what a new state of the partition asks for. Calls must not overlap."""
        context = self._context
        now = context.clock.monotonic()
        if self.leader is not None:
            if state is not None and self.leader.state_changed(state, now):
                # Who asks the leader whether it shows all that was committed reads the log next.
                self.publish_high_watermark()
                return
            await self._step_down()
        if state is None or context.node_id not in state.replicas:
            self._leave()
            return
        if state.is_counted(context.node_id):
            self._lacks_records = False
        elif self.follower is None:
            # Before it is shown as present. A follower that is late later on may still be read.
            self._lacks_records = True
        was_present, self.is_present = self.is_present, True
        await self.partition.open_log()
        if not was_present:
            self.partition.note_moved()
        mine = (context.node_id, context.membership.broker_epoch)
        if (state.leader, state.leader_broker_epoch) == mine:
            await self._lead(state)
        else:
            await self._settle_writes()
            await self._follow(state)

    async def _settle_writes(self) -> None:
        """Wait for the writes of a former life of the node before the replica follows in this one.

        It follows from what is durable. What came to that later would be sent once more.
        """
        life = self._context.membership.broker_epoch
        if self.follower is None or self.follower.broker_epoch != life:
            self.follower = None
            await self.partition.log.replication.settle_writes()

    async def end_life(self) -> None:
        """Stop leading and following: the registration of the node is gone."""
        self.follower = None
        if self.leader is not None:
            self.leader.fence()
            await self._step_down()

    async def _lead(self, state: ReplicationState) -> None:
        context, log = self._context, self.partition.log
        self.follower = self.follow_problem = None
        if state.leader_epoch in state.unclean_epochs:
            await self._accept_loss(log)
            log = self.partition.log
        self._has_looked = True
        self.is_unproved = self.is_end_lost = self.is_far_behind = self.is_disowned = False
        await log.replication.decisions.settle()
        await log.replication.begin_epoch(state.leader_epoch)
        now = context.clock.monotonic()
        leader = LeaderReplica(
            node=context.node_id,
            broker_epoch=context.membership.broker_epoch,
            state=state,
            epochs=_epochs(log),
            # Followers begin where the first file does, so that theirs are equal.
            log_start=log.replication.first_offset,
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
        self._cleaned.clear()
        log.replication.decisions.hooks = self
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
        self.on_news(self)
        self.on_leading(self, state.leader_epoch)

    async def _accept_loss(self, log: Log) -> None:
        """Make the log usable as it is: an operator has decided that it leads."""
        await self._context.high_watermarks.lower(self.key, 0)
        if log.offline is not None:
            await self.partition.reopen(removes_damaged_end=True)

    async def _step_down(self) -> None:
        """Stop leading: refuse what is not committed, and keep it only as a replica."""
        leader, self.leader = self.leader, None
        assert leader is not None
        log = self.partition.log
        log.replication.unwatch(self._on_commit)
        log.replication.decisions.hooks = None
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
                return
        else:
            self._read_waiting(log)
        if not self._has_looked:
            self._has_looked = True
            is_counted = state.is_counted(context.node_id)
            is_known = is_counted or context.high_watermarks.get(self.key) is not None
            if not is_known and log.replication.durable_offset > log.start_offset:
                self.is_unproved = True  # Somebody has put files here.
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
        if not self.is_repaired:  # Else it does not fetch yet.
            self.follow_problem = None

    def _read_waiting(self, log: Log) -> None:
        """Read what the batches behind the high watermark tell about producers."""
        producers = self.partition.producers
        producers.truncate(0)
        self.was_damaged = False
        offset = log.end_offset
        while offset < log.replication.durable_offset:
            try:
                slice_ = log.replication.read(offset)
            except DamagedRecords:  # It is repaired, and then opened again.
                self.was_damaged = True
                return
            producers.add(slice_.data)
            offset = slice_.next_offset

    def _leave(self) -> None:
        self.follower = None
        was_present, self.is_present = self.is_present, False
        self.is_unproved = self.is_end_lost = self.is_far_behind = self.was_damaged = False
        self.is_disowned = False
        self.role_problem = self.repair_problem = self.follow_problem = None
        if was_present:
            self.partition.note_moved()

    def forget(self) -> None:
        """End the replica: its topic was deleted, and its log with it."""
        if self.leader is not None:
            self.leader.fence()
            self.leader = None
            self.on_leading(self, None)
        self._leave()

    # Leading.

    def _on_commit(self) -> None:
        """Tell the machine what is written and durable, followers and readers what they may have.

        Followers fetch what is written while it is synced here: the syncs of all replicas run at
        the same time.
        """
        leader = self.leader
        if leader is None:
            return
        log = self.partition.log
        end = log.replication.written_offset
        is_news = end > leader.written_end
        if is_news:
            leader.written(end, self._context.clock.monotonic())
        leader.synced(log.replication.durable_offset)
        if log.replication.first_offset != leader.log_start:
            leader.started_at(log.replication.first_offset)
        self.publish_high_watermark()
        if is_news:
            self.on_news(self)

    def publish_high_watermark(self) -> None:
        """Let readers see what the leader knows to be committed, and answer its producers."""
        leader = self.leader
        if leader is None or leader.high_watermark == self.partition.log.end_offset:
            return
        if self.partition.log.replication.set_high_watermark(leader.high_watermark):
            self.on_high_watermark(self)

    def tick(self) -> Coroutine[Any, Any, None] | None:
        """Return a change of the ISR, or of the leader, to carry out, if it is time for one."""
        leader = self.leader
        if leader is None or self._is_proposing:
            return None
        leader.min_insync = self._context.min_insync(self.topic, len(leader.state.target))
        log = self.partition.log
        log.replication.expire_unreplicated(ACKNOWLEDGE_SECONDS_MAX)
        if log.offline is not None:
            leader.log_failed()
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
        except MillstreamError as error:
            # Nobody knows whether it was made, so the leader has to wait for another revision.
            logger.warning("%s: a change of the ISR failed: %s", self, error)
            outcome = ProposalOutcome.UNKNOWN
        except Exception:  # Else this leader would wait for the answer, and change no ISR again.
            context.counters.internal_errors += 1
            logger.exception("%s: a change of the ISR failed", self)
            outcome = ProposalOutcome.UNKNOWN
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

    @property
    def clock(self) -> Clock:
        """The clock of the node."""
        return self._context.clock

    def hand_over(self) -> bool:
        """Hand leadership to another member of the ISR; return whether there may be one soon.

        Before another node has joined the ISR, nobody could lead after this one. Then call it again
        in a moment.
        """
        leader = self.leader
        if leader is None:
            return False
        nodes = self._context.state.nodes
        others = [
            node
            for node in leader.state.replicas
            if node != leader.node and node in nodes and not nodes[node].is_stopping
        ]
        for node in others:
            if leader.state.is_counted(node):
                leader.hand_over(node, self._context.clock.monotonic())
                break
        return bool(others)

    # Following.

    @property
    def leader_id(self) -> int:
        """The node to fetch from; -1 if there is none, or this node leads or is repaired."""
        follower = self.follower
        if follower is None or follower.stopped is not None or self.is_repaired:
            return NO_NODE
        return follower.leader

    def asks(self, fetch: ReplicaFetch) -> bool:
        """Return whether a fetch that was sent is what this replica would ask its leader now."""
        follower = self.follower
        return follower is not None and follower.is_asked(fetch) and not self.is_repaired

    @property
    def is_repaired(self) -> bool:
        """Whether the replica does not follow record by record, because more is needed first."""
        return self.is_unproved or self.is_end_lost or self.is_far_behind

    def should_copy(self, fetch: ReplicaFetch, source: ReplicaSlice, high_watermark: int) -> bool:
        """Whether the leader may have whole segments behind the end of this replica.

        A replica in sync is never at the start of a segment with committed records.
        """
        begins_segment = source.segment == fetch.offset and source.position == 0
        is_behind = source.next_offset < high_watermark
        return begins_segment and is_behind and fetch.offset >= self.slices_until

    def advance(self) -> None:
        """Let readers see what is committed at the follower."""
        follower = self.follower
        if follower is None:
            return
        log = self.partition.log
        if follower.high_watermark > log.end_offset:
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
            self.follow_problem = f"{self}: the replica is stopped: {decision.reason}"
            logger.error("%s", self.follow_problem)
        elif isinstance(decision, Cut):
            await self._cut(follower, decision.offset)

    async def _cut(self, follower: FollowerReplica, offset: int) -> None:
        log = self.partition.log
        before = log.replication.durable_offset
        self.partition.producers.truncate(offset)
        is_forced = offset < log.replication.known_high_watermark  # After an unclean election.
        if is_forced:
            await self._context.high_watermarks.lower(self.key, offset)
        applied = log.replication.decisions.applied
        if is_forced and applied is not None and offset < applied.offset:
            # What was decided behind that offset is applied to what is left. It cannot be undone.
            await self.restart_at(log.start_offset)
            return
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
        """Stop following until all segments were compared with those of the leader."""
        self.follow_problem = (
            f"{self}: {reason}; it is compared with its leader's, segment by segment"
        )
        logger.error("%s", self.follow_problem)
        self._context.counters.mismatches += 1
        follower = self.follower
        if follower is not None and follower.stopped is None:
            self.is_unproved = True
            follower.stopped = ReplicaStopped(follower.written_end, follower.high_watermark, reason)

    async def begin_again(self) -> None:
        """Follow from where the log is: a write failed, and the machine expected more."""
        self.follower = None
        state = self._context.state.partitions.get(self.key)
        if state is not None and self.leader is None:
            await self._follow(state)

    async def restart_at(self, offset: int, *, tombstones_copied: int = 0) -> None:
        """Empty the replica, and copy its leader's log from `offset` on, where that begins.

        `tombstones_copied` is up to where tombstones may be missing from the leader's log.
        """
        await self.partition.log.replication.restart_at(offset, tombstones_copied=tombstones_copied)
        await self.partition.reopen()  # Nothing is known of its producers any more.
        self._context.counters.restarts += 1
        logger.warning("%s: emptied; it begins at offset %d, as at its leader", self, offset)
        await self.begin_again()

    def committed_end(self) -> CommittedEnd:
        """Return what the log has that is committed and durable. The partition is open."""
        log = self.partition.log
        offset = min(log.end_offset, log.replication.durable_offset)
        has_records = offset > log.start_offset
        return CommittedEnd(offset, log.partition.epoch_at(offset - 1) if has_records else NO_EPOCH)

    # Repair. These run like changes of the role: one after the other.

    async def recover_end(self, last_base: int | None) -> None:
        """Remove what is damaged at the end of the log; its leader sends it again."""
        self.follower = None
        self._lacks_records = True
        # If this fails, the log may be closed, and nothing else tells that it has to be repaired.
        self.is_end_lost = True
        partition = self.partition
        if not partition.is_open:
            await self._open_or_remove()
        elif partition.log.offline is not None:
            await partition.reopen(removes_damaged_end=True)
        elif last_base is not None:
            await self.cut_unproved(last_base)
            await partition.reopen()
        self.is_end_lost = self.is_disowned = False
        self.slices_until = 0
        await self.begin_again()

    async def _open_or_remove(self) -> None:
        """Open a log that could not be opened before, or begin with an empty one.

        Its leader has everything; but to fetch it again takes long, and is not necessary if only
        the disk was full, or works again by now.
        """
        try:
            await self.partition.reopen(removes_damaged_end=True)
        except (Unavailable, UnknownFormat):
            raise  # It can be opened later, or by a later release.
        except (MillstreamError, OSError) as error:
            logger.warning("%s: its log is removed: %s", self, error)
            await self.partition.remove_log()
            await self.partition.open_log()

    async def cut_unproved(self, offset: int) -> None:
        """Remove what is from `offset` on, committed or not: the leader has it."""
        self.follower = None
        self._lacks_records = True
        log = self.partition.log
        self.partition.producers.truncate(0)
        before = log.replication.durable_offset
        if offset <= log.start_offset:
            await log.replication.restart_at(offset)
        else:
            try:
                await log.replication.truncate(offset, is_forced=True)
            except CorruptData:  # Damaged before that too: nothing is worth keeping.
                await log.replication.restart_at(log.replication.first_offset)
        self._context.counters.truncations += 1
        end = log.replication.durable_offset
        logger.warning("%s: truncated from offset %d to %d for repair", self, before, end)

    async def finish_resync(self, high_watermark: int, sealed_end: int) -> None:
        """Follow the leader again, with the segments that were copied."""
        self.follower = None
        replication = self.partition.log.replication
        # All of it is equal to the leader's, so its high watermark holds here as well.
        replication.set_high_watermark(min(high_watermark, replication.durable_offset))
        replication.store_watermark()
        await replication.resync.discard_parts()
        await self.partition.reopen()  # The producers of the copied batches are to be known.
        self.is_unproved = self.is_far_behind = self.is_disowned = False
        # What comes next is not finished yet, however much it is.
        self.slices_until = max(sealed_end, self.partition.log.replication.durable_offset + 1)
        await self.begin_again()

    async def remove_files(self) -> None:
        """Remove what this node has of the partition: it is on other nodes now."""
        context = self._context
        state = context.state.partitions.get(self.key)
        min_insync = 1 if state is None else context.min_insync(self.topic, len(state.target))
        if (
            state is None
            or self.is_present
            or not may_remove_files(state, context.node_id, min_insync=min_insync)
        ):
            return
        await self.partition.remove_log()
        self._has_looked = False
        context.counters.removed_replicas += 1
        logger.info("%s: files were removed: its replicas are %s", self, list(state.replicas))

    async def reopen(self) -> None:
        """Open the partition again: what could not be read before can be now."""
        self.follower = None
        await self.partition.reopen()
        await self.begin_again()


def _epochs(log: Log) -> EpochHistory:
    return EpochHistory((epoch.number, epoch.start_offset) for epoch in log.partition.epochs)
