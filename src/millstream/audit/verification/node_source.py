"""`VerificationSource` over the Kafka protocol, as any client sees a node."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from millstream.audit.verification.source import IntactBatch, PartitionFacts
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.security import NO_SECURITY, KafkaSecurity
from millstream.clients.partition import Isolation
from millstream.errors import (
    CorruptBatch,
    CorruptData,
    MalformedAnswer,
    MillstreamError,
    NodeRefused,
    OffsetOutOfRange,
    UnknownTopic,
)
from millstream.records.batch import BatchHeader, check_batch, split
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.catalog import Finding, FindingKind

TIMEOUT_S = 30.0
"""How long a node may take to respond: it may be starting, or busy."""

PROBE_TIMEOUT_S = 1.0
"""Time limit next to an offset that the node just refused: damage does not go away."""

_UNREADABLE = (CorruptData, MalformedAnswer, NodeRefused)
_ALL = Isolation.READ_UNCOMMITTED


class NodeSource:
    """Partitions of a node or a Kafka cluster. A context manager, because it has connections."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = TIMEOUT_S,
        security: KafkaSecurity = NO_SECURITY,
        on_bytes: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._client = KafkaClient(bootstrap, timeout_s=timeout_s, security=security)
        self._single = KafkaClient(
            bootstrap, timeout_s=timeout_s, fetch_size_max=1, security=security
        )
        """Requests one byte, and so gets one batch."""
        self._impatient = KafkaClient(
            bootstrap,
            timeout_s=min(timeout_s, PROBE_TIMEOUT_S),
            fetch_size_max=1,
            security=security,
        )
        self._on_bytes = on_bytes
        self._topics: dict[str, tuple[uuid.UUID | None, int, bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self._client, self._single, self._impatient):
            client.close()

    def partitions(self, topics: Sequence[str] = ()) -> list[TopicPartition]:
        """Return all partitions, or those of some topics. Raises `UnknownTopic`."""
        descriptions = self._client.topics(list(topics) or None)
        return [
            TopicPartition(name, number)
            for name, info in sorted(descriptions.items())
            for number in range(info.partitions)
        ]

    def size(self, partitions: Sequence[TopicPartition]) -> int:
        """Return the approximate number of bytes to read."""
        bounds = self._client.bounds(partitions, isolation=_ALL) if partitions else {}
        total = 0.0
        for partition, (start, end) in bounds.items():
            try:
                size = (
                    self._impatient.offset_bytes({partition: bounds[partition]})[partition]
                    if start < end
                    else 0
                )
            except MillstreamError:
                size = 1  # The read reports the error.
            total += size * (end - start)
        return int(total)

    def facts(self, partition: TopicPartition) -> PartitionFacts | str:
        """Return the current state of a partition; an explanation if it does not exist."""
        try:
            topic_id, partitions, is_compacted = self._topic(partition.topic)
        except UnknownTopic as error:
            return str(error)
        if partition.partition >= partitions:
            return f"topic {partition.topic!r} has only partitions 0 to {partitions - 1}"
        start, end = self._client.bounds([partition], isolation=_ALL)[partition]
        return PartitionFacts(start, end, topic_id, compacted_before=end if is_compacted else 0)

    def _topic(self, name: str) -> tuple[uuid.UUID | None, int, bool]:
        if name not in self._topics:
            info = self._client.topics([name])[name]
            policy = self._client.topic_configs([name])[name].get("cleanup.policy", "")
            self._topics[name] = (info.id, info.partitions, "compact" in policy)
        return self._topics[name]

    def batches(
        self, partition: TopicPartition, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        """Yield all intact batches up to `facts.end`, and findings for the damage between them.

        If a large fetch fails, batches are requested one by one, up to the damaged one.
        """
        position, reader = facts.start, self._client
        while position < facts.end:
            try:
                for item in self._read_batches(reader, partition, position, facts):
                    yield item
                    if isinstance(item, IntactBatch):
                        position = item.header.next_offset
            except OffsetOutOfRange as error:
                if error.start <= position:
                    yield _problem(
                        partition, position, f"the partition should end at {facts.end}, but {error}"
                    )
                    return
                position = error.start  # Retention deleted it meanwhile.
            except _UNREADABLE as error:
                if reader is self._client:
                    reader = self._impatient
                    continue
                yield _problem(partition, position, f"cannot be read: {error}")
                position = self._next_readable(partition, position, facts.end)
                reader = self._client
            else:
                if position < facts.end and not facts.compacted_before:
                    yield _absent(partition, position, facts.end - 1)
                return

    def _read_batches(
        self, reader: KafkaClient, partition: TopicPartition, position: int, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        for chunk in reader.chunks(partition, position, facts.end, isolation=_ALL):
            for header, batch in split(chunk.data):
                if header.base_offset > position and not facts.compacted_before:
                    yield _absent(partition, position, header.base_offset - 1)
                try:
                    check_batch(header, batch)
                except CorruptBatch as error:
                    yield _problem(partition, header.base_offset, str(error))
                else:
                    yield IntactBatch(header, batch)
                position = header.next_offset
            self._on_bytes(len(chunk.data))

    def _next_readable(self, partition: TopicPartition, bad: int, end: int) -> int:
        """Return the first readable offset after `bad`, by growing steps and bisection."""
        step = 1
        while not self._is_readable(partition, good := min(bad + step, end)):
            bad, step = good, step * 2
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._is_readable(partition, middle):
                good = middle
            else:
                bad = middle
        return good

    def _is_readable(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether the batch at an offset can be read; the end counts as readable."""
        try:
            reading = self._impatient.chunks(partition, offset, offset + 1, isolation=_ALL)
            next(iter(reading), None)
        except OffsetOutOfRange:
            return True
        except _UNREADABLE:
            return False
        return True

    # For `probes.py`.

    def batch_at(self, partition: TopicPartition, offset: int) -> IntactBatch | None:
        """Return the first batch of a fetch from `offset`."""
        for chunk in self._single.chunks(partition, offset, offset + 1, isolation=_ALL):
            for header, batch in split(chunk.data):
                check_batch(header, batch)
                return IntactBatch(header, bytes(batch))
        return None

    def header_holding(
        self, partition: TopicPartition, offset: int, start: int
    ) -> BatchHeader | None:
        """Return the batch that contains `offset`, reading from an earlier offset."""
        for chunk in self._single.chunks(partition, start, offset + 1, isolation=_ALL):
            for header, _ in split(chunk.data):
                if header.last_offset >= offset:
                    return header
        return None

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the first offset at or after that time, according to the node's indexes."""
        return self._client.offsets_at([partition], timestamp_ms)[partition]


def _absent(partition: TopicPartition, first: int, last: int) -> Finding:
    what = f"no batch contains it, up to offset {last}"
    return Finding(str(partition), None, f"offset {first}: {what}", FindingKind.ABSENT)


def _problem(partition: TopicPartition, offset: int, what: str) -> Finding:
    return Finding(str(partition), None, f"offset {offset}: {what}")
