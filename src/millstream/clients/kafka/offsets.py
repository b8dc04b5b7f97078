"""Offset lookup: start and end of partitions, and offsets by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.clients.kafka.address import BrokerAddress
from millstream.clients.kafka.cluster import KafkaCluster
from millstream.clients.kafka.connection import BrokerConnection
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.fetcher import ISOLATION_LEVELS
from millstream.clients.kafka.retry import raise_for_code
from millstream.clients.partition import Isolation
from millstream.errors import CorruptBatch, MalformedAnswer
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
)
from millstream.records.topic_partition import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2
NOT_FOUND: Final = -1


def list_offsets(
    cluster: KafkaCluster,
    partitions: Sequence[TopicPartition],
    timestamps: Sequence[int],
    *,
    isolation: Isolation,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return, for each partition, the offset at each of `timestamps` (or `EARLIEST`, `LATEST`)."""

    def attempt(deadline: Deadline) -> dict[TopicPartition, tuple[int, ...]]:
        by_leader: dict[BrokerAddress, list[TopicPartition]] = {}
        for partition in dict.fromkeys(partitions):
            by_leader.setdefault(cluster.leader(partition, deadline), []).append(partition)
        offsets: dict[TopicPartition, tuple[int, ...]] = {}
        for leader, led in by_leader.items():
            with cluster.borrow(leader, deadline) as connection:
                offsets |= _ask_leader(connection, led, timestamps, isolation, deadline)
        return offsets

    return cluster.call_with_retries(attempt)


def _ask_leader(
    connection: BrokerConnection,
    partitions: Sequence[TopicPartition],
    timestamps: Sequence[int],
    isolation: Isolation,
    deadline: Deadline,
) -> dict[TopicPartition, tuple[int, ...]]:
    for timestamp in timestamps:  # A request may name a partition only once.
        connection.send(_request(partitions, timestamp, isolation, deadline), deadline=deadline)
    answers = [_offsets(connection, partitions, deadline) for _ in timestamps]
    return {partition: tuple(answer[partition] for answer in answers) for partition in partitions}


def _request(
    topic_partitions: Sequence[TopicPartition],
    timestamp: int,
    isolation: Isolation,
    deadline: Deadline,
) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsRequestPartition]] = {}
    for topic, number in topic_partitions:
        partition_request = ListOffsetsRequestPartition(partition_index=number, timestamp=timestamp)
        by_topic.setdefault(topic, []).append(partition_request)
    return ListOffsetsRequest(
        isolation_level=ISOLATION_LEVELS[isolation],
        timeout_ms=int(deadline.left_s() * 1000),
        topics=tuple(
            ListOffsetsRequestTopic(name=name, partitions=tuple(partitions))
            for name, partitions in by_topic.items()
        ),
    )


def _offsets(
    connection: BrokerConnection, partitions: Sequence[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, int]:
    answer: ListOffsetsResponse = connection.receive(deadline=deadline)
    offsets: dict[TopicPartition, int] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            partition = TopicPartition(topic.name, part.partition_index)
            message = f"{connection.address} on offsets of {partition}"
            if part.error_code == ErrorCode.CORRUPT_MESSAGE:
                raise CorruptBatch(f"{message}: records that it may be are damaged")
            raise_for_code(part.error_code, message)
            offsets[partition] = part.offset
    if missing := set(partitions).difference(offsets):
        raise MalformedAnswer(f"{connection.address} returned no offset for {min(missing)}")
    return offsets
