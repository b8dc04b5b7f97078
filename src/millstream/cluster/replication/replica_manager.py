"""All replicas of this node: their roles, their fetchers, and their clocks.

Every partition of every topic has a `LocalReplica` here, present or not: it knows who leads. The
states of partitions come from the metadata store; each partition applies them one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topic import Topic
from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.control.node_row import NodeRow
from millstream.cluster.replication.fetch_server import FetchServer
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.replica_fetcher import PeerCalls, ReplicaFetcher
from millstream.cluster.replication_state import NO_NODE, ReplicationState
from millstream.errors import MillstreamError
from millstream.storage.disk.executor import Executor

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
"""How often leaders look at their followers. Far below the lag at which one leaves the ISR."""

HAND_OVER_SECONDS_MAX = 5.0
"""How long a node that stops waits for its successors."""


class ReplicaManager:
    """The replicas of one node. Owned by one event loop."""

    def __init__(self, context: ReplicaContext, peers: PeerCalls, background: Executor) -> None:
        self.context = context
        self.replicas: dict[PartitionId, LocalReplica] = {}
        self.server = FetchServer(context, self.replicas, background)
        self.on_leading: list[Callable[[LocalReplica, int | None], None]] = []
        """Called with the leader epoch when this node leads a partition, with None at the end."""
        self._peers = peers
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._applying: dict[PartitionId, asyncio.Task[None]] = {}
        self._ticks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._is_running = False

    # Partitions.

    def add(self, topic: Topic, partition: Partition) -> LocalReplica:
        """Take over the replication of a partition that the broker has just made."""
        key = PartitionId(topic.id, partition.index)
        replica = LocalReplica(self.context, topic, partition, key)
        replica.on_leading = self._on_leading
        replica.on_news = self._on_news
        replica.on_due = self._tick_now
        partition.replica = replica
        self.replicas[key] = replica
        if key in self.context.state.partitions:
            self._apply_later(key)
        return replica

    def remove(self, topic: Topic) -> None:
        """Forget the partitions of a deleted topic."""
        for index in range(len(topic.partitions)):
            replica = self.replicas.pop(PartitionId(topic.id, index), None)
            if replica is not None:
                replica.forget()

    def _on_leading(self, replica: LocalReplica, epoch: int | None) -> None:
        for callback in self.on_leading:
            callback(replica, epoch)

    def _on_news(self, replica: LocalReplica) -> None:
        self.server.wake(replica.key)

    # Following the cluster.

    def start(self) -> None:
        """Apply the states of all partitions, and those to come."""
        self._is_running = True
        state = self.context.state
        state.on_partition.append(self._on_partition)
        state.on_node.append(self._on_node)
        self.context.membership.on_life = self._on_life
        for key in state.partitions:
            self._apply_later(key)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def hand_over(self) -> None:
        """Hand all leaderships over, as far as others can take them, before the node stops."""
        leading = [replica for replica in self.replicas.values() if replica.leader is not None]
        handed = [replica for replica in leading if replica.hand_over()]
        deadline = asyncio.get_running_loop().time() + HAND_OVER_SECONDS_MAX
        while any(replica.leader is not None for replica in handed):
            if asyncio.get_running_loop().time() >= deadline:
                left = sum(1 for replica in handed if replica.leader is not None)
                logger.warning("%d leaderships were not handed over in time", left)
                return
            for replica in handed:
                self._tick_now(replica)
            await asyncio.sleep(TICK_SECONDS / 4)

    async def stop(self) -> None:
        """Stop leading and following."""
        self._is_running = False
        state = self.context.state
        if self._on_partition in state.on_partition:
            state.on_partition.remove(self._on_partition)
            state.on_node.remove(self._on_node)
        tasks = [*self._ticks, *self._applying.values()]
        if self._ticker is not None:
            self._ticker.cancel()
            tasks.append(self._ticker)
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self.replicas.values():
            try:
                await replica.end_life()
            except MillstreamError as error:
                logger.warning("%s: %s", replica, error)

    def _on_partition(self, key: PartitionId, _: ReplicationState | None) -> None:
        if key in self.replicas:
            self._apply_later(key)

    def _on_node(self, node_id: int, row: NodeRow | None) -> None:
        """Tell leaders that a follower is gone; they need not wait for it to be late."""
        if row is not None:
            return
        for replica in self.replicas.values():
            leader = replica.leader
            if leader is not None and node_id in leader.state.replicas:
                known = leader.follower(node_id)
                if known is not None:
                    leader.node_gone(node_id, known.broker_epoch)
                    self._tick_now(replica)

    def _on_life(self, _: int) -> None:
        """Begin again in a new life of the node: nothing of the former one is valid."""
        for key in self.replicas:
            self._apply_later(key, is_new_life=True)

    def _apply_later(self, key: PartitionId, *, is_new_life: bool = False) -> None:
        """Apply the newest state of a partition, after what is being applied now."""
        if not self._is_running:
            return
        before = self._applying.get(key)
        task = asyncio.get_running_loop().create_task(
            self._apply(key, before, is_new_life=is_new_life)
        )
        self._applying[key] = task
        task.add_done_callback(lambda done: self._applied(key, done))

    def _applied(self, key: PartitionId, task: asyncio.Task[None]) -> None:
        if self._applying.get(key) is task:
            del self._applying[key]

    async def _apply(
        self, key: PartitionId, before: asyncio.Task[None] | None, *, is_new_life: bool
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        replica = self.replicas.get(key)
        if replica is None or not self._is_running:
            return
        try:
            if is_new_life:
                await replica.end_life()
            await replica.apply(self.context.state.partitions.get(key))
        except MillstreamError as error:
            replica.problem = f"{replica}: the replica cannot take its role: {error}"
            logger.error("%s", replica.problem)  # noqa: TRY400
        except Exception:
            replica.problem = f"{replica}: the replica cannot take its role: internal error"
            logger.exception("%s", replica.problem)
        self._follow_leader(replica)

    def _follow_leader(self, replica: LocalReplica) -> None:
        leader_id = replica.leader_id
        if leader_id in (NO_NODE, self.context.node_id):
            return
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            self._fetchers[leader_id] = ReplicaFetcher(
                leader_id, self.context, self._peers, lambda: self._following(leader_id)
            )
        else:
            fetcher.wake()

    def _following(self, leader_id: int) -> dict[PartitionId, LocalReplica]:
        return {
            key: replica
            for key, replica in self.replicas.items()
            if replica.leader_id == leader_id and key not in self._applying
        }

    # Time.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for replica in list(self.replicas.values()):
                if replica.leader is not None:
                    self._tick_now(replica)

    def _tick_now(self, replica: LocalReplica) -> None:
        if (change := replica.tick()) is not None:
            task = asyncio.get_running_loop().create_task(change)
            self._ticks.add(task)
            task.add_done_callback(self._ticks.discard)

    # Problems.

    def problems(self) -> list[str]:
        """Return what is wrong with replicas of this node."""
        return [replica.problem for replica in self.replicas.values() if replica.problem]

    def small_isrs(self) -> list[str]:
        """Return the partitions led here of which too few replicas are in sync."""
        return [
            f"{replica}: replicas in sync are {list(replica.leader.state.isr_nodes)}, and"
            f" min.insync.replicas is {replica.leader.min_insync}"
            for replica in self.replicas.values()
            if replica.leader is not None
            and len(replica.leader.state.isr) < replica.leader.min_insync
        ]
