"""Sending markers to the partitions of a transaction, which any node may lead."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from millstream.records.topic_partition import TopicPartition


class ProducerMarker(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """The leader epoch of the coordinator's internal partition; 0 on a lone node. A partition
    refuses markers of an older coordinator."""
    is_commit: bool


class MarkerSender(Protocol):
    """Writes markers to the leaders of partitions. `cluster` implements it for several nodes."""

    async def write(self, partition: TopicPartition, marker: ProducerMarker) -> None:
        """Write a marker to a partition; return when it is committed there.

        Each call looks up the leader again. `UnknownTopic` means that the partition was deleted; on
        any other error the caller tries again later. Markers of one turn of the event loop may be
        sent in one request for each leader.
        """
        ...


class MarkerAppender(Protocol):
    """The part of `PartitionAppender` that is used here."""

    async def append_marker(
        self, producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int
    ) -> Any:
        """End the producer's transaction here; return when that is committed to the log."""
        ...


class MarkedPartition(Protocol):
    """The part of `Partition` that is used here."""

    @property
    def appender(self) -> MarkerAppender: ...

    @property
    def is_open(self) -> bool:
        """Whether it can be appended to."""
        ...

    async def open(self) -> None: ...


class MarkedTopics(Protocol):
    """The part of `Topics` that is used here."""

    def partition(self, name: str, index: int) -> MarkedPartition:
        """Return a partition, or raise `UnknownTopic`."""
        ...


class LocalMarkers:
    """Writes markers to partitions of this node."""

    def __init__(self, topics: MarkedTopics) -> None:
        self._topics = topics

    async def write(self, topic_partition: TopicPartition, marker: ProducerMarker) -> None:
        partition = self._topics.partition(topic_partition.topic, topic_partition.partition)
        if not partition.is_open:
            await partition.open()
        await partition.appender.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
        )
