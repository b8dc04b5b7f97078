"""The lag of groups: one definition for every place that reports it."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.topics.topics import Topics
from millstream.records.topic_partition import TopicPartition
from millstream.storage.files.names import LogName
from millstream.storage.inspect.log_summary import summarize_log
from millstream.storage.store import Store


class PartitionLag(NamedTuple):
    """The position of a group in one partition."""

    committed_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """Offsets that are left to read; 0 if the partition was created again and is shorter."""
        return max(0, self.end_offset - self.committed_offset)


def open_end_offset(topics: Topics, partition_name: TopicPartition) -> int | None:
    """Return the end of a partition; `None` if it is not open or does not exist."""
    topic = topics.find(partition_name.topic)
    if topic is None or not 0 <= partition_name.partition < len(topic.partitions):
        return None
    partition = topic.partitions[partition_name.partition]
    return partition.high_watermark if partition.is_open else None


def known_end_offset(topics: Topics, store: Store, partition_name: TopicPartition) -> int | None:
    """Return the end of a partition, open or not; `None` if it does not exist or is damaged.

    The end of one that is not open is the one summary when the store was opened.
    """
    if (end := open_end_offset(topics, partition_name)) is not None:
        return end
    topic = topics.find(partition_name.topic)
    if topic is None or not 0 <= partition_name.partition < len(topic.partitions):
        return None
    summary = summarize_log(store, LogName(partition_name.topic, partition_name.partition))
    return None if summary is None else summary.end_offset
