"""How far groups are behind: one definition for all who ask."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.topics.topics import Topics
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.log_summary import summarize_log
from millstream.storage.store import LogName, Store


class PartitionLag(NamedTuple):
    """How far a group has come with one partition."""

    committed_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """Offsets that are left; none where the partition was made anew and is shorter."""
        return max(0, self.end_offset - self.committed_offset)


def open_end_offset(topics: Topics, where: TopicPartition) -> int | None:
    """Return the end of a partition that is open; `None` where it is not, or not there."""
    topic = topics.find(where.topic)
    if topic is None or not 0 <= where.partition < len(topic.partitions):
        return None
    partition = topic.partitions[where.partition]
    return partition.high_watermark if partition.is_open else None


def known_end_offset(topics: Topics, store: Store, where: TopicPartition) -> int | None:
    """Return the end of a partition, open or not; `None` where it is not there, or damaged.

    The end of one that is not open is what opening the store found.
    """
    if (end := open_end_offset(topics, where)) is not None:
        return end
    topic = topics.find(where.topic)
    if topic is None or not 0 <= where.partition < len(topic.partitions):
        return None
    found = summarize_log(store, LogName(where.topic, where.partition))
    return None if found is None else found.end_offset
