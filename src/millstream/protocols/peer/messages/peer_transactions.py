"""WriteMarkers, CommitTransactionOffsets and VerifyTransaction: transactions of several nodes.

The coordinator of a transactional id decides. Leaders of partitions write its markers, coordinators
of groups commit its offsets, and both ask it whether a transaction is open before they write.
"""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
)

WRITE_MARKERS = Versions(first=0, last=0, flexible=0)
COMMIT_TRANSACTION_OFFSETS = Versions(first=0, last=0, flexible=0)
VERIFY_TRANSACTION = Versions(first=0, last=0, flexible=0)


@struct
class TransactionPartition:
    """A partition of a transaction."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)


@struct
class TransactionPartitionResult:
    """The result for one partition."""

    topic_id: uuid.UUID = wire(UUID)
    index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)


@struct
class WriteMarkersRequestMarker:
    """The end of the transaction of one producer."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    coordinator_epoch: int = wire(INT32)
    is_commit: bool = wire(BOOL)
    partitions: tuple[TransactionPartition, ...] = wire(ARRAY(TransactionPartition))


@message(WRITE_MARKERS)
class WriteMarkersRequest:
    """Write markers into partitions. Repeating it changes nothing."""

    markers: tuple[WriteMarkersRequestMarker, ...] = wire(ARRAY(WriteMarkersRequestMarker))


@struct
class WriteMarkersResponseMarker:
    """The results for one producer."""

    producer_id: int = wire(INT64)
    partitions: tuple[TransactionPartitionResult, ...] = wire(
        ARRAY(TransactionPartitionResult), default=()
    )


@message(WRITE_MARKERS)
class WriteMarkersResponse:
    """The results, in the order of the request. A marker without an error is durable."""

    markers: tuple[WriteMarkersResponseMarker, ...] = wire(
        ARRAY(WriteMarkersResponseMarker), default=()
    )


@message(COMMIT_TRANSACTION_OFFSETS)
class CommitTransactionOffsetsRequest:
    """Commit or drop the offsets that a transaction staged in groups. Repeating changes nothing."""

    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    coordinator_epoch: int = wire(INT32)
    is_commit: bool = wire(BOOL)
    group_ids: tuple[str, ...] = wire(ARRAY(STRING))


@struct
class CommitTransactionOffsetsResponseGroup:
    """The result for one group."""

    group_id: str = wire(STRING)
    error_code: int = wire(INT16, default=0)


@message(COMMIT_TRANSACTION_OFFSETS)
class CommitTransactionOffsetsResponse:
    """The results, in the order of the request. What has no error is durable."""

    groups: tuple[CommitTransactionOffsetsResponseGroup, ...] = wire(
        ARRAY(CommitTransactionOffsetsResponseGroup), default=()
    )


@message(VERIFY_TRANSACTION)
class VerifyTransactionRequest:
    """Ask whether partitions and groups are part of a producer's open transaction."""

    transactional_id: str | None = wire(NULLABLE_STRING)
    """Null if the client did not send it: then that of the producer id is meant."""
    producer_id: int = wire(INT64)
    producer_epoch: int = wire(INT16)
    may_add: bool = wire(BOOL, default=False)
    """Whether missing ones are added (KIP-890)."""
    partitions: tuple[TransactionPartition, ...] = wire(ARRAY(TransactionPartition), default=())
    group_ids: tuple[str, ...] = wire(ARRAY(STRING), default=())


@message(VERIFY_TRANSACTION)
class VerifyTransactionResponse:
    """The answer of the coordinator."""

    error_code: int = wire(INT16, default=0)
    """Of the producer; then there are no results."""
    partitions: tuple[TransactionPartitionResult, ...] = wire(
        ARRAY(TransactionPartitionResult), default=()
    )
    missing_group_ids: tuple[str, ...] = wire(ARRAY(STRING), default=())
