"""Changes of the cluster that operators ask for: `ClusterAdmin` of `broker.cluster_admin`.

Each change of a partition is one proposal: compare and set on the revision of its state. A proposal
that was overtaken is made again from the state that was found. The leader and the controller carry
out what the state asks for: they hand over, copy and remove replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from millstream.broker.cluster_admin import (
    FollowerStatus,
    LeaderElection,
    NodeRemoval,
    NodeStatus,
    PartitionStatus,
    Reassignment,
    ReplicaMove,
    ReplicaStatus,
    ResyncStatus,
    replica_status,
)
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock
from millstream.cluster import controller
from millstream.cluster.control.cluster_state import ClusterState, PartitionId
from millstream.cluster.control.proposer import ProposalOutcome, Proposer
from millstream.cluster.control.removed_nodes import removed_key
from millstream.cluster.control.replication_factor import min_insync_of
from millstream.cluster.control.shared_topics import check_assignment
from millstream.cluster.isr import UNKNOWN_END, FollowerProgress
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication_state import NO_NODE, Proposal, ReplicationState
from millstream.errors import (
    ElectionNotNeeded,
    InvalidAssignment,
    InvalidRequest,
    LeaderNotAvailable,
    NoEligibleLeader,
    NoReassignment,
    OutcomeUnknown,
    Unavailable,
)
from millstream.metadata.interface import Metadata
from millstream.records.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 8
"""Proposals of one change that may be overtaken by other changes."""

ATTEMPT_SECONDS = 0.05
"""Time before the second attempt. It grows with each one."""

ELECTION_SECONDS_MAX = 15.0
"""How long a request waits until the new leader leads."""

REPLICA_BYTES = 16 * 1024 * 1024
"""What an empty replica costs a node, as bytes of data: connections, files, memory."""

MOVES_AT_ONCE = 32


class PeerLink(NamedTuple):
    """What a node knows of its connections to another one."""

    drift_ms: int | None = None
    breaker: str | None = None


class PeerLinks(Protocol):
    """The connections of this node to the others."""

    def link(self, node_id: int) -> PeerLink:
        """Return what is known of the connections to a node."""
        ...

    def trip(self, node_id: int) -> None:
        """Send no more requests to a node until `reset`."""
        ...

    def reset(self, node_id: int) -> None:
        """Send requests to a node again."""
        ...


class ClusterAdministrator:
    """Administration of the cluster, by any of its nodes."""

    def __init__(
        self,
        metadata: Metadata,
        state: ClusterState,
        proposer: Proposer,
        topics: Callable[[], Topics],
        replicas: Mapping[PartitionId, LocalReplica],
        *,
        node_id: int,
        clock: Clock,
    ) -> None:
        """`replicas` are those of this node."""
        self._node_id = node_id
        self._metadata = metadata
        self._state = state
        self._proposer = proposer
        self._topics = topics
        self._replicas = replicas
        self._clock = clock
        self.links: PeerLinks | None = None
        """The connections to other nodes. None until they are there."""

    # Status.

    def nodes(self) -> Sequence[NodeStatus]:
        """Return all nodes, also those that are gone and have replicas."""
        state = self._state
        leaders = Counter(known.leader for known in state.partitions.values())
        replicas = Counter(node for known in state.partitions.values() for node in known.replicas)
        return [
            self._node(node_id, leaders[node_id], replicas[node_id])
            for node_id in sorted({*state.nodes, *replicas, *state.removed})
        ]

    def _node(self, node_id: int, leaders: int, replicas: int) -> NodeStatus:
        state, row = self._state, self._state.nodes.get(node_id)
        is_removed = node_id in state.removed
        if row is None:
            return NodeStatus(node_id, is_alive=False, is_removed=is_removed, replicas=replicas)
        link = PeerLink() if self.links is None else self.links.link(node_id)
        return NodeStatus(
            node_id,
            is_alive=True,
            is_controller=node_id == state.controller_id,
            is_stopping=row.is_stopping,
            is_removed=is_removed,
            kafka=str(row.kafka_endpoint),
            http=row.http_url,
            peer=str(row.peer_endpoint),
            rack=row.rack,
            release=row.release,
            started_ms=row.started_ms,
            broker_epoch=row.broker_epoch,
            leaders=leaders,
            replicas=replicas,
            drift_ms=link.drift_ms,
            breaker=link.breaker,
        )

    # Connections.

    def trip_breaker(self, node_id: int) -> str | None:
        """Send no more requests to a node; return the state of its breaker."""
        links = self._check_peer(node_id)
        links.trip(node_id)
        logger.warning("an operator stopped all requests to node %d", node_id)
        return links.link(node_id).breaker

    def reset_breaker(self, node_id: int) -> str | None:
        """Send requests to a node again; return the state of its breaker."""
        links = self._check_peer(node_id)
        links.reset(node_id)
        logger.warning("an operator allowed requests to node %d again", node_id)
        return links.link(node_id).breaker

    def _check_peer(self, node_id: int) -> PeerLinks:
        """Return the connections if a node is another one of this cluster."""
        others = [node.node_id for node in self.nodes() if node.node_id != self._node_id]
        if self.links is None or node_id not in others:
            raise InvalidRequest(
                f"node must be another one than the node that has the circuit breaker, one of"
                f" {others}, got {node_id}"
            )
        return self.links

    def partition(self, topic: str, index: int) -> PartitionStatus:
        """Return where a partition is."""
        key = self._key(topic, index)
        found = self._topics().get(topic)
        state, name = self._state.partitions.get(key), TopicPartition(topic, index)
        if state is None:
            return PartitionStatus(name, NO_NODE, -1, (), (), min_insync_of(found, 1))
        nodes = self._state.nodes
        return PartitionStatus(
            name,
            leader=state.leader if state.leader in nodes else NO_NODE,
            leader_epoch=state.leader_epoch,
            isr=state.in_sync_nodes,
            replicas=state.replicas,
            min_insync=min_insync_of(found, len(state.target)),
            adding=state.adding,
            removing=state.removing,
            offline=[node for node in state.replicas if node not in nodes],
            unclean_epochs=state.unclean_epochs,
        )

    def replica(self, topic: str, index: int) -> ReplicaStatus | None:
        """Return the replica that this node has of a partition."""
        replica = self._replicas.get(self._key(topic, index))
        if replica is None or not replica.is_present:
            return None
        leader = replica.leader
        followers: tuple[FollowerStatus, ...] = ()
        if leader is not None:
            now = self._clock.monotonic()
            followers = tuple(
                _follower_status(progress, leader.written_end, now)
                for node in leader.state.replicas
                if (progress := leader.follower(node)) is not None
            )
        return replica_status(
            replica.partition,
            is_leader=leader is not None,
            problem=replica.problem,
            followers=followers,
            resync=_resync_status(replica),
        )

    def resyncs(self) -> Sequence[ResyncStatus]:
        """Return the copies of whole segments that are under way on this node."""
        found = (_resync_status(replica) for replica in self._replicas.values())
        return [status for status in found if status is not None]

    # Elections.

    async def elect_preferred(self, topic: str, index: int) -> LeaderElection:
        """Let the first replica of a partition lead it."""
        key = self._key(topic, index)

        def propose(state: ReplicationState, nodes: controller.Nodes) -> Proposal | None:
            preferred = state.target[0]
            is_led = controller.is_led(state, nodes)
            if is_led and state.leader == preferred:
                raise ElectionNotNeeded(
                    f"{topic}/{index} is led by node {preferred}, its preferred leader"
                )
            may_lead = (
                controller.may_take_over(state, preferred, nodes)
                if is_led
                else preferred in controller.candidates(state, nodes)
            )
            if not may_lead:
                raise NoEligibleLeader(
                    f"{topic}/{index}: node {preferred}, its preferred leader, is not alive and in"
                    f" sync; in sync are {list(state.in_sync_nodes)}"
                )
            if not is_led or state.successor == preferred:
                return None  # It is elected by the controller, or takes over already.
            return controller.hand_over(state, preferred, nodes)

        state = await self._change(key, propose)
        preferred, epoch = state.target[0], state.leader_epoch
        led = await self._wait(key, lambda now: now.leader == preferred or now.leader_epoch > epoch)
        if led is None or led.leader != preferred:
            raise NoEligibleLeader(
                f"{topic}/{index}: node {preferred} has not taken over within"
                f" {ELECTION_SECONDS_MAX:g} s"
            )
        return LeaderElection(TopicPartition(topic, index), led.leader, led.leader_epoch)

    async def elect_uncleanly(
        self, topic: str, index: int, leader: int | None = None
    ) -> LeaderElection:
        """Let a replica lead that may lack committed records."""
        key = self._key(topic, index)
        former: tuple[int, ...] = ()

        def propose(state: ReplicationState, nodes: controller.Nodes) -> Proposal:
            nonlocal former
            clean = [state.leader] if controller.is_led(state, nodes) else None
            clean = clean or controller.candidates(state, nodes)
            if clean:
                raise ElectionNotNeeded(f"{topic}/{index}: node {clean[0]} can lead without loss")
            live = [node for node in state.replicas if node in nodes]
            if not live:
                raise NoEligibleLeader(
                    f"{topic}/{index}: none of its replicas {list(state.replicas)} is alive"
                )
            chosen = live[0] if leader is None else leader
            election = controller.elect_uncleanly(state, chosen, nodes)
            former = election.former_isr
            return election.proposal

        state = await self._change(key, propose)
        logger.warning(
            "%s/%d: unclean election: node %d leads in epoch %d; committed records that only %s"
            " had are lost",
            topic,
            index,
            state.leader,
            state.leader_epoch,
            list(former),
        )
        return LeaderElection(
            TopicPartition(topic, index), state.leader, state.leader_epoch, former
        )

    # Reassignments.

    async def reassign(
        self,
        topic: str,
        index: int,
        replicas: Sequence[int] | None,
        *,
        may_change_factor: bool = True,
    ) -> None:
        """Begin to move a partition to the nodes `replicas`; None cancels a move."""
        key = self._key(topic, index)

        def propose(state: ReplicationState, nodes: controller.Nodes) -> Proposal | None:
            if replicas is None:
                if not state.adding and not state.removing:
                    raise NoReassignment(f"{topic}/{index} is not being reassigned")
                new = controller.cancel_reassignment(state, nodes)
            else:
                check_assignment(replicas, {*nodes, *state.replicas})
                before = len(state.replicas) - len(state.adding)
                if not may_change_factor and len(replicas) != before:
                    raise InvalidAssignment(
                        f"{topic}/{index} has {before} replicas, and the request does not allow to"
                        f" change that; got {list(replicas)}"
                    )
                new = controller.reassign(state, replicas, nodes)
            is_same = replace(new, revision=state.revision) == state
            return None if is_same else controller.propose(state, new, nodes)

        await self._change(key, propose)

    def reassignments(self) -> Sequence[Reassignment]:
        """Return the partitions that are being moved now."""
        return [
            Reassignment(
                TopicPartition(topic.name, key.partition),
                state.replicas,
                state.adding,
                state.removing,
            )
            for topic, key, state in self._partitions()
            if state.adding or state.removing
        ]

    async def rebalance(
        self, sizes: Mapping[TopicPartition, int], *, moves_max: int, is_dry_run: bool
    ) -> Sequence[ReplicaMove]:
        """Begin to move replicas from the nodes with the most data to those with the least."""
        known, loads = {}, {}
        for topic, key, state in self._partitions():
            known[key] = state
            size = sizes.get(TopicPartition(topic.name, key.partition), 0)
            loads[key] = float(size + REPLICA_BYTES)
        targets = controller.balanced(
            known, self._state.controller_nodes(), loads, moves_max=moves_max
        )
        return await self._move(targets, is_dry_run=is_dry_run)

    async def remove_node(self, node_id: int, *, may_shrink: bool, is_dry_run: bool) -> NodeRemoval:
        """Begin to move all replicas away from a node."""
        known = {key: state for _, key, state in self._partitions()}
        nodes = self._state.controller_nodes()
        if node_id not in nodes and not any(node_id in state.replicas for state in known.values()):
            raise InvalidRequest(
                f"node must be one of {sorted(nodes)}, or have replicas, got {node_id}"
            )
        targets = controller.without_node(known, node_id, nodes, may_shrink=may_shrink)
        if not is_dry_run and node_id in nodes and node_id not in self._state.removed:
            await self._metadata.transact(compares=[], puts={removed_key(node_id): b"1"})
        moves = await self._move(targets, is_dry_run=is_dry_run)
        left = sum(1 for state in self._state.partitions.values() if node_id in state.replicas)
        return NodeRemoval(node_id, left, moves)

    async def keep_node(self, node_id: int) -> None:
        """Cancel the removal of a node."""
        if node_id not in self._state.removed:
            raise InvalidRequest(
                f"node {node_id} is not being removed; being removed are"
                f" {sorted(self._state.removed)}"
            )
        await self._metadata.transact(compares=[], deletes=[removed_key(node_id)])

    async def _move(
        self, targets: Mapping[PartitionId, Sequence[int]], *, is_dry_run: bool
    ) -> list[ReplicaMove]:
        names = {topic.id: topic.name for topic in self._topics().all()}
        limit = asyncio.Semaphore(MOVES_AT_ONCE)
        moves = [
            ReplicaMove(
                TopicPartition(names[key.topic_id], key.partition),
                self._state.partitions[key].target,
                target,
            )
            for key, target in targets.items()
        ]

        async def carry_out(move: ReplicaMove) -> None:
            async with limit:
                await self.reassign(*move.partition, move.after)

        if not is_dry_run:
            await asyncio.gather(*map(carry_out, moves))
        return moves

    # Proposals.

    def _key(self, topic: str, index: int) -> PartitionId:
        found = self._topics().get(topic)
        found.partition(index)
        return PartitionId(found.id, index)

    def _partitions(self) -> list[tuple[Topic, PartitionId, ReplicationState]]:
        """Return all partitions that have a state, sorted by topic and number."""
        return [
            (topic, key, state)
            for topic in self._topics().all()
            for index in range(topic.partition_count)
            if (state := self._state.partitions.get(key := PartitionId(topic.id, index)))
        ]

    async def _change(
        self,
        key: PartitionId,
        propose: Callable[[ReplicationState, controller.Nodes], Proposal | None],
    ) -> ReplicationState:
        """Change the state of a partition; return the state that it has then."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            state = self._state.partitions.get(key)
            if state is None:
                raise LeaderNotAvailable(f"{key} has no replicas yet")
            proposal = propose(state, self._state.controller_nodes())
            if proposal is None:
                return state
            outcome = await self._proposer.propose(key, proposal)
            if outcome is ProposalOutcome.APPLIED:
                return proposal.state
            if outcome is ProposalOutcome.UNKNOWN:
                raise OutcomeUnknown(f"{key}: the metadata store did not answer the change")
            await asyncio.sleep(ATTEMPT_SECONDS * attempt)
        raise Unavailable(
            f"{key} was not changed: the metadata store cannot be reached, or other changes were"
            f" faster {ATTEMPTS_MAX} times"
        )

    async def _wait(
        self, key: PartitionId, is_reached: Callable[[ReplicationState], bool]
    ) -> ReplicationState | None:
        """Wait for a state of a partition; None if it is not reached in time."""
        reached: asyncio.Future[ReplicationState] = asyncio.get_running_loop().create_future()

        def look(partition: PartitionId, state: ReplicationState | None) -> None:
            if partition == key and state and not reached.done() and is_reached(state):
                reached.set_result(state)

        self._state.on_partition.append(look)
        try:
            look(key, self._state.partitions.get(key))
            return await asyncio.wait_for(reached, ELECTION_SECONDS_MAX)
        except TimeoutError:
            return None
        finally:
            self._state.on_partition.remove(look)


def _resync_status(replica: LocalReplica) -> ResyncStatus | None:
    if (progress := replica.resync) is None:
        return None
    return ResyncStatus(progress.source, progress.bytes_total, progress.bytes_left)


def _follower_status(progress: FollowerProgress, end: int, now: float) -> FollowerStatus:
    is_known = progress.end != UNKNOWN_END
    return FollowerStatus(
        progress.node,
        end_offset=progress.end if is_known else None,
        lag_records=max(end - progress.end, 0) if is_known else None,
        lag_seconds=progress.lag(now),
    )
