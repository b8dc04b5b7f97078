"""Transactions: add partitions and offsets, end, describe, list."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
)

ADD_PARTITIONS_TO_TXN = Versions(first=0, last=5, flexible=3)
ADD_OFFSETS_TO_TXN = Versions(first=0, last=4, flexible=3)
END_TXN = Versions(first=0, last=5, flexible=3)
TXN_OFFSET_COMMIT = Versions(first=0, last=5, flexible=3)
DESCRIBE_TRANSACTIONS = Versions(first=0, last=0, flexible=0)
LIST_TRANSACTIONS = Versions(first=0, last=2, flexible=0)


@struct
class AddPartitionsToTxnRequestTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[int, ...] = wire(ARRAY(INT32))


@struct
class AddPartitionsToTxnRequestTransaction:
    """Partitions to add to one transaction, or to verify."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    verify_only: bool = wire(BOOL, default=False)
    topics: tuple[AddPartitionsToTxnRequestTopic, ...] = wire(ARRAY(AddPartitionsToTxnRequestTopic))


@message(ADD_PARTITIONS_TO_TXN)
class AddPartitionsToTxnRequest:
    """Add partitions to transactions: one up to version 3, several from then on."""

    transactions: tuple[AddPartitionsToTxnRequestTransaction, ...] = wire(
        ARRAY(AddPartitionsToTxnRequestTransaction), since=4, default=()
    )
    v3_and_below_transactional_id: str = wire(STRING, until=3, default="")
    v3_and_below_producer_id: int = wire(INT64, until=3, default=0)
    v3_and_below_producer_epoch: int = wire(INT16, until=3, default=0)
    v3_and_below_topics: tuple[AddPartitionsToTxnRequestTopic, ...] = wire(
        ARRAY(AddPartitionsToTxnRequestTopic), until=3, default=()
    )


@struct
class AddPartitionsToTxnResponsePartition:
    """Whether one partition belongs to the transaction."""

    partition_index: int = wire(INT32)
    partition_error_code: int = wire(INT16, default=0)


@struct
class AddPartitionsToTxnResponseTopic:
    """Results for the partitions of one topic."""

    name: str = wire(STRING)
    results_by_partition: tuple[AddPartitionsToTxnResponsePartition, ...] = wire(
        ARRAY(AddPartitionsToTxnResponsePartition), default=()
    )


@struct
class AddPartitionsToTxnResponseTransaction:
    """Results for one transaction."""

    transactional_id: str = wire(STRING)
    topic_results: tuple[AddPartitionsToTxnResponseTopic, ...] = wire(
        ARRAY(AddPartitionsToTxnResponseTopic), default=()
    )


@message(ADD_PARTITIONS_TO_TXN)
class AddPartitionsToTxnResponse:
    """Results for all partitions."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, since=4, default=0)
    results_by_transaction: tuple[AddPartitionsToTxnResponseTransaction, ...] = wire(
        ARRAY(AddPartitionsToTxnResponseTransaction), since=4, default=()
    )
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnResponseTopic, ...] = wire(
        ARRAY(AddPartitionsToTxnResponseTopic), until=3, default=()
    )


@message(ADD_OFFSETS_TO_TXN)
class AddOffsetsToTxnRequest:
    """Add a group's offsets to a transaction."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    group_id: str = wire(STRING)


@message(ADD_OFFSETS_TO_TXN)
class AddOffsetsToTxnResponse:
    """Whether the group was added."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)


@message(END_TXN)
class EndTxnRequest:
    """Commit or abort a transaction."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    committed: bool = wire(BOOL)


@message(END_TXN)
class EndTxnResponse:
    """The result; from version 5 on with the producer epoch of the next transaction."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    producer_id: int = wire(INT64, since=5, default=-1)
    producer_epoch: int = wire(INT16, since=5, default=-1)


@struct
class TxnOffsetCommitRequestPartition:
    """The offset of one partition, with metadata of the client."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=2, default=-1)
    committed_metadata: str | None = wire(NULLABLE_STRING, default=None)


@struct
class TxnOffsetCommitRequestTopic:
    """Offsets of one topic."""

    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = wire(
        ARRAY(TxnOffsetCommitRequestPartition)
    )


@message(TXN_OFFSET_COMMIT)
class TxnOffsetCommitRequest:
    """Offsets of a group, which take effect when the transaction commits."""

    transactional_id: str = wire(STRING)
    group_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    generation_id: int = wire(INT32, since=3, default=-1)
    member_id: str = wire(STRING, since=3, default="")
    group_instance_id: str | None = wire(NULLABLE_STRING, since=3, default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = wire(ARRAY(TxnOffsetCommitRequestTopic))


@struct
class TxnOffsetCommitResponsePartition:
    """Result for one partition."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)


@struct
class TxnOffsetCommitResponseTopic:
    """Results for the partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = wire(
        ARRAY(TxnOffsetCommitResponsePartition), default=()
    )


@message(TXN_OFFSET_COMMIT)
class TxnOffsetCommitResponse:
    """Results for all offsets."""

    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = wire(
        ARRAY(TxnOffsetCommitResponseTopic), default=()
    )


@message(DESCRIBE_TRANSACTIONS)
class DescribeTransactionsRequest:
    """Ask for the state of transactions."""

    transactional_ids: tuple[str, ...] = wire(ARRAY(STRING))


@struct
class DescribeTransactionsResponseTopic:
    """Partitions of one topic that the transaction has written to."""

    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(ARRAY(INT32), default=())


@struct
class DescribeTransactionsResponseTransaction:
    """One transaction, its producer and its partitions."""

    error_code: int = wire(INT16, default=0)
    transactional_id: str = wire(STRING)
    transaction_state: str = wire(STRING, default="")
    transaction_timeout_ms: int = wire(INT32, default=0)
    transaction_start_time_ms: int = wire(INT64, default=-1)
    producer_id: int = wire(INT64, default=-1)
    producer_epoch: int = wire(INT16, default=-1)
    topics: tuple[DescribeTransactionsResponseTopic, ...] = wire(
        ARRAY(DescribeTransactionsResponseTopic), default=()
    )


@message(DESCRIBE_TRANSACTIONS)
class DescribeTransactionsResponse:
    """The state of each transaction."""

    throttle_time_ms: int = wire(INT32, default=0)
    transaction_states: tuple[DescribeTransactionsResponseTransaction, ...] = wire(
        ARRAY(DescribeTransactionsResponseTransaction), default=()
    )


@message(LIST_TRANSACTIONS)
class ListTransactionsRequest:
    """List transactions, with the given states, producers, duration and ids, or all."""

    state_filters: tuple[str, ...] = wire(ARRAY(STRING), default=())
    producer_id_filters: tuple[int, ...] = wire(ARRAY(INT64), default=())
    duration_filter: int = wire(INT64, since=1, default=-1)
    transactional_id_pattern: str | None = wire(NULLABLE_STRING, since=2, default=None)


@struct
class ListTransactionsResponseTransaction:
    """Summary of one transaction."""

    transactional_id: str = wire(STRING)
    producer_id: int = wire(INT64)
    transaction_state: str = wire(STRING)


@message(LIST_TRANSACTIONS)
class ListTransactionsResponse:
    """The transactions that match."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    unknown_state_filters: tuple[str, ...] = wire(ARRAY(STRING), default=())
    transaction_states: tuple[ListTransactionsResponseTransaction, ...] = wire(
        ARRAY(ListTransactionsResponseTransaction), default=()
    )
