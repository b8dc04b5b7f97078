"""Requests of other nodes about transactions: the other side of `RemoteTransactions`."""

from __future__ import annotations

import asyncio

from millstream.broker.broker import Broker
from millstream.broker.transactions.transaction import TransactionProducer
from millstream.broker.transactions.transaction_verifier import TransactionParts
from millstream.errors import MillstreamError
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import peer_code_of
from millstream.protocols.peer.messages.peer_transactions import (
    CommitTransactionOffsetsRequest,
    CommitTransactionOffsetsResponse,
    CommitTransactionOffsetsResponseGroup,
    TransactionPartition,
    TransactionPartitionResult,
    VerifyTransactionRequest,
    VerifyTransactionResponse,
    WriteMarkersRequest,
    WriteMarkersRequestMarker,
    WriteMarkersResponse,
    WriteMarkersResponseMarker,
)
from millstream.records.topic_partition import TopicPartition


class TransactionServer:
    """Answers with what this node leads and coordinates."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def write_markers(self, request: WriteMarkersRequest) -> WriteMarkersResponse:
        """Write markers to partitions that this node leads."""
        return WriteMarkersResponse(
            markers=tuple([await self._write(marker) for marker in request.markers])
        )

    async def _write(self, marker: WriteMarkersRequestMarker) -> WriteMarkersResponseMarker:
        results = await asyncio.gather(
            *(self._write_one(marker, partition) for partition in marker.partitions)
        )
        return WriteMarkersResponseMarker(producer_id=marker.producer_id, partitions=tuple(results))

    async def _write_one(
        self, marker: WriteMarkersRequestMarker, target: TransactionPartition
    ) -> TransactionPartitionResult:
        code = PeerErrorCode.NONE
        try:
            partition = self._broker.topics.by_id(target.topic_id).partition(target.index)
            await partition.open()
            await partition.appender.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                is_commit=marker.is_commit,
                coordinator_epoch=marker.coordinator_epoch,
            )
        except MillstreamError as error:
            code = peer_code_of(error)
        return TransactionPartitionResult(
            topic_id=target.topic_id, index=target.index, error_code=code
        )

    async def commit_offsets(
        self, request: CommitTransactionOffsetsRequest
    ) -> CommitTransactionOffsetsResponse:
        """Commit or drop the offsets of groups that this node coordinates."""
        results = []
        for group_id in request.group_ids:
            code = PeerErrorCode.NONE
            try:
                coordinator = self._broker.groups.of(group_id)
                await coordinator.finish_transaction(
                    request.producer_id,
                    request.producer_epoch,
                    [group_id],
                    is_commit=request.is_commit,
                )
            except MillstreamError as error:
                code = peer_code_of(error)
            results.append(
                CommitTransactionOffsetsResponseGroup(group_id=group_id, error_code=code)
            )
        return CommitTransactionOffsetsResponse(groups=tuple(results))

    async def verify(self, request: VerifyTransactionRequest) -> VerifyTransactionResponse:
        """Answer for a transactional id that this node coordinates."""
        topics = self._broker.topics
        transactional_id = request.transactional_id or ""
        try:
            names = {each.topic_id: topics.by_id(each.topic_id).name for each in request.partitions}
            parts = TransactionParts(
                frozenset(
                    TopicPartition(names[each.topic_id], each.index) for each in request.partitions
                ),
                frozenset(request.group_ids),
            )
            missing = await self._broker.transactions.of(transactional_id).verify(
                transactional_id,
                TransactionProducer(request.producer_id, request.producer_epoch),
                parts,
                may_add=request.may_add,
            )
        except MillstreamError as error:
            return VerifyTransactionResponse(error_code=peer_code_of(error))
        return VerifyTransactionResponse(
            partitions=tuple(
                TransactionPartitionResult(
                    topic_id=each.topic_id,
                    index=each.index,
                    error_code=(
                        PeerErrorCode.INVALID_TXN_STATE
                        if TopicPartition(names[each.topic_id], each.index) in missing.partitions
                        else PeerErrorCode.NONE
                    ),
                )
                for each in request.partitions
            ),
            missing_group_ids=tuple(sorted(missing.groups)),
        )
