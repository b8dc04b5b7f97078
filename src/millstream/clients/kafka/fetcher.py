"""Reads a range of one partition with pipelined fetches.

    send ─► receive ─► cut ─► send the next ─► yield the chunk ─► receive ─► ...

The next fetch is in flight while the caller decodes the last one. Each response is cut at the end
of its last complete batch, or where the range ends. The first fetch is small and the sizes double,
so that a short range does not cost a large response; towards the end they follow the remaining
size.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.clients.kafka.cluster import KafkaCluster
from millstream.clients.kafka.connection import BrokerConnection
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.retry import RetriableError, raise_for_code
from millstream.clients.partition import BatchChunk, Isolation, OffsetBounds
from millstream.errors import (
    CorruptBatch,
    DamagedRecords,
    MalformedAnswer,
    NodeUnreachable,
    OffsetOutOfRange,
    UnknownTopicId,
)
from millstream.protocols.kafka.codec.primitives import NO_ID
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from millstream.records.batch import HEADER_SIZE, LENGTH_END, decode_header
from millstream.records.topic_partition import TopicPartition

FETCH_SIZE_MAX: Final = 16 * 1024 * 1024
"""Default for the largest fetch. Between 4 and 32 MiB, throughput hardly differs."""

FETCH_SIZE_FIRST: Final = 1024 * 1024
"""Size of the first fetch and minimum of later ones: the default largest batch of a topic."""

WAIT_MS_MAX: Final = 100
"""How long a node may wait for data. There is data in the range, so it hardly ever waits."""

ISOLATION_LEVELS: Final = {Isolation.READ_UNCOMMITTED: 0, Isolation.READ_COMMITTED: 1}

_TOPIC_ID_SINCE = 13
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LENGTH_MIN = HEADER_SIZE - LENGTH_END


class FetchChunk(NamedTuple):
    """The part of a response that is yielded."""

    data: memoryview
    next_offset: int
    """Offset after the last batch of the chunk."""
    position: int
    """Offset at which to continue; later than `next_offset` if nothing is stored between, as after
    compaction.
    """


def whole_batches(data: memoryview, position: int, end: int) -> FetchChunk | None:
    """Return the complete batches of `data` that begin before `end`; `None` if there is none.

    Nodes may truncate the last batch; it is left out. `position` is the requested offset: batches
    that end before it are an error.
    """
    at, last, size = 0, -1, len(data)
    beyond = None
    while size - at >= HEADER_SIZE:
        base, length = _OFFSET_AND_LENGTH.unpack_from(data, at)
        if length < _LENGTH_MIN:
            raise CorruptBatch(
                f"batch size must be at least {HEADER_SIZE}, got {length + LENGTH_END}"
            )
        if base >= end:
            beyond = base
            break
        if (stop := at + LENGTH_END + length) > size:
            break
        last, at = at, stop
    if last < 0:
        return None if beyond is None else FetchChunk(data[:0], position, beyond)
    next_offset = decode_header(data, last).next_offset
    if next_offset <= position:
        raise MalformedAnswer(
            f"response to a fetch from offset {position} ends at offset {next_offset}"
        )
    return FetchChunk(data[:at], next_offset, next_offset if beyond is None else beyond)


class PartitionFetcher:
    """Read of a range of one partition. See `RecordSource.chunks`."""

    def __init__(
        self,
        cluster: KafkaCluster,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        size_max: int,
        bounds: Callable[[], OffsetBounds],
        topic_id: uuid.UUID | None = None,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._position = start
        self._end = end
        self._isolation = isolation
        self._size_max = size_max
        self._bounds = bounds
        self._size = min(FETCH_SIZE_FIRST, size_max)
        self._connection: BrokerConnection | None = None
        self._topic_id: uuid.UUID | None = None
        self._expected_id = topic_id
        """Topic that the range belongs to; that of the first chunk if the caller named none."""

    def chunks(self) -> Generator[BatchChunk, None, None]:
        """Yield the chunks. The connection and its buffers are in use until this ends."""
        try:
            while self._position < self._end:
                chunk = self._cluster.call_with_retries(self._fetch)
                if chunk.data:
                    yield chunk
        finally:
            self._release_connection()

    def _fetch(self, deadline: Deadline) -> BatchChunk:
        try:
            connection = self._connection or self._connect(deadline)
            if not connection.in_flight:
                self._send(connection, deadline)
            answer: FetchResponse = connection.receive(deadline=deadline)
            result = self._check_response(answer, connection)
        except BaseException:
            # The response in flight is unusable, and the leader may have moved.
            self._close_connection()
            raise
        return self._take_chunk(result, connection)

    # Requests.

    def _connect(self, deadline: Deadline) -> BrokerConnection:
        address = self._cluster.leader(self._partition, deadline)
        self._topic_id = self._check_id(deadline)
        self._connection = self._cluster.acquire(address, deadline)
        return self._connection

    def _check_id(self, deadline: Deadline) -> uuid.UUID:
        """Return the id of the topic; raise if it is not the one that is read."""
        name, expected_id = self._partition.topic, self._expected_id
        topic_id = self._cluster.topic(name, deadline).topic_id
        if topic_id != expected_id and expected_id is not None:
            self._cluster.forget()  # What is cached may be older than the range.
            topic_id = self._cluster.topic(name, deadline).topic_id
            if topic_id != expected_id:
                raise UnknownTopicId(
                    f"{self._partition}: the topic was deleted and created again"
                    f" (id {expected_id}, now {topic_id})"
                )
        return topic_id

    def _send(self, connection: BrokerConnection, deadline: Deadline) -> None:
        partition = FetchRequestPartition(
            partition=self._partition.partition,
            fetch_offset=self._position,
            partition_max_bytes=self._size,
        )
        topic_id = self._topic_id or NO_ID
        request = FetchRequest(
            max_wait_ms=WAIT_MS_MAX,
            min_bytes=1,
            max_bytes=self._size,
            isolation_level=ISOLATION_LEVELS[self._isolation],
            topics=(
                FetchRequestTopic(
                    topic=self._partition.topic, topic_id=topic_id, partitions=(partition,)
                ),
            ),
        )
        named_max = _TOPIC_ID_SINCE - 1 if topic_id == NO_ID else None
        connection.send(request, version_max=named_max, deadline=deadline)

    # Responses.

    def _check_response(
        self, answer: FetchResponse, connection: BrokerConnection
    ) -> FetchResponsePartition:
        message = f"{connection.address} on fetching {self._partition} at offset {self._position}"
        raise_for_code(answer.error_code, message)
        results = [part for topic in answer.responses for part in topic.partitions]
        if len(results) != 1 or results[0].partition_index != self._partition.partition:
            indexes = [part.partition_index for part in results]
            raise MalformedAnswer(f"{message}: the response is for partitions {indexes}")
        result = results[0]
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = self._bounds()
            raise OffsetOutOfRange(self._position, start=start, end=end)
        if result.error_code == ErrorCode.CORRUPT_MESSAGE:
            at = self._position
            raise DamagedRecords(message, "the node cannot read it", from_offset=at, to_offset=at)
        raise_for_code(result.error_code, message)
        is_committed = self._isolation is Isolation.READ_COMMITTED
        limit = result.last_stable_offset if is_committed else result.high_watermark
        if limit < self._end:
            start, end = self._bounds()
            if end < self._end:
                raise OffsetOutOfRange(self._end, start=start, end=end)
        return result

    def _take_chunk(
        self, result: FetchResponsePartition, connection: BrokerConnection
    ) -> BatchChunk:
        if result.log_start_offset > self._position:
            # The log start moved without an error: the records were deleted on request.
            self._position = min(result.log_start_offset, self._end)
        if self._position == self._end:
            return BatchChunk(b"", self._end, {})
        records = result.records
        assert records is None or isinstance(records, memoryview), "decoded as a view"
        chunk = whole_batches(records, self._position, self._end) if records else None
        if chunk is None:
            raise RetriableError(
                NodeUnreachable(
                    str(connection.address),
                    f"{len(records or b'')} bytes without a complete batch of {self._partition} at"
                    f" offset {self._position}, although there are records",
                )
            )
        self._update_size(chunk)
        self._position = chunk.position
        self._expected_id = self._topic_id
        if self._position < self._end:
            self._send_ahead(connection)
        return BatchChunk(chunk.data, chunk.next_offset, _aborted(result))

    def _update_size(self, chunk: FetchChunk) -> None:
        """Double the fetch size, but not much beyond the estimated size of the remaining range."""
        per_offset = len(chunk.data) / max(1, chunk.position - self._position)
        remaining_size = int((self._end - chunk.position) * per_offset * 1.25)
        wanted = min(self._size * 2, max(remaining_size, FETCH_SIZE_FIRST))
        self._size = min(wanted, self._size_max)

    def _send_ahead(self, connection: BrokerConnection) -> None:
        try:
            self._send(connection, self._cluster.deadline())
        except NodeUnreachable:
            self._close_connection()  # `_fetch` sends it again, to the leader of that moment.

    # Connection.

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _release_connection(self) -> None:
        if self._connection is not None:
            self._cluster.release(self._connection)
            self._connection = None


def _aborted(result: FetchResponsePartition) -> Mapping[int, Sequence[int]]:
    by_producer: dict[int, list[int]] = {}
    for transaction in result.aborted_transactions or ():
        by_producer.setdefault(transaction.producer_id, []).append(transaction.first_offset)
    for offsets in by_producer.values():
        offsets.sort()
    return by_producer
