"""Fetch: reads batches."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    INT8,
    INT16,
    INT32,
    INT64,
    NO_ID,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    RECORDS,
    STRING,
    UUID,
    Records,
)

FETCH = Versions(first=4, last=18, flexible=12)


@struct
class FetchRequestReplicaState:
    """The id and epoch of the replica that reads."""

    replica_id: int = wire(INT32, default=-1)
    replica_epoch: int = wire(INT64, default=-1)


@struct
class FetchRequestPartition:
    """The offset to read from in one partition, and the most bytes to return."""

    partition: int = wire(INT32)
    current_leader_epoch: int = wire(INT32, since=9, default=-1)
    fetch_offset: int = wire(INT64)
    last_fetched_epoch: int = wire(INT32, since=12, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    partition_max_bytes: int = wire(INT32)
    replica_directory_id: uuid.UUID = wire(UUID, since=17, default=NO_ID, tag=0)
    high_watermark: int = wire(INT64, since=18, default=2**63 - 1, tag=1)


@struct
class FetchRequestTopic:
    """The partitions of one topic to read from."""

    topic: str = wire(STRING, until=12, default="")
    topic_id: uuid.UUID = wire(UUID, since=13, default=NO_ID)
    partitions: tuple[FetchRequestPartition, ...] = wire(ARRAY(FetchRequestPartition))


@struct
class FetchRequestForgottenTopic:
    """Partitions to remove from the fetch session."""

    topic: str = wire(STRING, until=12, default="")
    topic_id: uuid.UUID = wire(UUID, since=13, default=NO_ID)
    partitions: tuple[int, ...] = wire(ARRAY(INT32))


@message(FETCH)
class FetchRequest:
    """Read batches, and wait up to a time limit for a minimum of bytes."""

    cluster_id: str | None = wire(NULLABLE_STRING, since=12, default=None, tag=0)
    replica_id: int = wire(INT32, until=14, default=-1)
    replica_state: FetchRequestReplicaState = wire(
        FetchRequestReplicaState, since=15, default=FetchRequestReplicaState(), tag=1
    )
    max_wait_ms: int = wire(INT32)
    min_bytes: int = wire(INT32)
    max_bytes: int = wire(INT32, default=2**31 - 1)
    isolation_level: int = wire(INT8, default=0)
    session_id: int = wire(INT32, since=7, default=0)
    session_epoch: int = wire(INT32, since=7, default=-1)
    topics: tuple[FetchRequestTopic, ...] = wire(ARRAY(FetchRequestTopic))
    forgotten_topics_data: tuple[FetchRequestForgottenTopic, ...] = wire(
        ARRAY(FetchRequestForgottenTopic), since=7, default=()
    )
    rack_id: str = wire(STRING, since=11, default="")


@struct
class FetchResponseEpochEnd:
    """The end of the last epoch that reader and leader have in common."""

    epoch: int = wire(INT32, default=-1)
    end_offset: int = wire(INT64, default=-1)


@struct
class FetchResponseLeader:
    """The current leader, for a reader that asked another node."""

    leader_id: int = wire(INT32, default=-1)
    leader_epoch: int = wire(INT32, default=-1)


@struct
class FetchResponseSnapshot:
    """The snapshot to read instead of offsets that were deleted."""

    end_offset: int = wire(INT64, default=-1)
    epoch: int = wire(INT32, default=-1)


@struct
class FetchResponseAbortedTransaction:
    """An aborted transaction: its producer and its first offset."""

    producer_id: int = wire(INT64)
    first_offset: int = wire(INT64)


@struct
class FetchResponsePartition:
    """The batches of one partition, and the offsets up to which it can be read."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    high_watermark: int = wire(INT64, default=-1)
    last_stable_offset: int = wire(INT64, default=-1)
    log_start_offset: int = wire(INT64, since=5, default=-1)
    diverging_epoch: FetchResponseEpochEnd = wire(
        FetchResponseEpochEnd, since=12, default=FetchResponseEpochEnd(), tag=0
    )
    current_leader: FetchResponseLeader = wire(
        FetchResponseLeader, since=12, default=FetchResponseLeader(), tag=1
    )
    snapshot_id: FetchResponseSnapshot = wire(
        FetchResponseSnapshot, since=12, default=FetchResponseSnapshot(), tag=2
    )
    aborted_transactions: tuple[FetchResponseAbortedTransaction, ...] | None = wire(
        NULLABLE_ARRAY(FetchResponseAbortedTransaction), default=None
    )
    preferred_read_replica: int = wire(INT32, since=11, default=-1)
    records: Records | None = wire(RECORDS, default=b"")


@struct
class FetchResponseTopic:
    """The partitions of one topic."""

    topic: str = wire(STRING, until=12, default="")
    topic_id: uuid.UUID = wire(UUID, since=13, default=NO_ID)
    partitions: tuple[FetchResponsePartition, ...] = wire(ARRAY(FetchResponsePartition), default=())


@struct
class FetchResponseNode:
    """Address of a node that leads one of the partitions."""

    node_id: int = wire(INT32)
    host: str = wire(STRING)
    port: int = wire(INT32)
    rack: str | None = wire(NULLABLE_STRING, default=None)


@message(FETCH)
class FetchResponse:
    """The batches that were read, as stored in the log."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, since=7, default=0)
    session_id: int = wire(INT32, since=7, default=0)
    responses: tuple[FetchResponseTopic, ...] = wire(ARRAY(FetchResponseTopic), default=())
    node_endpoints: tuple[FetchResponseNode, ...] = wire(
        ARRAY(FetchResponseNode), since=16, default=(), tag=0
    )
