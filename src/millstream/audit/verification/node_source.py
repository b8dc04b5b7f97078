"""A node, as a `Source`: over its Kafka door, as any client sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from millstream.audit.verification.source import IntactBatch, PartitionFacts
from millstream.clients.kafka.client import KafkaClient
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
"""How long a node may take: it may be starting, or busy."""

PROBE_TIMEOUT_S = 1.0
"""How long it may take where it has just refused what lies before: damage does not go away."""

_NO_ID = uuid.UUID(int=0)
_UNREADABLE = (CorruptData, MalformedAnswer, NodeRefused)
_ALL = Isolation.READ_UNCOMMITTED


class NodeSource:
    """The partitions of a node, or of a cluster of Kafka's. `with` it, for it has connections."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = TIMEOUT_S,
        on_bytes: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._node = KafkaClient(bootstrap, timeout_s=timeout_s)
        self._single = KafkaClient(bootstrap, timeout_s=timeout_s, fetch_size_max=1)
        """Asks for one byte, and so gets one batch."""
        self._hasty = KafkaClient(
            bootstrap, timeout_s=min(timeout_s, PROBE_TIMEOUT_S), fetch_size_max=1
        )
        self._on_bytes = on_bytes
        self._known: dict[str, tuple[uuid.UUID | None, int, bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._node, self._single, self._hasty):
            one.close()

    def partitions(self, topics: Sequence[str] = ()) -> list[TopicPartition]:
        """Return all partitions, or those of some topics; raises `UnknownTopic`."""
        found = self._node.topics(list(topics) or None)
        return [
            TopicPartition(name, number)
            for name, info in sorted(found.items())
            for number in range(info.partitions)
        ]

    def size(self, where: Sequence[TopicPartition]) -> int:
        """Return about how many bytes there are to read."""
        bounds = self._node.bounds(where, isolation=_ALL) if where else {}
        total = 0.0
        for one, (start, end) in bounds.items():
            try:
                size = self._hasty.offset_bytes({one: bounds[one]})[one] if start < end else 0
            except MillstreamError:
                size = 1  # Whoever reads it will say what is wrong.
            total += size * (end - start)
        return int(total)

    def facts(self, where: TopicPartition) -> PartitionFacts | str:
        """Return what is known of a partition now; a sentence where it is not there."""
        try:
            topic_id, partitions, is_compacted = self._topic(where.topic)
        except UnknownTopic as error:
            return str(error)
        if where.partition >= partitions:
            return f"topic {where.topic!r} has partitions 0 to {partitions - 1} only"
        start, end = self._node.bounds([where], isolation=_ALL)[where]
        return PartitionFacts(start, end, topic_id, compacted_before=end if is_compacted else 0)

    def _topic(self, name: str) -> tuple[uuid.UUID | None, int, bool]:
        if name not in self._known:
            info = self._node.topics([name])[name]
            policy = self._node.topic_configs([name])[name].get("cleanup.policy", "")
            topic_id = None if info.id == _NO_ID else info.id
            self._known[name] = (topic_id, info.partitions, "compact" in policy)
        return self._known[name]

    def batches(
        self, where: TopicPartition, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        """Read all sound batches up to `facts.end`, and what is wrong between them.

        Where many at once cannot be read they are asked for one by one, until the one that is bad.
        """
        position, reader = facts.start, self._node
        while position < facts.end:
            try:
                for found in self._sound(reader, where, position, facts):
                    yield found
                    if isinstance(found, IntactBatch):
                        position = found.header.next_offset
            except OffsetOutOfRange as error:
                if error.start <= position:
                    yield _problem(where, position, f"said to end at {facts.end}, but {error}")
                    return
                position = error.start  # Retention took it meanwhile.
            except _UNREADABLE as error:
                if reader is self._node:
                    reader = self._hasty
                    continue
                yield _problem(where, position, f"cannot be read: {error}")
                position = self._next_readable(where, position, facts.end)
                reader = self._node
            else:
                if position < facts.end and not facts.compacted_before:
                    yield _absent(where, position, facts.end - 1)
                return

    def _sound(
        self, reader: KafkaClient, where: TopicPartition, position: int, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        for stretch in reader.stretches(where, position, facts.end, isolation=_ALL):
            for header, batch in split(stretch.data):
                if header.base_offset > position and not facts.compacted_before:
                    yield _absent(where, position, header.base_offset - 1)
                try:
                    check_batch(header, batch)
                except CorruptBatch as error:
                    yield _problem(where, header.base_offset, str(error))
                else:
                    yield IntactBatch(header, batch)
                position = header.next_offset
            self._on_bytes(len(stretch.data))

    def _next_readable(self, where: TopicPartition, bad: int, end: int) -> int:
        """Return the first offset behind `bad` that can be read, looked for in growing steps."""
        step = 1
        while not self._is_readable(where, good := min(bad + step, end)):
            bad, step = good, step * 2
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._is_readable(where, middle):
                good = middle
            else:
                bad = middle
        return good

    def _is_readable(self, where: TopicPartition, offset: int) -> bool:
        """Whether there is something to be read at an offset; the end counts."""
        try:
            reading = self._hasty.stretches(where, offset, offset + 1, isolation=_ALL)
            next(iter(reading), None)
        except OffsetOutOfRange:
            return True
        except _UNREADABLE:
            return False
        return True

    # For `probes.py`.

    def batch_at(self, where: TopicPartition, offset: int) -> IntactBatch | None:
        """Return the first batch that a fetch from `offset` gives."""
        for stretch in self._single.stretches(where, offset, offset + 1, isolation=_ALL):
            for header, batch in split(stretch.data):
                check_batch(header, batch)
                return IntactBatch(header, bytes(batch))
        return None

    def header_holding(self, where: TopicPartition, offset: int, start: int) -> BatchHeader | None:
        """Return the batch that holds `offset`, read from an earlier offset on."""
        for stretch in self._single.stretches(where, start, offset + 1, isolation=_ALL):
            for header, _ in split(stretch.data):
                if header.last_offset >= offset:
                    return header
        return None

    def offset_at(self, where: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the first offset that is as late as that, by the node's indexes."""
        return self._node.offsets_at([where], timestamp_ms)[where]


def _absent(where: TopicPartition, first: int, last: int) -> Finding:
    what = f"nothing holds it, up to offset {last}"
    return Finding(str(where), None, f"offset {first}: {what}", FindingKind.ABSENT)


def _problem(where: TopicPartition, offset: int, what: str) -> Finding:
    return Finding(str(where), None, f"offset {offset}: {what}")
