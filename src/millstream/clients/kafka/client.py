"""A node, or a cluster of Kafka's, as a place to read: topics, offsets, batches.

    with Node("127.0.0.1:9092") as node:
        where = TopicPartition("orders", 0)
        start, end = node.bounds([where], isolation=Isolation.READ_COMMITTED)[where]
        for stretch in node.stretches(where, start, end, isolation=Isolation.READ_COMMITTED):
            ...

Synchronous, over blocking sockets, batch by batch: made for Spark's executors, which decode whole
batches themselves. It asks for nothing that Apache Kafka does not answer as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Self

from millstream.clients.kafka.cluster import KafkaCluster
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.fetcher import FETCH_SIZE_MAX, PartitionFetcher
from millstream.clients.kafka.offsets import EARLIEST, LATEST, NOT_FOUND, list_offsets
from millstream.clients.kafka.retry import raise_for_code
from millstream.clients.partition import BatchChunk, Isolation, OffsetBounds, TopicDescription
from millstream.clock import Clock, SystemClock
from millstream.errors import (
    InvalidConfig,
    InvalidRequest,
    OffsetOutOfRange,
    UnknownTopic,
)
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
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
"""What is read of a range to see how large its records are."""

_TOPIC = 2  # Kafka's number for the kind of resource.


class KafkaClient:
    """A `Place` behind a Kafka door. For one thread; several readings may be under way in it.

    `bootstrap` is a list as Kafka's clients take it: the first node that answers tells of all
    others. Whatever is asked is done, or has failed, within `timeout_s`; of a reading, that holds
    for each stretch. Until then it is tried again where that may help: a leader moved, a node is
    starting, a connection broke.
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
    ) -> None:
        if not 0 < fetch_size_max <= BATCH_SIZE_MAX:
            raise InvalidConfig(
                f"fetch_size_max is {fetch_size_max}, allowed is 1 to {BATCH_SIZE_MAX} bytes"
            )
        if not timeout_s > 0:
            raise InvalidConfig(f"timeout_s is {timeout_s}, it has to be above 0")
        self._fetch_size_max = fetch_size_max
        self.cluster = KafkaCluster(
            bootstrap,
            client_id=client_id,
            timeout_s=timeout_s,
            clock=clock or SystemClock(),
            pause=pause,
        )
        """Whom it asks; for what else of this package speaks to the same nodes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. What was handed out stays valid."""
        self.cluster.close()

    # Topics.

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDescription]:
        """Return the topics of these names; all but internal ones where `None`."""

        def ask(deadline: Deadline) -> dict[str, TopicDescription]:
            found: dict[str, TopicDescription] = {}
            for topic in self.cluster.describe(names, deadline).topics:
                if names is None and (topic.is_internal or topic.name is None):
                    continue
                found[topic.name or ""] = _info(topic)
            return found

        found = self.cluster.retrying(ask)
        for name in names or ():
            if name not in found:
                raise UnknownTopic(f"there is no topic {name!r}")
        return found

    def ensure_topic(self, name: str) -> TopicDescription:
        """Return a topic; where it is missing, the node makes it if it is set to.

        That is what writing to a topic does with any client of Kafka's.
        """

        def ask(deadline: Deadline) -> TopicDescription:
            if (known := self.cluster.known(name)) is None:
                self.cluster.describe([name], deadline, may_create=True)
                known = self.cluster.topic(name, deadline)
            return _info(known)

        return self.cluster.retrying(ask)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        replicas: int = DEFAULT_REPLICAS,
    ) -> TopicDescription:
        """Create a topic, and return when its partitions can be used; raises `TopicExists`.

        It is asked for once: where the connection is lost meanwhile, `NodeUnreachable` says that it
        may have been created.
        """
        wanted = CreateTopicsRequestTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=tuple(
                CreateTopicsRequestConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ),
        )

        def ask(deadline: Deadline) -> None:
            timeout_ms = max(1, int(deadline.left_s() * 1000))
            request = CreateTopicsRequest(topics=(wanted,), timeout_ms=timeout_ms)
            with self.cluster.lent(self.cluster.controller(deadline), deadline) as connection:
                answer: CreateTopicsResponse = connection.call(request, deadline=deadline)
            for one in answer.topics:
                raise_for_code(
                    one.error_code, f"topic {name!r}: {one.error_message or 'not created'}"
                )

        self.cluster.retrying(ask, is_repeatable=False)
        return self.cluster.retrying(lambda deadline: self._usable(name, partitions, deadline))

    def _usable(self, name: str, partitions: int, deadline: Deadline) -> TopicDescription:
        """Return a new topic when all nodes know who leads it."""
        for found in self.cluster.describe([name], deadline).topics:
            raise_for_code(found.error_code, f"topic {name!r} is not known everywhere yet")
        for partition in range(partitions):
            self.cluster.leader(TopicPartition(name, partition), deadline)
        return _info(self.cluster.topic(name, deadline))

    def topic_configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics by name; those that a node keeps secret are left out."""
        if not names:
            return {}
        resources = tuple(
            DescribeConfigsRequestResource(resource_type=_TOPIC, resource_name=name)
            for name in dict.fromkeys(names)
        )

        def ask(deadline: Deadline) -> DescribeConfigsResponse:
            address = self.cluster.controller(deadline)
            with self.cluster.lent(address, deadline) as connection:
                request = DescribeConfigsRequest(resources=resources)
                answer: DescribeConfigsResponse = connection.call(request, deadline=deadline)
            for one in answer.results:
                message = f"topic {one.resource_name!r}: {one.error_message or 'not described'}"
                if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopic(message)
                raise_for_code(one.error_code, message)
            return answer

        return {
            one.resource_name: {
                setting.name: setting.value for setting in one.configs if setting.value is not None
            }
            for one in self.cluster.retrying(ask).results
        }

    # Offsets.

    def bounds(
        self, where: Sequence[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return what can be read now; see `Place.bounds`."""
        found = list_offsets(self.cluster, where, (EARLIEST, LATEST), isolation=isolation)
        return {one: OffsetBounds(*offsets) for one, offsets in found.items()}

    def offsets_at(
        self, where: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at that time or later, whether it is committed or not."""
        if timestamp_ms < 0:
            raise InvalidRequest(f"timestamp is {timestamp_ms} ms, it may not be below 0")
        isolation = Isolation.READ_UNCOMMITTED
        found = list_offsets(self.cluster, where, (timestamp_ms,), isolation=isolation)
        return {one: None if offset == NOT_FOUND else offset for one, (offset,) in found.items()}

    # Batches.

    def offset_bytes(
        self, where: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, float]:
        """Return about how much of the log an offset takes, by a look at the start of each."""
        return {one: self._offset_bytes(one, *bounds) for one, bounds in where.items()}

    def _offset_bytes(self, where: TopicPartition, start: int, end: int) -> float:
        """Look at the batch that holds `start`: one small answer, and nothing sent ahead."""
        isolation = Isolation.READ_UNCOMMITTED
        reading = self._reading(
            where, start, min(start + 1, end), isolation=isolation, size_max=SAMPLE_SIZE_MAX
        )
        try:
            for stretch in reading:
                first_offset = decode_header(stretch.data).base_offset
                return len(stretch.data) / (stretch.next_offset - first_offset)
        except OffsetOutOfRange:
            pass  # Whoever reads there is told.
        finally:
            reading.close()
        return 1.0

    def stretches(
        self, where: TopicPartition, start: int, end: int, *, isolation: Isolation
    ) -> Iterator[BatchChunk]:
        """Read whole batches of a range; see `Place.stretches`.

        The data of a stretch is a view into a buffer of the connection: it is valid until the next
        stretch is asked for, or the iterator is closed and the node used again. Sums of batches are
        not checked here; whoever decodes does that.
        """
        if not 0 <= start <= end:
            raise InvalidRequest(f"range is {start} to {end}, allowed is 0 <= start <= end")
        return self._reading(where, start, end, isolation=isolation, size_max=self._fetch_size_max)

    def _reading(
        self, where: TopicPartition, start: int, end: int, *, isolation: Isolation, size_max: int
    ) -> Generator[BatchChunk, None, None]:
        def bounds() -> OffsetBounds:
            return self.bounds([where], isolation=isolation)[where]

        return PartitionFetcher(
            self.cluster,
            where,
            start,
            end,
            isolation=isolation,
            size_max=size_max,
            bounds=bounds,
        ).stretches()


def _info(topic: MetadataResponseTopic) -> TopicDescription:
    """Return what is said of a topic, or raise why nothing is."""
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"there is no topic {topic.name!r}")
    raise_for_code(topic.error_code, f"topic {topic.name!r} cannot be described")
    return TopicDescription(topic.name or "", topic.topic_id, len(topic.partitions))
