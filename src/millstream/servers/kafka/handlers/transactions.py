"""Transactions: add partitions and offsets, end, describe, list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.broker.access.resources import Operation
from millstream.broker.access.resources import (
    transactional_id as transactional_id_resource,
)
from millstream.broker.groups.consumer.topic_pattern import compile_pattern
from millstream.broker.groups.values import OffsetAndMetadata
from millstream.broker.transactions.transaction import TransactionState
from millstream.broker.transactions.transaction_coordinators import Verify
from millstream.broker.transactions.transaction_record import partitions_by_topic
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidRegex,
    MillstreamError,
    ProducerFenced,
    UnknownTopic,
)
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnRequestTransaction,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponsePartition,
    AddPartitionsToTxnResponseTopic,
    AddPartitionsToTxnResponseTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopic,
    DescribeTransactionsResponseTransaction,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransaction,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from millstream.records.topic_partition import TopicPartition
from millstream.servers.kafka.request_context import RequestContext

FENCED_SINCE = 2
"""The first version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn whose clients know the error
of being fenced.
"""

ADD_MANY_SINCE = 4
"""The first version of AddPartitionsToTxn with several transactions, which only nodes send."""

ADD_ABORTABLE_SINCE = 5
"""The first version of AddPartitionsToTxn with the error that a transaction has to be aborted."""

BUMPED_SINCE = 5
"""The first version of EndTxn that gives the client a new epoch (KIP-890)."""

STAGE_LOADING_SINCE = 2
"""The first version of TxnOffsetCommit whose clients retry while a coordinator is loading."""

STAGE_ABORTABLE_SINCE = 4
STAGE_JOINS_SINCE = 5
"""The first version of TxnOffsetCommit that adds its group to the transaction (KIP-890)."""

OTHER_STATES = frozenset({"Dead", "PrepareEpochFence"})
"""States that Kafka's tools know, but no transaction here ever has."""

_UNSTORED = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

PartitionTuple = tuple[str, int]


def transaction_code_of(error: MillstreamError, *, knows_fenced: bool = True) -> ErrorCode:
    """Return the code of an error for transactional producers.

    If something cannot be stored, they are told to look for the coordinator again: the codes for
    records would be fatal to some of them.
    """
    if isinstance(error, ProducerFenced) and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    code = code_of(error)
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code in _UNSTORED else code


# Adding.


