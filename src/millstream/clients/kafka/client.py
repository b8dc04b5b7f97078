"""Kafka client that reads topics, offsets and batches of a node or a Kafka cluster.

    with KafkaClient("127.0.0.1:9092") as client:
        partition = TopicPartition("orders", 0)
        start, end = client.bounds([partition], isolation=Isolation.READ_COMMITTED)[partition]
        for chunk in client.chunks(partition, start, end, isolation=Isolation.READ_COMMITTED):
            ...

Uses blocking sockets and returns undecoded batches: it is made for Spark executors, which decode
whole batches themselves. It only uses requests that Apache Kafka supports.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Self

from millstream.clients.kafka.cluster import KafkaCluster
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.fetcher import FETCH_SIZE_MAX, PartitionFetcher
from millstream.clients.kafka.offsets import EARLIEST, LATEST, NOT_FOUND, list_offsets
from millstream.clients.kafka.retry import raise_for_code
from millstream.clients.kafka.security import NO_SECURITY, KafkaSecurity
from millstream.clients.partition import BatchChunk, Isolation, OffsetBounds, TopicDescription
from millstream.clock import Clock, SystemClock
from millstream.errors import (
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopic,
)
from millstream.protocols.kafka.codec.primitives import NO_ID
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
)
from millstream.protocols.kafka.messages.metadata import MetadataResponseTopic
from millstream.protocols.kafka.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
)
from millstream.records.batch import BATCH_SIZE_MAX, decode_header
from millstream.records.topic_partition import TopicPartition

CLIENT_ID = "millstream"
TIMEOUT_S = 30.0
DEFAULT_REPLICAS = -1

SAMPLE_SIZE_MAX = 64 * 1024
"""Bytes that are read of a range to estimate the size of its records."""

_TOPIC = 2  # Kafka's resource type.
_SET, _RESET = 0, 1  # Kafka's operations.


class KafkaClient:
    """`RecordSource` over the Kafka protocol. For one thread; several reads may be in progress.

    `bootstrap` is a list as Kafka clients take it: the first node that responds names all others.
    Every call succeeds or fails within `timeout_s`; for a read, this applies to each chunk. Until
    then it is retried if that may help: the leader moved, a node is starting, or a connection
    broke.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
        fetch_size_max: int = FETCH_SIZE_MAX,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
        security: KafkaSecurity = NO_SECURITY,
    ) -> None:
        """Create a client, which connects on first use; by TLS and with a login if told."""
        if not 0 < fetch_size_max <= BATCH_SIZE_MAX:
            raise InvalidConfig(
                f"fetch_size_max must be between 1 and {BATCH_SIZE_MAX}, got {fetch_size_max}"
            )
        if not timeout_s > 0:
            raise InvalidConfig(f"timeout_s must be above 0, got {timeout_s}")
        self._fetch_size_max = fetch_size_max
        self.cluster = KafkaCluster(
            bootstrap,
            client_id=client_id,
            timeout_s=timeout_s,
            clock=clock or SystemClock(),
            pause=pause,
            tls=None if security.tls is None else security.tls.context(),
            login=security.login,
        )
        """Connections and metadata, for the other modules of this package."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Chunks that were returned stay valid."""
        self.cluster.close()

    # Topics.

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDescription]:
        """Return the named topics, or all except internal ones if `None`."""

        def attempt(deadline: Deadline) -> dict[str, TopicDescription]:
            descriptions: dict[str, TopicDescription] = {}
            for topic in self.cluster.describe(names, deadline).topics:
                if names is None and (topic.is_internal or topic.name is None):
                    continue
                descriptions[topic.name or ""] = _describe(topic)
            return descriptions

        descriptions = self.cluster.call_with_retries(attempt)
        for name in names or ():
            if name not in descriptions:
                raise UnknownTopic(f"topic {name!r} does not exist")
        return descriptions

    def ensure_topic(self, name: str, *, is_fresh: bool = False) -> TopicDescription:
        """Return a topic. If it is missing, the node creates it, if that is enabled.

        Every Kafka client does the same when it writes to a topic. With `is_fresh`, the node is
        asked even if this client knows the topic: it may have more partitions by now.
        """

        def attempt(deadline: Deadline) -> TopicDescription:
            known = self.cluster.cached_topic(name)
            if is_fresh or known is None:
                self.cluster.describe([name], deadline, may_create=True)
                known = self.cluster.topic(name, deadline)
            return _describe(known)

        return self.cluster.call_with_retries(attempt)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        replicas: int = DEFAULT_REPLICAS,
    ) -> TopicDescription:
        """Create a topic and wait until its partitions can be used. Raises `TopicExists`.

        The request is sent once: if the connection is lost, `NodeUnreachable` says that the topic
        may have been created.
        """
        new_topic = CreateTopicsRequestTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=tuple(
                CreateTopicsRequestConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ),
        )

        def attempt(deadline: Deadline) -> None:
            timeout_ms = max(1, int(deadline.left_s() * 1000))
            request = CreateTopicsRequest(topics=(new_topic,), timeout_ms=timeout_ms)
            with self.cluster.borrow(self.cluster.controller(deadline), deadline) as connection:
                answer: CreateTopicsResponse = connection.call(request, deadline=deadline)
            for result in answer.topics:
                raise_for_code(
                    result.error_code, f"topic {name!r}: {result.error_message or 'not created'}"
                )

        self.cluster.call_with_retries(attempt, is_repeatable=False)
        return self.cluster.call_with_retries(
            lambda deadline: self._usable(name, partitions, deadline)
        )

    def _usable(self, name: str, partitions: int, deadline: Deadline) -> TopicDescription:
        """Return a new topic once all its partitions have a leader."""
        for topic in self.cluster.describe([name], deadline).topics:
            raise_for_code(topic.error_code, f"topic {name!r} is not known on all nodes yet")
        for partition in range(partitions):
            self.cluster.leader(TopicPartition(name, partition), deadline)
        return _describe(self.cluster.topic(name, deadline))

    def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configs of topics by name, without sensitive ones."""
        if not names:
            return {}
        resources = tuple(
            DescribeConfigsRequestResource(resource_type=_TOPIC, resource_name=name)
            for name in dict.fromkeys(names)
        )

        def attempt(deadline: Deadline) -> DescribeConfigsResponse:
            address = self.cluster.controller(deadline)
            with self.cluster.borrow(address, deadline) as connection:
                request = DescribeConfigsRequest(resources=resources)
                answer: DescribeConfigsResponse = connection.call(request, deadline=deadline)
            for result in answer.results:
                message = (
                    f"topic {result.resource_name!r}: {result.error_message or 'not described'}"
                )
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(message)
                raise_for_code(result.error_code, message)
            return answer

        return {
            result.resource_name: {
                setting.name: setting.value
                for setting in result.configs
                if setting.value is not None
            }
            for result in self.cluster.call_with_retries(attempt).results
        }

    def alter_topic_configs(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set configs of a topic; `None` resets one to its default. The others stay."""
        resource = IncrementalAlterConfigsRequestResource(
            resource_type=_TOPIC,
            resource_name=name,
            configs=tuple(
                IncrementalAlterConfigsRequestConfig(
                    name=config, config_operation=_RESET if value is None else _SET, value=value
                )
                for config, value in changes.items()
            ),
        )

        def attempt(deadline: Deadline) -> None:
            address = self.cluster.controller(deadline)
            with self.cluster.borrow(address, deadline) as connection:
                request = IncrementalAlterConfigsRequest(resources=(resource,))
                answer: IncrementalAlterConfigsResponse = connection.call(
                    request, deadline=deadline
                )
            for result in answer.responses:
                message = f"topic {name!r}: {result.error_message or 'not changed'}"
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(message)
                raise_for_code(result.error_code, message)

        self.cluster.call_with_retries(attempt)

    # Offsets.

    def bounds(
        self, partitions: Sequence[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return the readable offsets; see `RecordSource.bounds`."""
        bounds = list_offsets(self.cluster, partitions, (EARLIEST, LATEST), isolation=isolation)
        return {partition: OffsetBounds(*offsets) for partition, offsets in bounds.items()}

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after that time, committed or not; see `RecordSource`."""
        if timestamp_ms < 0:
            raise InvalidRequest(f"timestamp must be at least 0 ms, got {timestamp_ms}")
        isolation = Isolation.READ_UNCOMMITTED
        found_offsets = list_offsets(self.cluster, partitions, (timestamp_ms,), isolation=isolation)
        return {
            partition: None if offset == NOT_FOUND else offset
            for partition, (offset,) in found_offsets.items()
        }

    # Batches.

    def offset_bytes(
        self, partitions: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, float]:
        """Return the approximate log size of one offset, estimated from the start of each range."""
        return {
            partition: self._offset_bytes(partition, *bounds)
            for partition, bounds in partitions.items()
        }

    def _offset_bytes(self, partition: TopicPartition, start: int, end: int) -> float:
        """Fetch only the batch that contains `start`, without prefetching."""
        isolation = Isolation.READ_UNCOMMITTED
        reading = self._reading(
            partition, start, min(start + 1, end), isolation=isolation, size_max=SAMPLE_SIZE_MAX
        )
        try:
            for chunk in reading:
                first_offset = decode_header(chunk.data).base_offset
                return len(chunk.data) / (chunk.next_offset - first_offset)
        except OffsetOutOfRange:
            pass  # A reader of the range gets the error.
        finally:
            reading.close()
        return 1.0

    def chunks(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        topic_id: uuid.UUID | None = None,
    ) -> Iterator[BatchChunk]:
        """Read complete batches of a range; see `RecordSource.chunks`.

        The data of a chunk is a view into a buffer of the connection. It is valid until the next
        chunk is requested, or the iterator is closed and the client used again. Batch checksums are
        not verified here; the caller does that when it decodes.
        """
        if not 0 <= start <= end:
            raise InvalidRequest(
                f"offset range must satisfy 0 <= start <= end, got {start} to {end}"
            )
        return self._reading(
            partition,
            start,
            end,
            isolation=isolation,
            size_max=self._fetch_size_max,
            topic_id=topic_id,
        )

    def _reading(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        size_max: int,
        topic_id: uuid.UUID | None = None,
    ) -> Generator[BatchChunk, None, None]:
        def bounds() -> OffsetBounds:
            return self.bounds([partition], isolation=isolation)[partition]

        return PartitionFetcher(
            self.cluster,
            partition,
            start,
            end,
            isolation=isolation,
            size_max=size_max,
            bounds=bounds,
            topic_id=topic_id,
        ).chunks()


def _describe(topic: MetadataResponseTopic) -> TopicDescription:
    """Return the description in a metadata response, or raise its error."""
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"topic {topic.name!r} does not exist")
    raise_for_code(topic.error_code, f"topic {topic.name!r} cannot be described")
    topic_id = None if topic.topic_id == NO_ID else topic.topic_id
    return TopicDescription(topic.name or "", topic_id, len(topic.partitions))
