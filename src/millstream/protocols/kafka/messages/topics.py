"""Topics: create, add partitions, delete, elect leaders."""

from __future__ import annotations

import uuid

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT8,
    INT16,
    INT32,
    NO_ID,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
    UUID,
)

CREATE_TOPICS = Versions(first=2, last=7, flexible=5)
DELETE_TOPICS = Versions(first=1, last=6, flexible=4)
CREATE_PARTITIONS = Versions(first=0, last=3, flexible=2)
ELECT_LEADERS = Versions(first=0, last=2, flexible=2)


@struct
class CreateTopicsRequestAssignment:
    """Replica assignment of one partition."""

    partition_index: int = wire(INT32)
    broker_ids: tuple[int, ...] = wire(ARRAY(INT32))


@struct
class CreateTopicsRequestConfig:
    """One config of the new topic."""

    name: str = wire(STRING)
    value: str | None = wire(NULLABLE_STRING)


@struct
class CreateTopicsRequestTopic:
    """One topic to create, with a number of partitions or a manual assignment."""

    name: str = wire(STRING)
    num_partitions: int = wire(INT32)
    replication_factor: int = wire(INT16)
    assignments: tuple[CreateTopicsRequestAssignment, ...] = wire(
        ARRAY(CreateTopicsRequestAssignment), default=()
    )
    configs: tuple[CreateTopicsRequestConfig, ...] = wire(
        ARRAY(CreateTopicsRequestConfig), default=()
    )


@message(CREATE_TOPICS)
class CreateTopicsRequest:
    """Create topics."""

    topics: tuple[CreateTopicsRequestTopic, ...] = wire(ARRAY(CreateTopicsRequestTopic))
    timeout_ms: int = wire(INT32, default=60000)
    validate_only: bool = wire(BOOL, default=False)


@struct
class CreateTopicsResponseConfig:
    """One config of the new topic, with its source."""

    name: str = wire(STRING)
    value: str | None = wire(NULLABLE_STRING, default=None)
    read_only: bool = wire(BOOL, default=False)
    config_source: int = wire(INT8, default=-1)
    is_sensitive: bool = wire(BOOL, default=False)


@struct
class CreateTopicsResponseTopic:
    """One new topic, or the error."""

    name: str = wire(STRING)
    topic_id: uuid.UUID = wire(UUID, since=7, default=NO_ID)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    topic_config_error_code: int = wire(INT16, since=5, default=0, tag=0)
    num_partitions: int = wire(INT32, since=5, default=-1)
    replication_factor: int = wire(INT16, since=5, default=-1)
    configs: tuple[CreateTopicsResponseConfig, ...] | None = wire(
        NULLABLE_ARRAY(CreateTopicsResponseConfig), since=5, default=()
    )


@message(CREATE_TOPICS)
class CreateTopicsResponse:
    """Results for all topics."""

    throttle_time_ms: int = wire(INT32, default=0)
    topics: tuple[CreateTopicsResponseTopic, ...] = wire(
        ARRAY(CreateTopicsResponseTopic), default=()
    )


@struct
class DeleteTopicsRequestTopic:
    """One topic to delete, by name or by id."""

    name: str | None = wire(NULLABLE_STRING, default=None)
    topic_id: uuid.UUID = wire(UUID, default=NO_ID)


@message(DELETE_TOPICS)
class DeleteTopicsRequest:
    """Delete topics: by name up to version 5, by name or id from then on."""

    topics: tuple[DeleteTopicsRequestTopic, ...] = wire(
        ARRAY(DeleteTopicsRequestTopic), since=6, default=()
    )
    topic_names: tuple[str, ...] = wire(ARRAY(STRING), until=5, default=())
    timeout_ms: int = wire(INT32)


@struct
class DeleteTopicsResponseTopic:
    """Result for one topic."""

    name: str | None = wire(STRING, nullable_since=6)
    topic_id: uuid.UUID = wire(UUID, since=6, default=NO_ID)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, since=5, default=None)


@message(DELETE_TOPICS)
class DeleteTopicsResponse:
    """Results for all topics."""

    throttle_time_ms: int = wire(INT32, default=0)
    responses: tuple[DeleteTopicsResponseTopic, ...] = wire(
        ARRAY(DeleteTopicsResponseTopic), default=()
    )


@struct
class CreatePartitionsRequestAssignment:
    """Replica assignment of one new partition."""

    broker_ids: tuple[int, ...] = wire(ARRAY(INT32))


@struct
class CreatePartitionsRequestTopic:
    """New total number of partitions of one topic."""

    name: str = wire(STRING)
    count: int = wire(INT32)
    assignments: tuple[CreatePartitionsRequestAssignment, ...] | None = wire(
        NULLABLE_ARRAY(CreatePartitionsRequestAssignment), default=None
    )


@message(CREATE_PARTITIONS)
class CreatePartitionsRequest:
    """Add partitions to topics."""

    topics: tuple[CreatePartitionsRequestTopic, ...] = wire(ARRAY(CreatePartitionsRequestTopic))
    timeout_ms: int = wire(INT32)
    validate_only: bool = wire(BOOL, default=False)


@struct
class CreatePartitionsResponseTopic:
    """Result for one topic."""

    name: str = wire(STRING)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)


@message(CREATE_PARTITIONS)
class CreatePartitionsResponse:
    """Results for all topics."""

    throttle_time_ms: int = wire(INT32, default=0)
    results: tuple[CreatePartitionsResponseTopic, ...] = wire(
        ARRAY(CreatePartitionsResponseTopic), default=()
    )


@struct
class ElectLeadersRequestTopic:
    """Partitions of one topic."""

    topic: str = wire(STRING)
    partitions: tuple[int, ...] = wire(ARRAY(INT32))


@message(ELECT_LEADERS)
class ElectLeadersRequest:
    """Elect leaders of partitions; of all of them if null."""

    election_type: int = wire(INT8, since=1, default=0)
    topic_partitions: tuple[ElectLeadersRequestTopic, ...] | None = wire(
        NULLABLE_ARRAY(ElectLeadersRequestTopic), default=None
    )
    timeout_ms: int = wire(INT32, default=60000)


@struct
class ElectLeadersResponsePartition:
    """The election in one partition."""

    partition_id: int = wire(INT32)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)


@struct
class ElectLeadersResponseTopic:
    """The elections in one topic."""

    topic: str = wire(STRING)
    partition_result: tuple[ElectLeadersResponsePartition, ...] = wire(
        ARRAY(ElectLeadersResponsePartition), default=()
    )


@message(ELECT_LEADERS)
class ElectLeadersResponse:
    """Results of the elections."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, since=1, default=0)
    replica_election_results: tuple[ElectLeadersResponseTopic, ...] = wire(
        ARRAY(ElectLeadersResponseTopic), default=()
    )
