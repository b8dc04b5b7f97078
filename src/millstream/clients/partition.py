"""What a client knows of partitions, wherever it reads them: values that all doors share."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from millstream.records.batch import Bytes
from millstream.records.topic_partition import TopicPartition


class TopicDescription(NamedTuple):
    """A topic, as whoever holds it describes it."""

    name: str
    id: uuid.UUID
    partitions: int


class OffsetBounds(NamedTuple):
    """Which offsets of a partition can be read: from `start` up to, not including, `end`."""

    start: int
    end: int


class Isolation(enum.Enum):
    """Which records of transactions are seen."""

    READ_COMMITTED = "read_committed"
    """Those of transactions that were committed, up to the first that is still open."""
    READ_UNCOMMITTED = "read_uncommitted"
    """All that is on the disk."""


class BatchChunk(NamedTuple):
    """Whole batches that follow each other, as they lie in the log."""

    data: Bytes
    next_offset: int
    """Where to read on."""
    aborted: Mapping[int, Sequence[int]]
    """By producer id: the first offsets of its transactions that were aborted, rising. A
    transactional batch of that producer is void from such an offset up to the marker that ends it;
    `Voids` in `clients/aborted_filter.py` tells which."""


class RecordSource(Protocol):
    """Where topics can be read: a node, or a data directory. Not for several threads at once."""

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDescription]:
        """Return the topics of these names, all where `None`; raises `UnknownTopic` for a name."""
        ...

    def bounds(
        self, where: Sequence[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return what can be read now; with `READ_COMMITTED`, up to the last stable offset."""
        ...

    def offsets_at(
        self, where: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset whose record is that late or later; `None` where none is."""
        ...

    def offset_bytes(
        self, where: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, float]:
        """Return about how much of the log an offset takes, in ranges that are not empty."""
        ...

    def stretches(
        self, where: TopicPartition, start: int, end: int, *, isolation: Isolation
    ) -> Iterator[BatchChunk]:
        """Read whole batches from the one that holds `start` until `end` is reached.

        The first and the last batch may reach beyond; whoever reads drops what does. Ends early
        only where the log ends. Raises `OffsetOutOfRange`, with what there is, where `start` lies
        below what retention has taken or `end` beyond the last offset; what was deleted on purpose
        is passed over. What a `BatchChunk` holds is valid until the next one is asked for.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...
