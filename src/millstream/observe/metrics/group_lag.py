"""Metrics of the progress and lag of groups.

The end of a partition is known once it was used since the node started; for others no lag is
reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from millstream.broker.broker import Broker
from millstream.broker.groups.lag import PartitionLag, open_end_offset
from millstream.observe.metrics.metric import (
    LISTED_MAX,
    LabelledSources,
    MetricDeclaration,
    MetricSection,
    gauge,
)
from millstream.records.topic_partition import TopicPartition

GROUP_METRICS: Sequence[MetricDeclaration[PartitionLag]] = (
    gauge(
        "millstream_group_committed_offset",
        "Offset that a group has committed for a partition: the next one it reads.",
        lambda progress: progress.committed_offset,
    ),
    gauge(
        "millstream_group_lag_records",
        "Offsets between the committed offset of a group and the end of the partition. Transaction"
        " markers count, because they have offsets too.",
        lambda progress: progress.lag,
    ),
)

GROUPS = MetricSection(metrics=GROUP_METRICS, labels=("group", "topic", "partition"))


def listed_progress(broker: Broker) -> LabelledSources[PartitionLag]:
    """Yield the lag of groups on open partitions, for the first committed offsets."""
    for group_id, partition, offset in islice(_offsets(broker), LISTED_MAX):
        if (end_offset := open_end_offset(broker.topics, partition)) is not None:
            yield (
                (group_id, partition.topic, str(partition.partition)),
                PartitionLag(offset, end_offset),
            )


def _offsets(broker: Broker) -> Iterator[tuple[str, TopicPartition, int]]:
    for group_id, offsets in broker.groups.committed_offsets():
        for partition, committed in offsets.items():
            yield group_id, partition, committed.offset.offset
