"""The lag of groups: one definition for all that show it."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.topics.topics import Topics
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.log_summary import summarize_log
from millstream.storage.store import LogName, Store


class PartitionLag(NamedTuple):
    """The position of a group in one partition."""

    committed_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """Offsets that are left to read; 0 if the partition was created again and is shorter."""
        return max(0, self.end_offset - self.committed_offset)


def open_end_offset(topics: Topics, where: TopicPartition) -> int | None:
    """Return the end of a partition; `None` if it is not open or does not exist."""
    topic = topics.find(where.topic)
    if topic is None or not 0 <= where.partition < len(topic.partitions):
        return None
    partition = topic.partitions[where.partition]
    return partition.high_watermark if partition.is_open else None


def known_end_offset(topics: Topics, store: Store, where: TopicPartition) -> int | None:
    """Return the end of a partition, open or not; `None` if it does not exist or is damaged.

    The end of one that is not open is the one found when the store was opened.
    """
    if (end := open_end_offset(topics, where)) is not None:
        return end
    topic = topics.find(where.topic)
    if topic is None or not 0 <= where.partition < len(topic.partitions):
        return None
    found = summarize_log(store, LogName(where.topic, where.partition))
    return None if found is None else found.end_offset
