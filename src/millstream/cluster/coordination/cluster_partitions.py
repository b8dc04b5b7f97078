"""Internal partitions of a cluster: `InternalPartitions` of the broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection

from millstream.broker.state.internal_partitions import (
    InternalPartition,
    LeadershipListener,
)
from millstream.broker.topics.topics import Topics
from millstream.cluster.control.cluster_state import ClusterState, PartitionId
from millstream.cluster.coordination.internal_topics import (
    CONFIGS,
    name_of,
    partition_count,
    topic_of,
)
from millstream.cluster.leader import UNAVAILABLE
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_manager import ReplicaManager
from millstream.cluster.replication_state import NO_NODE
from millstream.config.schema import LogConfig
from millstream.errors import NotCoordinator, NotLeader, TopicExists, UnknownTopic
from millstream.storage.log import Log


class ClusterPartitions:
    """The internal partitions of a cluster, as one of its nodes sees them."""

    def __init__(self, state: ClusterState, replicas: ReplicaManager) -> None:
        self._state = state
        self._replicas = replicas
        self._topics: Topics | None = None
        self._listeners: dict[str, LeadershipListener] = {}
        replicas.on_leading.append(self._on_leading)

    def attach(self, topics: Topics) -> None:
        """Use these topics: those of the broker, which is made after this object."""
        self._topics = topics

    @property
    def topics(self) -> Topics:
        assert self._topics is not None, "attached"
        return self._topics

    def count(self, name: str) -> int:
        return partition_count(name)

    def follow(self, name: str, listener: LeadershipListener) -> None:
        self._listeners[name] = listener
        for replica in self._replicas.replicas.values():
            if replica.topic.name == topic_of(name) and replica.leader is not None:
                partition = InternalPartition(name, replica.key.partition)
                listener.elected(partition, replica.leader.leader_epoch)

    def unfollow(self, name: str) -> None:
        self._listeners.pop(name, None)

    def _on_leading(self, replica: LocalReplica, epoch: int | None) -> None:
        if not replica.topic.is_internal:
            return
        partition = InternalPartition(name_of(replica.topic.name), replica.key.partition)
        listener = self._listeners.get(partition.name)
        if listener is None:
            return
        if epoch is None:
            listener.deposed(partition)
        else:
            listener.elected(partition, epoch)

    def leader_of(self, partition: InternalPartition) -> int:
        topic = self.topics.find(topic_of(partition.name))
        if topic is None:
            return NO_NODE
        state = self._state.partitions.get(PartitionId(topic.id, partition.number))
        return NO_NODE if state is None or state.leader not in self._state.nodes else state.leader

    def check_lease(self) -> None:
        context = self._replicas.context
        if not context.membership.belief.is_valid(context.clock.monotonic()):
            raise NotCoordinator("this node cannot renew its lease, and may have been replaced")

    def check_leading(self, partition: InternalPartition) -> None:
        replica = self.topics.partition(topic_of(partition.name), partition.number).replica
        assert replica is not None
        replica.check_leader()

    async def open_log(self, partition: InternalPartition, config: LogConfig) -> Log:  # noqa: ARG002
        """Return the log once everything that an earlier leader acknowledged can be read."""
        found = self.topics.partition(topic_of(partition.name), partition.number)
        replica = found.replica
        assert isinstance(replica, LocalReplica)
        leader = replica.leader
        if leader is None:
            raise NotLeader(f"{partition} is not led by this node")
        await found.open()
        clock = self._replicas.context.clock
        while leader.latest_offset(clock.monotonic()) == UNAVAILABLE:
            if replica.leader is not leader:
                raise NotLeader(f"{partition} is not led by this node any more")
            await _changed(found.watch, found.unwatch)
        return found.log

    async def create(self, name: str) -> None:
        topic = topic_of(name)
        if self.topics.find(topic) is None:
            with contextlib.suppress(TopicExists):  # Another node was faster.
                await self.topics.create(
                    topic, partitions=partition_count(name), configs=CONFIGS, is_internal=True
                )

    async def delete(self, name: str) -> None:
        try:
            await self.topics.delete(topic_of(name), is_internal=True)
        except UnknownTopic:
            return

    def names(self, prefix: str) -> Collection[str]:
        start = topic_of(prefix)
        return [name_of(topic.name) for topic in self.topics.all() if topic.name.startswith(start)]


async def _changed(
    watch: Callable[[Callable[[], None]], None],
    unwatch: Callable[[Callable[[], None]], None],
    seconds: float = 0.2,
) -> None:
    """Return after the next change, or after a moment: a lease may also run out."""
    changed = asyncio.Event()
    watch(changed.set)
    try:
        # Not `wait_for`, which may swallow a cancellation at the moment of a change.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()
    finally:
        unwatch(changed.set)
