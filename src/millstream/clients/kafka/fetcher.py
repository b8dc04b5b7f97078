"""Reading one partition, fetch by fetch.

    send ─► receive ─► cut ─► send the next ─► hand out ─► receive ─► ...

The next fetch is on its way while the one before is being decoded. Each answer is cut where whole
batches end, or where the range does. The first fetch is small and the sizes double, so that a short
range does not cost a large answer; towards the end they follow what is left.
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
"""What one fetch asks for at the most, by default. From 4 to 32 MiB, speed hardly differs."""

FETCH_SIZE_FIRST: Final = 1024 * 1024
"""What the first fetch asks for, and any at the least: the largest batch of a topic by default."""

WAIT_MS_MAX: Final = 100
"""How long a node may wait for something to send. There is something, so it hardly ever does."""

ISOLATION_LEVELS: Final = {Isolation.READ_UNCOMMITTED: 0, Isolation.READ_COMMITTED: 1}

_TOPIC_ID_SINCE = 13
_PLACE = struct.Struct(">qi")
_LENGTH_MIN = HEADER_SIZE - LENGTH_END


class FetchChunk(NamedTuple):
    """What of an answer is handed out."""

    data: memoryview
    next_offset: int
    """Behind the last batch that is handed out."""
    position: int
    """Where to read on; further where nothing lies between, as after compaction."""


def whole_batches(data: memoryview, position: int, end: int) -> FetchChunk | None:
    """Return the whole batches of `data` that begin before `end`; `None` without a whole batch.

    Nodes may cut the last batch short; what follows the last whole one is left out. `position` is
    the offset that was asked for: batches that do not reach it are no answer.
    """
    place, last, size = 0, -1, len(data)
    beyond = None
    while size - place >= HEADER_SIZE:
        base, length = _PLACE.unpack_from(data, place)
        if length < _LENGTH_MIN:
            raise CorruptBatch(f"batch claims {length + LENGTH_END} bytes, least is {HEADER_SIZE}")
        if base >= end:
            beyond = base
            break
        if (stop := place + LENGTH_END + length) > size:
            break
        last, place = place, stop
    if last < 0:
        return None if beyond is None else FetchChunk(data[:0], position, beyond)
    next_offset = decode_header(data, last).next_offset
    if next_offset <= position:
        raise MalformedAnswer(f"asked from offset {position} on, found batches up to {next_offset}")
    return FetchChunk(data[:place], next_offset, next_offset if beyond is None else beyond)


class PartitionFetcher:
    """A range of one partition, under way. See `Place.stretches`."""

    def __init__(
        self,
        cluster: KafkaCluster,
        where: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        size_max: int,
        bounds: Callable[[], OffsetBounds],
    ) -> None:
        self._cluster = cluster
        self._where = where
        self._position = start
        self._end = end
        self._isolation = isolation
        self._size_max = size_max
        self._bounds = bounds
        self._size = min(FETCH_SIZE_FIRST, size_max)
        self._connection: BrokerConnection | None = None
        self._topic_id: uuid.UUID | None = None
        self._is_begun = False

    def stretches(self) -> Generator[BatchChunk, None, None]:
        """Hand out what there is. The connection is lent until this ends, with its buffers."""
        try:
            while self._position < self._end:
                stretch = self._cluster.retrying(self._fetch)
                if stretch.data:
                    yield stretch
        finally:
            self._leave()

    def _fetch(self, deadline: Deadline) -> BatchChunk:
        try:
            connection = self._connection or self._enter(deadline)
            if not connection.in_flight:
                self._send(connection, deadline)
            answer: FetchResponse = connection.receive(deadline=deadline)
            found = self._checked(answer, connection)
        except BaseException:
            # What would be answered next, and by whom, has to be found out anew.
            self._drop()
            raise
        return self._taken(found, connection)

    # Asking.

    def _enter(self, deadline: Deadline) -> BrokerConnection:
        address = self._cluster.leader(self._where, deadline)
        topic_id = self._cluster.topic(self._where.topic, deadline).topic_id
        if self._is_begun and topic_id != self._topic_id:
            raise UnknownTopicId(
                f"{self._where}: topic {self._topic_id} is gone, that name has {topic_id} now"
            )
        self._topic_id = topic_id
        self._connection = self._cluster.take(address, deadline)
        return self._connection

    def _send(self, connection: BrokerConnection, deadline: Deadline) -> None:
        asked = FetchRequestPartition(
            partition=self._where.partition,
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
                FetchRequestTopic(topic=self._where.topic, topic_id=topic_id, partitions=(asked,)),
            ),
        )
        named_max = _TOPIC_ID_SINCE - 1 if topic_id == NO_ID else None
        connection.send(request, version_max=named_max, deadline=deadline)

    # Being answered.

    def _checked(
        self, answer: FetchResponse, connection: BrokerConnection
    ) -> FetchResponsePartition:
        message = f"{connection.address} on fetching {self._where} at offset {self._position}"
        raise_for_code(answer.error_code, message)
        results = [part for topic in answer.responses for part in topic.partitions]
        if len(results) != 1 or results[0].partition_index != self._where.partition:
            indexes = [part.partition_index for part in results]
            raise MalformedAnswer(f"{message}: answered for partitions {indexes}")
        found = results[0]
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = self._bounds()
            raise OffsetOutOfRange(self._position, start=start, end=end)
        raise_for_code(found.error_code, message)
        is_committed = self._isolation is Isolation.READ_COMMITTED
        limit = found.last_stable_offset if is_committed else found.high_watermark
        if limit < self._end:
            start, end = self._bounds()
            if end < self._end:
                raise OffsetOutOfRange(self._end, start=start, end=end)
        return found

    def _taken(self, found: FetchResponsePartition, connection: BrokerConnection) -> BatchChunk:
        if found.log_start_offset > self._position:
            # A node that says no more about it was told to delete what was there.
            self._position = min(found.log_start_offset, self._end)
        if self._position == self._end:
            return BatchChunk(b"", self._end, {})
        records = found.records
        assert records is None or isinstance(records, memoryview), "decoded as a view"
        got = whole_batches(records, self._position, self._end) if records else None
        if got is None:
            raise RetriableError(
                NodeUnreachable(
                    str(connection.address),
                    f"{len(records or b'')} bytes and no whole batch of {self._where} at offset"
                    f" {self._position}, though there are records",
                )
            )
        self._note_size(got)
        self._position = got.position
        self._is_begun = True
        if self._position < self._end:
            self._send_ahead(connection)
        return BatchChunk(got.data, got.next_offset, _aborted(found))

    def _note_size(self, got: FetchChunk) -> None:
        """Ask for twice as much next, and not for much more than the rest of the range takes."""
        per_offset = len(got.data) / max(1, got.position - self._position)
        rest = int((self._end - got.position) * per_offset * 1.25)
        wanted = min(self._size * 2, max(rest, FETCH_SIZE_FIRST))
        self._size = min(wanted, self._size_max)

    def _send_ahead(self, connection: BrokerConnection) -> None:
        try:
            self._send(connection, self._cluster.deadline())
        except NodeUnreachable:
            self._drop()  # It is sent again, to whoever leads then, when its answer is wanted.

    # Leaving.

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _leave(self) -> None:
        if self._connection is not None:
            self._cluster.give(self._connection)
            self._connection = None


def _aborted(found: FetchResponsePartition) -> Mapping[int, Sequence[int]]:
    by_producer: dict[int, list[int]] = {}
    for one in found.aborted_transactions or ():
        by_producer.setdefault(one.producer_id, []).append(one.first_offset)
    for offsets in by_producer.values():
        offsets.sort()
    return by_producer