async def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add partitions to a transaction, or only verify that they are part of it, for other nodes."""
    if context.version < ADD_MANY_SINCE:
        added = AddPartitionsToTxnRequestTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await _add_partitions(added, context)
        )
    return AddPartitionsToTxnResponse(
        results_by_transaction=tuple(
            [
                AddPartitionsToTxnResponseTransaction(
                    transactional_id=added.transactional_id,
                    topic_results=await _add_partitions(added, context),
                )
                for added in request.transactions
            ]
        )
    )


async def _add_partitions(
    added: AddPartitionsToTxnRequestTransaction, context: RequestContext
) -> tuple[AddPartitionsToTxnResponseTopic, ...]:
    """Add all partitions or none: if one does not exist, the others are not attempted."""
    requested = [(topic.name, index) for topic in added.topics for index in topic.partitions]
    codes: Mapping[PartitionTuple, ErrorCode]
    try:
        context.require_transactional_id(added.transactional_id)
    except MillstreamError as error:
        codes = dict.fromkeys(requested, code_of(error))
        return tuple(_added(topic, codes) for topic in added.topics)
    refused = {
        partition: code
        for partition in requested
        if (code := _refusal_of(partition, context)) is not None
    }
    if refused:
        codes = {
            partition: refused.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
            for partition in requested
        }
    elif added.verify_only:
        codes = await _verify_partitions(added, requested, context)
    else:
        codes = dict.fromkeys(requested, await _add_known_partitions(added, requested, context))
    return tuple(_added(topic, codes) for topic in added.topics)


async def _add_known_partitions(
    added: AddPartitionsToTxnRequestTransaction,
    requested: Sequence[PartitionTuple],
    context: RequestContext,
) -> ErrorCode:
    try:
        await context.broker.transactions.of(added.transactional_id).add_partitions(
            added.transactional_id, added.producer_id, added.producer_epoch, requested
        )
    except MillstreamError as error:
        return transaction_code_of(error, knows_fenced=context.version >= FENCED_SINCE)
    return ErrorCode.NONE


async def _verify_partitions(
    added: AddPartitionsToTxnRequestTransaction,
    requested: Sequence[PartitionTuple],
    context: RequestContext,
) -> Mapping[PartitionTuple, ErrorCode]:
    try:
        coordinator = context.broker.transactions.of(added.transactional_id)
        missing = await coordinator.missing_partitions(
            added.transactional_id, added.producer_id, added.producer_epoch, requested
        )
    except MillstreamError as error:
        return dict.fromkeys(requested, transaction_code_of(error))
    is_abortable = context.version >= ADD_ABORTABLE_SINCE
    refusal = ErrorCode.TRANSACTION_ABORTABLE if is_abortable else ErrorCode.INVALID_TXN_STATE
    return {
        partition: refusal if partition in missing else ErrorCode.NONE for partition in requested
    }


def _added(
    topic: AddPartitionsToTxnRequestTopic, codes: Mapping[PartitionTuple, ErrorCode]
) -> AddPartitionsToTxnResponseTopic:
    return AddPartitionsToTxnResponseTopic(
        name=topic.name,
        results_by_partition=tuple(
            AddPartitionsToTxnResponsePartition(
                partition_index=index, partition_error_code=codes[topic.name, index]
            )
            for index in topic.partitions
        ),
    )


def _refusal_of(partition: PartitionTuple, context: RequestContext) -> ErrorCode | None:
    """Return why a partition cannot be added, if it cannot."""
    try:
        context.require_topic(partition[0])
    except MillstreamError as error:
        return code_of(error)
    return None if _exists(partition, context) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _exists(partition: PartitionTuple, context: RequestContext) -> bool:
    name, index = partition
    topic = context.broker.topics.find(name)
    return topic is not None and 0 <= index < topic.partition_count


async def add_offsets_to_txn(
    request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    """Add a group's offsets to a transaction."""
    try:
        context.require_transactional_id(request.transactional_id)
        context.require_group(request.group_id)
        await context.broker.transactions.of(request.transactional_id).add_offsets(
            request.transactional_id, request.producer_id, request.producer_epoch, request.group_id
        )
    except MillstreamError as error:
        knows_fenced = context.version >= FENCED_SINCE
        return AddOffsetsToTxnResponse(
            error_code=transaction_code_of(error, knows_fenced=knows_fenced)
        )
    return AddOffsetsToTxnResponse()


# Ending.


async def end_txn(request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """Commit or abort a transaction; from version 5 on, return a new epoch for the next one."""
    try:
        context.require_transactional_id(request.transactional_id)
        producer = await context.broker.transactions.of(request.transactional_id).end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            is_commit=request.committed,
            is_bumping=context.version >= BUMPED_SINCE,
        )
    except MillstreamError as error:
        knows_fenced = context.version >= FENCED_SINCE
        return EndTxnResponse(error_code=transaction_code_of(error, knows_fenced=knows_fenced))
    return EndTxnResponse(producer_id=producer.id, producer_epoch=producer.epoch)


# Offsets.


class _Position(NamedTuple):
    """One offset of the request."""

    topic: str
    partition: TxnOffsetCommitRequestPartition

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition.partition_index)


