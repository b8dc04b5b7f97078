"""How far groups are behind, as Prometheus reads it.

The end of a partition is known once it was used since the node started; of others no lag is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from millstream.broker.broker import Broker
from millstream.broker.groups.values import TopicPartition
from millstream.observe.broker import committed_offsets
from millstream.observe.metrics import LISTED_MAX, Declared, Listed, Section, gauge


class Progress(NamedTuple):
    """How far a group has come with one partition."""

    committed_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """Offsets that are left; none where the partition was made anew and is shorter."""
        return max(0, self.end_offset - self.committed_offset)


GROUP_METRICS: Sequence[Declared[Progress]] = (
    gauge(
        "millstream_group_committed_offset",
        "The offset that a group has committed of a partition: what it reads next.",
        lambda progress: progress.committed_offset,
    ),
    gauge(
        "millstream_group_lag_records",
        "Offsets between what a group has committed and the end of the partition. Marks of"
        " transactions count, for they have offsets too.",
        lambda progress: progress.lag,
    ),
)

GROUPS = Section(metrics=GROUP_METRICS, labels=("group", "topic", "partition"))


def listed_progress(broker: Broker) -> Listed[Progress]:
    """Return how far groups are with the partitions that are open, for the first offsets."""
    for group_id, where, offset in islice(_offsets(broker), LISTED_MAX):
        if (end_offset := _end_offset(broker, where)) is not None:
            yield (group_id, where.topic, str(where.partition)), Progress(offset, end_offset)


def _offsets(broker: Broker) -> Iterator[tuple[str, TopicPartition, int]]:
    offsets = committed_offsets(broker)
    for group in broker.groups.registry:
        for where, committed in offsets.of_group(group.group_id).items():
            yield group.group_id, where, committed.offset.offset


def _end_offset(broker: Broker, where: TopicPartition) -> int | None:
    topic = broker.topics.find(where.topic)
    if topic is None or where.partition >= len(topic.partitions):
        return None
    partition = topic.partitions[where.partition]
    return partition.high_watermark if partition.is_open else None
