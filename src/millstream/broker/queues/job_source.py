"""Where a queue reads its jobs: in partitions that this node leads, or that others do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.topics.topic import Topic


class JobSource(Protocol):
    """The partitions of a queue's topic, as its coordinator reads them."""

    def partitions(self, topic: Topic) -> Sequence[ReadablePartition]:
        """Return all partitions, in order: the same objects each time."""
        ...

    def leader_end(self, partition: ReadablePartition, since: float) -> int | None:
        """Return the high watermark of a partition by the word of its leader; None if unknown.

        A replica may be behind, and so may be what a leader told before `since`, on the monotonic
        clock. If the end that the leader tells is before a job that was delivered by then, records
        were lost.
        """
        ...


class LocalJobs:
    """The partitions of this node, which leads all of them."""

    def partitions(self, topic: Topic) -> Sequence[ReadablePartition]:
        return topic.partitions

    def leader_end(self, partition: ReadablePartition, since: float) -> int | None:  # noqa: ARG002
        is_known = isinstance(partition, Partition) and not partition.appender.offline
        return partition.high_watermark if is_known else None


class HoldReports(Protocol):
    """Tells the leaders of a queue's partitions which jobs are finished. `cluster` implements it.

    They keep the records from retention that come after what they were told last.
    """

    async def send(self, topic: Topic, needed_offsets: Mapping[int, int]) -> None:
        """Tell the first offset that is still needed of each partition, by its index.

        Every job before it is finished, durably. If a leader is not reached, nothing is lost: its
        records are kept until it is told.
        """
        ...