async def txn_offset_commit(
    request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Stage a group's offsets until the transaction ends."""
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for position in _positions(request):
        try:
            context.require_transactional_id(request.transactional_id)
            context.require_group(request.group_id)
            context.require_topic(position.topic)
            offsets[position.topic_partition] = _offset_of(position, context)
        except MillstreamError as error:
            codes[position.topic_partition] = code_of(error)
    if offsets:
        code = await _stage(request, offsets, context)
        codes |= dict.fromkeys(offsets, code)
    return TxnOffsetCommitResponse(
        topics=tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=codes[TopicPartition(topic.name, part.partition_index)],
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _positions(request: TxnOffsetCommitRequest) -> Iterator[_Position]:
    for topic in request.topics:
        for partition in topic.partitions:
            yield _Position(topic.name, partition)


def _offset_of(position: _Position, context: RequestContext) -> OffsetAndMetadata:
    if not _exists(position.topic_partition, context):
        raise UnknownTopic(f"partition {position.topic_partition} does not exist")
    requested = position.partition
    offset = OffsetAndMetadata(
        offset=requested.committed_offset,
        leader_epoch=requested.committed_leader_epoch,
        metadata=requested.committed_metadata or "",
        topic_id=context.broker.topics.get(position.topic).id,
    )
    context.broker.groups.check_offset(offset)
    return offset


async def _stage(
    request: TxnOffsetCommitRequest,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    context: RequestContext,
) -> ErrorCode:
    async def stage(verify: Verify | None) -> None:
        await coordinator.stage_offsets(
            request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            offsets=offsets,
            verify=verify,
        )

    try:
        coordinator = context.broker.groups.of(request.group_id)
        await context.broker.transactions.stage_offsets(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.group_id,
            stage,
            may_add=context.version >= STAGE_JOINS_SINCE,
            is_abortable=context.version >= STAGE_ABORTABLE_SINCE,
        )
    except (ProducerFenced, InvalidProducerEpoch):
        return ErrorCode.INVALID_PRODUCER_EPOCH  # As in Kafka, whose groups know only producers.
    except MillstreamError as error:
        code = transaction_code_of(error)
        if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return code
        # Clients expect this code from the transaction coordinator only.
        is_known = context.version >= STAGE_LOADING_SINCE
        return (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if is_known
            else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
    return ErrorCode.NONE


# Describing.


def describe_transactions(
    request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    """Describe transactional ids."""
    return DescribeTransactionsResponse(
        transaction_states=tuple(_described(name, context) for name in request.transactional_ids)
    )


def _described(
    transactional_id: str, context: RequestContext
) -> DescribeTransactionsResponseTransaction:
    try:
        context.require_transactional_id(transactional_id)
        description = context.broker.transactions.of(transactional_id).describe(transactional_id)
    except MillstreamError as error:
        return DescribeTransactionsResponseTransaction(
            transactional_id=transactional_id, error_code=code_of(error)
        )
    return DescribeTransactionsResponseTransaction(
        transactional_id=transactional_id,
        transaction_state=description.state.value,
        transaction_timeout_ms=description.timeout_ms,
        transaction_start_time_ms=description.start_ms,
        producer_id=description.producer.id,
        producer_epoch=description.producer.epoch,
        topics=tuple(
            DescribeTransactionsResponseTopic(topic=topic, partitions=tuple(partitions))
            for topic, partitions in partitions_by_topic(description.partitions).items()
            if context.may_describe_topic(topic)
        ),
    )


def list_transactions(
    request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    """List transactional ids of this node that pass all filters of the request."""
    transactions = context.broker.transactions
    pattern = request.transactional_id_pattern
    try:
        regexp = compile_pattern(pattern) if pattern else None
        listed = transactions.listed(open_longer_than_ms=request.duration_filter)
    except InvalidRegex as error:
        return ListTransactionsResponse(error_code=code_of(error))
    except MillstreamError as error:  # A list without those that are not loaded looks complete.
        return ListTransactionsResponse(error_code=transaction_code_of(error))
    known = {state.value for state in TransactionState} | OTHER_STATES
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    return ListTransactionsResponse(
        unknown_state_filters=tuple(sorted(states - known)),
        transaction_states=tuple(
            ListTransactionsResponseTransaction(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer.id,
                transaction_state=transaction.state.value,
            )
            for transaction in listed
            if context.may(
                Operation.DESCRIBE, transactional_id_resource(transaction.transactional_id)
            )
            and (not states or transaction.state.value in states)
            and (not producer_ids or transaction.producer.id in producer_ids)
            and (regexp is None or regexp.fullmatch(transaction.transactional_id) is not None)
        ),
    )
