"""Where a subscription begins.

latest       what comes from now on
earliest     all there is
a cursor     what follows it; a partition of one of its topics that it does not know was made
             since, and is read from its first record; a topic that it does not know begins as
             if there were no cursor
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.broker.partition.partition import Partition
from millstream.broker.topics.topic import Topic
from millstream.errors import InvalidRequest, OffsetOutOfRange
from millstream.protocols.http.cursors import CURSOR_LENGTH_MAX, decode_cursor
from millstream.protocols.http.live import EARLIEST, LATEST

PARTITIONS_MAX = 256
"""Partitions of one connection: each event with an id says where the watcher stands in all."""

OFFSET_DIGITS_MAX = 19

StartOffsets = dict[Topic, dict[Partition, int]]
"""The offset to begin with in each partition of each topic."""


class StartPosition:
    """What was asked for: a word, and a cursor that wins over it."""

    def __init__(self, word: str, cursor: str | None = None) -> None:
        """Read what a client sent; raises `MalformedRequest` where it means nothing."""
        if word not in (EARLIEST, LATEST):
            cursor = cursor or word
            word = LATEST
        self._is_earliest = word == EARLIEST
        self._places = decode_cursor(cursor) if cursor else {}
        self._known = {topic for topic, _ in self._places}

    async def starts(self, topics: Sequence[Topic]) -> StartOffsets:
        """Open the partitions of topics, and return where to begin in each.

        Raises `OffsetOutOfRange` where the cursor lies past the head: it is that of another
        topic of the same name, or of one that lost what was not yet safe.
        """
        check_partition_count(partition for topic in topics for partition in topic.partitions)
        for topic in topics:
            for partition in tuple(topic.partitions):
                await partition.open()
        for name, index in self._places:
            for topic in topics:
                if topic.name == name:
                    topic.partition(index)
        return {
            topic: {one: self._offset(one) for one in topic.partitions if one.is_open}
            for topic in topics
        }

    def _offset(self, partition: Partition) -> int:
        if partition.topic in self._known:
            offset = self._places.get((partition.topic, partition.index), 0)
            head = partition.high_watermark
            if offset > head:
                raise OffsetOutOfRange(offset, start=partition.log_start_offset, end=head)
            return offset
        if self._is_earliest:
            return partition.offsets.earliest().offset
        return partition.offsets.latest(is_committed_only=True).offset


def check_partition_count(partitions: Iterable[Partition]) -> None:
    """Raise where one connection cannot watch so many partitions, or not by one cursor."""
    places = list(partitions)
    if len(places) > PARTITIONS_MAX:
        raise InvalidRequest(
            f"topics have {len(places)} partitions, limit for one connection is {PARTITIONS_MAX}"
        )
    length = sum(len(f"{one.topic}:{one.index}:,") + OFFSET_DIGITS_MAX for one in places)
    if length > CURSOR_LENGTH_MAX:
        raise InvalidRequest(
            f"cursor over {len(places)} partitions may have {length} characters, limit is"
            f" {CURSOR_LENGTH_MAX}: watch fewer topics by one connection"
        )
