"""Transactions over several nodes: markers, offsets of groups, and verification.

Each of the three goes to the node that leads a partition or coordinates an id. A request that was
refused or whose outcome is unknown raises; every caller repeats it until it succeeds, and each of
them may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from millstream.broker.state.internal_partitions import (
    GROUPS,
    TRANSACTIONS,
    InternalPartition,
    InternalPartitions,
)
from millstream.broker.state.routing import index_of_group, index_of_transactional_id
from millstream.broker.topics.topics import Topics
from millstream.broker.transactions.marker_sender import LocalMarkers, ProducerMarker
from millstream.broker.transactions.transaction import TransactionProducer
from millstream.broker.transactions.transaction_verifier import TransactionParts
from millstream.cluster.control.cluster_state import ClusterState, PartitionId
from millstream.cluster.replication.replica_fetcher import PeerCalls
from millstream.cluster.replication_state import NO_NODE
from millstream.errors import LeaderNotAvailable, NotCoordinator
from millstream.protocols.peer.errors import peer_error_of
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.peer_transactions import (
    CommitTransactionOffsetsRequest,
    TransactionPartition,
    VerifyTransactionRequest,
    WriteMarkersRequest,
    WriteMarkersRequestMarker,
)
from millstream.records.topic_partition import TopicPartition

CALL_SECONDS_MAX = 10.0
"""Deadline of a request. Markers wait until enough replicas have them."""


class RemoteTransactions:
    """Implements `MarkerSender`, `RemoteOffsets` and `TransactionVerifier` of the broker."""

    def __init__(
        self,
        node_id: int,
        state: ClusterState,
        partitions: InternalPartitions,
        peers: PeerCalls,
        topics: Callable[[], Topics],
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._partitions = partitions
        self._peers = peers
        self._topics = topics

    async def _call(self, node_id: int, request: Any) -> Any:
        return await self._peers.call(
            node_id, Purpose.FORWARDING, request, timeout_s=CALL_SECONDS_MAX
        )

    # Markers.

    async def write(self, partition: TopicPartition, marker: ProducerMarker) -> None:
        """Write a marker to a partition; return when it is committed there."""
        topics = self._topics()
        topic = topics.get(partition.topic)
        state = self._state.partitions.get(PartitionId(topic.id, partition.partition))
        if state is None or state.leader not in self._state.nodes:
            raise LeaderNotAvailable(f"{partition.topic}/{partition.partition} has no leader now")
        if state.leader == self._node_id:
            await LocalMarkers(topics).write(partition, marker)
            return
        request = WriteMarkersRequest(
            markers=(
                WriteMarkersRequestMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    coordinator_epoch=marker.coordinator_epoch,
                    is_commit=marker.is_commit,
                    partitions=(
                        TransactionPartition(topic_id=topic.id, index=partition.partition),
                    ),
                ),
            )
        )
        response = await self._call(state.leader, request)
        code = response.markers[0].partitions[0].error_code
        if code:
            raise peer_error_of(code, f"node {state.leader}: {partition}: marker refused")

    # Offsets of groups.

    async def finish_transaction(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        """Let the coordinators of groups commit or drop what a transaction staged."""
        by_node: dict[int, list[str]] = {}
        for group_id in group_ids:
            index = index_of_group(group_id, self._partitions.count(GROUPS))
            node = self._coordinator(InternalPartition(GROUPS, index), f"group {group_id!r}")
            by_node.setdefault(node, []).append(group_id)

        async def finish(node: int, groups: list[str]) -> None:
            request = CommitTransactionOffsetsRequest(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=0,
                is_commit=is_commit,
                group_ids=tuple(groups),
            )
            response = await self._call(node, request)
            for group in response.groups:
                if group.error_code:
                    raise peer_error_of(group.error_code, f"node {node}: group {group.group_id!r}")

        for outcome in await asyncio.gather(
            *(finish(*item) for item in by_node.items()), return_exceptions=True
        ):
            if outcome is not None:
                raise outcome

    # Verification.

    async def verify(
        self,
        transactional_id: str,
        producer: TransactionProducer,
        parts: TransactionParts,
        *,
        may_add: bool,
    ) -> TransactionParts:
        """Ask the coordinator which of `parts` are not part of the producer's transaction."""
        topics = self._topics()
        index = index_of_transactional_id(transactional_id, self._partitions.count(TRANSACTIONS))
        node = self._coordinator(
            InternalPartition(TRANSACTIONS, index), f"transactional id {transactional_id!r}"
        )
        ids = {topics.get(each.topic).id: each.topic for each in parts.partitions}
        request = VerifyTransactionRequest(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            may_add=may_add,
            partitions=tuple(
                TransactionPartition(topic_id=topics.get(each.topic).id, index=each.partition)
                for each in parts.partitions
            ),
            group_ids=tuple(parts.groups),
        )
        response = await self._call(node, request)
        if response.error_code:
            raise peer_error_of(response.error_code, f"node {node}: {transactional_id!r}")
        return TransactionParts(
            frozenset(
                TopicPartition(ids[each.topic_id], each.index)
                for each in response.partitions
                if each.error_code
            ),
            frozenset(response.missing_group_ids),
        )

    def _coordinator(self, partition: InternalPartition, what: str) -> int:
        node = self._partitions.leader_of(partition)
        if node == NO_NODE:
            raise NotCoordinator(f"no node coordinates {what} now")
        return node
