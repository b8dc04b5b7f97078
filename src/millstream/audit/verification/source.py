"""Where a verification reads: a data directory, or a node."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from millstream.records.batch import BatchHeader, Bytes
from millstream.records.topic_partition import TopicPartition
from millstream.storage.files.partition_metadata import DeletionRule
from millstream.storage.inspect.catalog import Finding


class PartitionFacts(NamedTuple):
    """What is known of a partition before it is read."""

    start: int
    """All before it went on purpose."""
    end: int
    """The offset after the last record."""
    topic_id: uuid.UUID | None = None
    """Nothing where that cannot be told."""
    compacted_before: int = 0
    """Compaction may have taken records before it."""
    deletions: Sequence[DeletionRule] = ()
    """Which records were deleted by key, and may still be there."""
    promise: str = ""
    """What an acknowledgement promised where that was not all, as a remark."""


class IntactBatch(NamedTuple):
    """A batch that is whole and sound."""

    header: BatchHeader
    data: Bytes
    """Valid until the next one is asked for."""


class VerificationSource(Protocol):
    """A place to read. Not for several threads at once."""

    def facts(self, where: TopicPartition) -> PartitionFacts | str:
        """Return what is known of a partition now; a sentence where it is not there."""
        ...

    def batches(
        self, where: TopicPartition, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        """Read all sound batches from the start on, and what is wrong between them.

        Who reads is not held up by damage: what follows it is read too.
        """
        ...
