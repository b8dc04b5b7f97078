"""Jobs of a queue in a cluster: where its coordinator reads them, and which ones must be kept.

A queue's coordinator reads the replicas of its own node, and partitions that have none there from
their leaders. It tells the leaders of the partitions
which jobs are finished through the metadata, every few seconds: `holds/TOPIC-ID` has the first
offset that is still needed, by partition. A leader that has not been told keeps everything.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.topics.topic import Topic
from millstream.cluster.reading.partition_anywhere import PartitionAnywhere
from millstream.errors import MillstreamError, NotLeader
from millstream.metadata.interface import Metadata, MetadataChange, Watch

logger = logging.getLogger(__name__)

HOLDS_PREFIX = "holds/"

ReportHold = Callable[[uuid.UUID, int, int], None]
"""Takes a topic, a partition, and the first offset that is needed: `WorkQueues.report_hold`."""


class ClusterJobs:
    """The partitions of a topic, wherever their replicas are: `JobSource` of the broker."""

    def partitions(self, topic: Topic) -> Sequence[ReadablePartition]:
        return [partition.anywhere for partition in topic.partitions]

    def leader_end(self, partition: ReadablePartition, since: float) -> int | None:
        """Return the high watermark by the word of the leader: this node, or the one it asked."""
        assert isinstance(partition, PartitionAnywhere)
        if not partition.is_here:
            remote = partition.remote
            return remote.high_watermark if remote.asked_at >= since else None
        replica = partition.partition.replica
        assert replica is not None
        try:
            replica.check_end()
        except NotLeader:
            return None
        return partition.high_watermark


class MetadataHolds:
    """Tells the leaders of partitions which jobs are finished: `HoldReports` of the broker."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def send(self, topic: Topic, needed_offsets: Mapping[int, int]) -> None:
        row = {str(index): offset for index, offset in needed_offsets.items()}
        await self._metadata.transact(puts={f"{HOLDS_PREFIX}{topic.id}": msgspec.json.encode(row)})

    async def follow(self, report: ReportHold) -> Watch:
        """Pass on what coordinators tell, now and from now on."""

        def on_change(change: MetadataChange) -> None:
            if change.value is not None:
                _report(change.key, change.value, report)

        watch = self._metadata.watch(HOLDS_PREFIX, on_change)
        for entry in await self._metadata.list(HOLDS_PREFIX):
            _report(entry.key, entry.value, report)
        return watch


def _report(key: str, value: bytes, report: ReportHold) -> None:
    try:
        topic_id = uuid.UUID(key.removeprefix(HOLDS_PREFIX))
        for index, offset in msgspec.json.decode(value, type=dict[str, int]).items():
            report(topic_id, int(index), offset)
    except (ValueError, msgspec.DecodeError) as error:
        logger.error("%s was not applied: %s", key, error)  # noqa: TRY400
    except MillstreamError as error:  # The topic was deleted.
        logger.debug("%s was not applied: %s", key, error)
