"""Interface of what a verification reads: a data directory or a node."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from millstream.records.batch import BatchHeader, Bytes
from millstream.records.topic_partition import TopicPartition
from millstream.storage.files.partition_metadata import DeletionRule
from millstream.storage.inspect.catalog import Finding


class PartitionFacts(NamedTuple):
    """State of a partition before it is read."""

    start: int
    """All records before this offset were deleted on purpose."""
    end: int
    """Offset after the last record."""
    topic_id: uuid.UUID | None = None
    """`None` if not known."""
    compacted_before: int = 0
    """Compaction may have deleted records before this offset."""
    deletions: Sequence[DeletionRule] = ()
    """Deletions by key, whose records may still be stored."""
    promise: str = ""
    """Remark about a durability class that guarantees less than `fsync`."""


class IntactBatch(NamedTuple):
    """Complete batch with a valid checksum."""

    header: BatchHeader
    data: Bytes
    """Valid until the next batch is requested."""


class VerificationSource(Protocol):
    """Source of batches. Not thread-safe."""

    def facts(self, partition: TopicPartition) -> PartitionFacts | str:
        """Return the current state of a partition; an explanation if it does not exist."""
        ...

    def batches(
        self, partition: TopicPartition, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        """Yield all intact batches from the start, and findings for the damage between them.

        Damage does not stop the read: what follows it is read too.
        """
        ...
