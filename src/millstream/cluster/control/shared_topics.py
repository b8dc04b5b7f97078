"""What the broker's topics need to know of the cluster: `SharedTopics` of `broker.topics`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from millstream.broker.topics.configs.topic_config import TopicConfig
from millstream.broker.topics.configs.topic_settings import REMOTE_STORAGE_ENABLE
from millstream.broker.topics.deleted_topics import DeletedTopics
from millstream.broker.topics.topic import Topic, TopicRow
from millstream.cluster.control.cluster_state import ClusterState, PartitionId
from millstream.cluster.control.node_row import LIVES_PREFIX, node_of_life
from millstream.cluster.control.replication_factor import FACTOR_DEFAULT, default_factor
from millstream.config.schema import Durability
from millstream.errors import InvalidAssignment, InvalidConfig, InvalidReplication
from millstream.metadata.interface import Metadata

LED_SECONDS_MAX = 10.0
"""How long a request that created a topic waits for the leaders of its partitions."""


class ClusterTopics:
    """Checks new topics against the nodes that there are, and waits for their leaders."""

    def __init__(
        self,
        metadata: Metadata,
        state: ClusterState,
        deleted: DeletedTopics,
        *,
        replicas: int = FACTOR_DEFAULT,
    ) -> None:
        """`replicas` are those of a topic without a number, if there are as many nodes."""
        self.deleted = deleted
        self._replicas = replicas
        self._metadata = metadata
        self._state = state

    @property
    def default_replicas(self) -> int:
        """Replicas of a topic that was created without a number."""
        return default_factor(len(self._state.nodes), self._replicas)

    def check(self, name: str, config: TopicConfig) -> None:
        """Raise unless the cluster can replicate a topic with this config."""
        if config.durability is Durability.EPHEMERAL:
            raise InvalidConfig(
                f"topic {name}: a cluster has no ephemeral topics, because a replica that lost its"
                " records could be elected; use the class memory"
            )

        if config.is_tiered:
            raise InvalidConfig(
                f"topic {name}: {REMOTE_STORAGE_ENABLE} must be false in a cluster, got true: only"
                " a lone node has a cold store"
            )

    def check_replicas(self, row: TopicRow, first: int) -> None:
        """Raise unless the partitions from `first` on can have the replicas that the row wants."""
        nodes = [node for node, seen in self._state.nodes.items() if not seen.is_stopping]
        factor = row.replication_factor
        for replicas in (row.assignments or ())[first:]:
            check_assignment(replicas, nodes)
        is_assigned = len(row.assignments or ()) >= row.partitions
        if factor is not None and not is_assigned and not 1 <= factor <= len(nodes):
            raise InvalidReplication(
                f"replication factor must be between 1 and {len(nodes)}, the number of nodes,"
                f" got {factor}"
            )

    async def wait_until_led(self, topic: Topic) -> None:
        """Return when every partition has a leader, or after a while."""
        waiting = {
            PartitionId(topic.id, index)
            for index in range(topic.partition_count)
            if not self._is_led(PartitionId(topic.id, index))
        }
        if not waiting:
            return
        led = asyncio.Event()

        def on_partition(partition: PartitionId, _: object) -> None:
            if partition in waiting and self._is_led(partition):
                waiting.discard(partition)
                if not waiting:
                    led.set()

        self._state.on_partition.append(on_partition)
        try:
            await asyncio.wait_for(led.wait(), LED_SECONDS_MAX)
        except TimeoutError:
            return  # The topic exists; its clients retry until there is a leader.
        finally:
            self._state.on_partition.remove(on_partition)

    def _is_led(self, partition: PartitionId) -> bool:
        state = self._state.partitions.get(partition)
        return state is not None and state.leader in self._state.nodes

    async def nodes_with_records(self, topic: Topic) -> Collection[int]:
        """Return the nodes that may have records of a topic, and have to be told to delete them.

        A node that is down may have those of replicas that were moved away from it meanwhile. Nodes
        that an operator has removed are not expected to come back.
        """
        with_replicas = {
            node
            for partition, state in self._state.partitions.items()
            if partition.topic_id == topic.id
            for node in state.replicas
        }
        known = {node_of_life(entry.key) for entry in await self._metadata.list(LIVES_PREFIX)}
        return with_replicas | (known - set(self._state.nodes) - set(self._state.removed))


def check_assignment(replicas: Sequence[int], nodes: Collection[int]) -> None:
    """Raise `InvalidAssignment` unless a partition can have its replicas on these nodes."""
    unknown = set(replicas) - set(nodes)
    if unknown or not replicas or len(set(replicas)) != len(replicas):
        raise InvalidAssignment(
            f"replicas must be different nodes of {sorted(nodes)}, got {list(replicas)}"
        )
