"""Start positions of a subscription.

latest       new records from now on
earliest     all records
a cursor     the records after it; a partition of one of its topics that it does not contain was
             created since, and is read from its first record; a topic that it does not contain
             starts as if there were no cursor; a topic that was deleted and created again since
             starts with a gap and its first record, in each partition
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.topics.topic import Topic
from millstream.errors import InvalidRequest, OffsetOutOfRange
from millstream.protocols.http.live import EARLIEST, LATEST
from millstream.records.cursor import (
    CURSOR_LENGTH_MAX,
    CursorPosition,
    cursor_prefix,
    decode_cursor,
)

PARTITIONS_MAX = 256
"""Partitions of one connection: each event with an id has the position in all of them."""

OFFSET_DIGITS_MAX = 19


class PartitionStart(NamedTuple):
    """Where a subscription starts in a partition."""

    offset: int
    deleted: CursorPosition | None = None
    """The position of the cursor, if it is one in a topic that was deleted."""


StartOffsets = dict[Topic, dict[ReadablePartition, PartitionStart]]
"""The start in each partition of each topic."""


def partitions_of(topic: Topic) -> list[ReadablePartition]:
    """Return the partitions of a topic, wherever they are: the same objects each time."""
    return [partition.anywhere for partition in topic.partitions]


class StartPosition:
    """A requested start: a word, and a cursor that takes precedence."""

    def __init__(self, word: str, cursor: str | None = None) -> None:
        """Parse a start from a client; raises `MalformedRequest` if it is not valid."""
        if word not in (EARLIEST, LATEST):
            cursor = cursor or word
            word = LATEST
        self._is_earliest = word == EARLIEST
        self._positions: dict[str, dict[int, CursorPosition]] = {}
        for (topic, index), position in (decode_cursor(cursor) if cursor else {}).items():
            self._positions.setdefault(topic, {})[index] = position

    async def starts(self, topics: Sequence[Topic]) -> StartOffsets:
        """Open the partitions of topics, and return the start of each.

        Raises `OffsetOutOfRange` if the cursor is past the head: the topic lost records which were
        not durable yet, or the cursor does not name its topic and belongs to an earlier one.
        """
        sources = {topic: partitions_of(topic) for topic in topics}
        check_partition_count(partition for listed in sources.values() for partition in listed)
        for topic in topics:
            for index, position in self._positions.get(topic.name, {}).items():
                if not position.is_foreign(topic.id):
                    topic.partition(index)
        return {
            topic: {partition: await self._start(partition) for partition in listed}
            for topic, listed in sources.items()
        }

    async def _start(self, partition: ReadablePartition) -> PartitionStart:
        # In a cluster, another node may have to be asked from one moment to the next. A partition
        # that is left out here would be taken for a new one, and start with its first record.
        while not partition.is_open:
            await partition.open()
        positions = self._positions.get(partition.topic)
        if positions is not None:
            return await _continue(partition, positions)
        if self._is_earliest:
            return PartitionStart(partition.log_start_offset)
        await partition.settle()
        return PartitionStart(partition.last_stable_offset)


async def _continue(
    partition: ReadablePartition, positions: dict[int, CursorPosition]
) -> PartitionStart:
    """Return the start in a partition of a topic that is in the cursor."""
    position = positions.get(partition.index)
    if position is None:
        # The partition was created since; unless all that the cursor has of the topic is of a
        # deleted one.
        if not all(other.is_foreign(partition.topic_id) for other in positions.values()):
            return PartitionStart(0)
        position = next(iter(positions.values()))._replace(offset=0)
    if position.is_foreign(partition.topic_id):
        return PartitionStart(0, position)
    await partition.settle(position.offset)
    head = partition.high_watermark
    if position.offset > head:
        raise OffsetOutOfRange(position.offset, start=partition.log_start_offset, end=head)
    return PartitionStart(position.offset)


def check_partition_count(partitions: Iterable[ReadablePartition]) -> None:
    """Raise if the partitions are too many for one connection or for one cursor."""
    listed = list(partitions)
    if len(listed) > PARTITIONS_MAX:
        raise InvalidRequest(
            f"topics of a connection have {len(listed)} partitions, limit is {PARTITIONS_MAX}"
        )
    length = sum(
        len(cursor_prefix(partition.topic, partition.index, partition.topic_id))
        + OFFSET_DIGITS_MAX
        + 1
        for partition in listed
    )
    if length > CURSOR_LENGTH_MAX:
        raise InvalidRequest(
            f"cursor over {len(listed)} partitions may have {length} characters, limit is"
            f" {CURSOR_LENGTH_MAX}: watch fewer topics per connection"
        )
