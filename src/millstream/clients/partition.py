"""Topics, partitions and chunks of batches, as values for all kinds of record sources."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from millstream.records.batch import Bytes
from millstream.records.topic_partition import TopicPartition


class TopicDescription(NamedTuple):
    """Name, id and partition count of a topic."""

    name: str
    id: uuid.UUID | None
    """`None` if the source does not know it."""
    partitions: int


class OffsetBounds(NamedTuple):
    """Readable offsets of a partition: from `start` up to, but not including, `end`."""

    start: int
    end: int


class Isolation(enum.Enum):
    """Which records of transactions a reader sees."""

    READ_COMMITTED = "read_committed"
    """Records of committed transactions, up to the first transaction that is still open."""
    READ_UNCOMMITTED = "read_uncommitted"
    """All stored records."""


class BatchChunk(NamedTuple):
    """Consecutive complete batches, as they are stored in the log."""

    data: Bytes
    next_offset: int
    """Offset at which to continue reading."""
    aborted: Mapping[int, Sequence[int]]
    """By producer id: the first offsets of its aborted transactions, ascending. Transactional
    batches of that producer are hidden from such an offset up to the marker that ends the
    transaction; `AbortedFilter` in `clients/aborted_filter.py` decides which.
    """


class RecordSource(Protocol):
    """Source of topics: a node or a data directory. Not thread-safe."""

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDescription]:
        """Return the named topics, or all if `None`. Raises `UnknownTopic` if one is missing."""
        ...

    def bounds(
        self, partitions: Sequence[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return the readable offsets; for `READ_COMMITTED`, up to the last stable offset."""
        ...

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after that time; `None` if there is none."""
        ...

    def offset_bytes(
        self, partitions: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, float]:
        """Return the approximate log size of one offset in each range. Ranges must not be empty."""
        ...

    def chunks(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        topic_id: uuid.UUID | None = None,
    ) -> Iterator[BatchChunk]:
        """Read complete batches from the one that contains `start` until `end` is reached.

        The first and the last batch may extend beyond the range; the caller drops those records.
        Ends early only at the end of the log. Raises `OffsetOutOfRange`, with the readable range,
        if retention has deleted `start` or `end` is beyond the last offset. Records that were
        deleted on request are skipped. With a `topic_id`, raises `UnknownTopicId` if the topic of
        that name has another id: it was deleted and created again since the offsets were chosen. A
        `BatchChunk` is valid until the next one is requested.
        """
        ...

    def close(self) -> None:
        """Release connections and files."""
        ...
