"""Committed offsets of groups: commit, fetch, delete."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import NEVER, Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    INT64,
    NO_ID,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
    UUID,
)

OFFSET_COMMIT = Versions(first=2, last=10, flexible=8)
OFFSET_FETCH = Versions(first=1, last=10, flexible=6)
OFFSET_DELETE = Versions(first=0, last=0, flexible=NEVER)


@struct
class OffsetCommitRequestPartition:
    """The offset of one partition, with metadata of the client."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64)
    committed_leader_epoch: int = wire(INT32, since=6, default=-1)
    committed_metadata: str | None = wire(NULLABLE_STRING, default=None)


@struct
class OffsetCommitRequestTopic:
    """Offsets of one topic, by name up to version 9 and by id from then on."""

    name: str = wire(STRING, until=9, default="")
    topic_id: uuid.UUID = wire(UUID, since=10, default=NO_ID)
    partitions: tuple[OffsetCommitRequestPartition, ...] = wire(ARRAY(OffsetCommitRequestPartition))


@message(OFFSET_COMMIT)
class OffsetCommitRequest:
    """Commit offsets of a group."""

    group_id: str = wire(STRING)
    generation_id_or_member_epoch: int = wire(INT32, default=-1)
    member_id: str = wire(STRING)
    group_instance_id: str | None = wire(NULLABLE_STRING, since=7, default=None)
    retention_time_ms: int = wire(INT64, until=4, default=-1)
    topics: tuple[OffsetCommitRequestTopic, ...] = wire(ARRAY(OffsetCommitRequestTopic))


@struct
class OffsetCommitResponsePartition:
    """Result for one partition."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)


@struct
class OffsetCommitResponseTopic:
    """Results for the partitions of one topic."""

    name: str = wire(STRING, until=9, default="")
    topic_id: uuid.UUID = wire(UUID, since=10, default=NO_ID)
    partitions: tuple[OffsetCommitResponsePartition, ...] = wire(
        ARRAY(OffsetCommitResponsePartition), default=()
    )


@message(OFFSET_COMMIT)
class OffsetCommitResponse:
    """Results for all offsets."""

    throttle_time_ms: int = wire(INT32, since=3, default=0)
    topics: tuple[OffsetCommitResponseTopic, ...] = wire(
        ARRAY(OffsetCommitResponseTopic), default=()
    )


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic, in the layout for a single group."""

    name: str = wire(STRING)
    partition_indexes: tuple[int, ...] = wire(ARRAY(INT32))


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic, in the layout for several groups."""

    name: str = wire(STRING, until=9, default="")
    topic_id: uuid.UUID = wire(UUID, since=10, default=NO_ID)
    partition_indexes: tuple[int, ...] = wire(ARRAY(INT32))


@struct
class OffsetFetchRequestGroup:
    """One group; all its topics if they are null."""

    group_id: str = wire(STRING)
    member_id: str | None = wire(NULLABLE_STRING, since=9, default=None)
    member_epoch: int = wire(INT32, since=9, default=-1)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = wire(
        NULLABLE_ARRAY(OffsetFetchRequestTopics)
    )


@message(OFFSET_FETCH)
class OffsetFetchRequest:
    """Ask for committed offsets: of one group up to version 7, of several from then on."""

    group_id: str = wire(STRING, until=7, default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = wire(
        ARRAY(OffsetFetchRequestTopic), until=7, nullable_since=2, default=()
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = wire(
        ARRAY(OffsetFetchRequestGroup), since=8, default=()
    )
    require_stable: bool = wire(BOOL, since=7, default=False)


@struct
class OffsetFetchResponsePartition:
    """The offset of one partition, in the layout for a single group."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64, default=-1)
    committed_leader_epoch: int = wire(INT32, since=5, default=-1)
    metadata: str | None = wire(NULLABLE_STRING, default="")
    error_code: int = wire(INT16, default=0)


@struct
class OffsetFetchResponseTopic:
    """Offsets of one topic, in the layout for a single group."""

    name: str = wire(STRING)
    partitions: tuple[OffsetFetchResponsePartition, ...] = wire(
        ARRAY(OffsetFetchResponsePartition), default=()
    )


@struct
class OffsetFetchResponsePartitions:
    """The offset of one partition, in the layout for several groups."""

    partition_index: int = wire(INT32)
    committed_offset: int = wire(INT64, default=-1)
    committed_leader_epoch: int = wire(INT32, default=-1)
    metadata: str | None = wire(NULLABLE_STRING, default="")
    error_code: int = wire(INT16, default=0)


@struct
class OffsetFetchResponseTopics:
    """Offsets of one topic, in the layout for several groups."""

    name: str = wire(STRING, until=9, default="")
    topic_id: uuid.UUID = wire(UUID, since=10, default=NO_ID)
    partitions: tuple[OffsetFetchResponsePartitions, ...] = wire(
        ARRAY(OffsetFetchResponsePartitions), default=()
    )


@struct
class OffsetFetchResponseGroup:
    """The offsets of one group."""

    group_id: str = wire(STRING)
    topics: tuple[OffsetFetchResponseTopics, ...] = wire(
        ARRAY(OffsetFetchResponseTopics), default=()
    )
    error_code: int = wire(INT16, default=0)


@message(OFFSET_FETCH)
class OffsetFetchResponse:
    """The committed offsets; -1 if there is none."""

    throttle_time_ms: int = wire(INT32, since=3, default=0)
    topics: tuple[OffsetFetchResponseTopic, ...] = wire(
        ARRAY(OffsetFetchResponseTopic), until=7, default=()
    )
    error_code: int = wire(INT16, since=2, until=7, default=0)
    groups: tuple[OffsetFetchResponseGroup, ...] = wire(
        ARRAY(OffsetFetchResponseGroup), since=8, default=()
    )


@struct
class OffsetDeleteRequestPartition:
    """A partition whose offset is to be deleted."""

    partition_index: int = wire(INT32)


@struct
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[OffsetDeleteRequestPartition, ...] = wire(ARRAY(OffsetDeleteRequestPartition))


@message(OFFSET_DELETE)
class OffsetDeleteRequest:
    """Delete committed offsets of a group."""

    group_id: str = wire(STRING)
    topics: tuple[OffsetDeleteRequestTopic, ...] = wire(ARRAY(OffsetDeleteRequestTopic))


@struct
class OffsetDeleteResponsePartition:
    """Result for one partition."""

    partition_index: int = wire(INT32)
    error_code: int = wire(INT16, default=0)


@struct
class OffsetDeleteResponseTopic:
    """Results for the partitions of one topic."""

    name: str = wire(STRING)
    partitions: tuple[OffsetDeleteResponsePartition, ...] = wire(
        ARRAY(OffsetDeleteResponsePartition), default=()
    )


@message(OFFSET_DELETE)
class OffsetDeleteResponse:
    """Results for all offsets."""

    error_code: int = wire(INT16, default=0)
    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[OffsetDeleteResponseTopic, ...] = wire(
        ARRAY(OffsetDeleteResponseTopic), default=()
    )
