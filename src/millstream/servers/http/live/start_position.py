"""Start positions of a subscription.

latest       new records from now on
earliest     all records
a cursor     the records after it; a partition of one of its topics that it does not contain was
             created since, and is read from its first record; a topic that it does not contain
             starts as if there were no cursor
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topic import Topic
from millstream.errors import InvalidRequest, OffsetOutOfRange
from millstream.protocols.http.cursors import CURSOR_LENGTH_MAX, decode_cursor
from millstream.protocols.http.live import EARLIEST, LATEST

PARTITIONS_MAX = 256
"""Partitions of one connection: each event with an id has the position in all of them."""

OFFSET_DIGITS_MAX = 19

StartOffsets = dict[Topic, dict[Partition, int]]
"""The first offset to read in each partition of each topic."""


class StartPosition:
    """A requested start: a word, and a cursor that takes precedence."""

    def __init__(self, word: str, cursor: str | None = None) -> None:
        """Parse a start from a client; raises `MalformedRequest` if it is not valid."""
        if word not in (EARLIEST, LATEST):
            cursor = cursor or word
            word = LATEST
        self._is_earliest = word == EARLIEST
        self._positions = decode_cursor(cursor) if cursor else {}
        self._known = {topic for topic, _ in self._positions}

    async def starts(self, topics: Sequence[Topic]) -> StartOffsets:
        """Open the partitions of topics, and return the start offset of each.

        Raises `OffsetOutOfRange` if the cursor is past the head: it belongs to another topic of the
        same name, or to one that lost records which were not durable yet.
        """
        check_partition_count(partition for topic in topics for partition in topic.partitions)
        for topic in topics:
            for partition in tuple(topic.partitions):
                await partition.open()
        for name, index in self._positions:
            for topic in topics:
                if topic.name == name:
                    topic.partition(index)
        return {
            topic: {
                partition: await self._offset(partition)
                for partition in tuple(topic.partitions)
                if partition.is_open
            }
            for topic in topics
        }

    async def _offset(self, partition: Partition) -> int:
        if partition.topic in self._known:
            offset = self._positions.get((partition.topic, partition.index), 0)
            await partition.settle(offset)
            head = partition.high_watermark
            if offset > head:
                raise OffsetOutOfRange(offset, start=partition.log_start_offset, end=head)
            return offset
        if self._is_earliest:
            return partition.offsets.earliest().offset
        await partition.settle()
        return partition.offsets.latest(is_committed_only=True).offset


def check_partition_count(partitions: Iterable[Partition]) -> None:
    """Raise if the partitions are too many for one connection or for one cursor."""
    listed = list(partitions)
    if len(listed) > PARTITIONS_MAX:
        raise InvalidRequest(
            f"topics of a connection have {len(listed)} partitions, limit is {PARTITIONS_MAX}"
        )
    length = sum(
        len(f"{partition.topic}:{partition.index}:,") + OFFSET_DIGITS_MAX for partition in listed
    )
    if length > CURSOR_LENGTH_MAX:
        raise InvalidRequest(
            f"cursor over {len(listed)} partitions may have {length} characters, limit is"
            f" {CURSOR_LENGTH_MAX}: watch fewer topics per connection"
        )
