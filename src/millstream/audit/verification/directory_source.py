"""`VerificationSource` over the files of a data directory.

While a node is running, a log is what its files contain. That is everything that was ever
acknowledged, except for logs of class `memory`, which are written a moment later, and `ephemeral`,
which have no files. So acknowledgements are read before the files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

from millstream.audit.verification.source import IntactBatch, PartitionFacts
from millstream.audit.verification.topics_on_disk import topics_on_disk
from millstream.broker.topics.topic import TopicRow
from millstream.config.schema import Durability
from millstream.records.topic_partition import TopicPartition
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem
from millstream.storage.files.names import LogName, is_topic
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.storage.inspect.batch_walk import WalkedBatch, walk_batches
from millstream.storage.inspect.catalog import (
    Finding,
    check_directory,
    log_directory,
    survey_partition,
)

_UNKNOWN_END = 2**63 - 1

_PROMISES = {
    Durability.FSYNC: "",
    Durability.DISK: " (class disk: a power cut may lose the end of the log)",
    Durability.MEMORY: " (class memory: a crash may lose the end of the log, and a running node may"
    " not have written it yet)",
    Durability.EPHEMERAL: " (class ephemeral: it has no files)",
}


class DirectorySource:
    """Logs of a data directory. Only reads, and takes no locks."""

    def __init__(
        self,
        path: str,
        *,
        filesystem: Filesystem | None = None,
        on_bytes: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._path = path
        self._filesystem = filesystem or OsFilesystem()
        self._on_bytes = on_bytes
        check_directory(self._filesystem, path)
        self._topics: dict[str, TopicRow] | None = topics_on_disk(path)

    def facts(self, partition: TopicPartition) -> PartitionFacts | str:
        """Return the current state of a partition; an explanation if it does not exist."""
        row = None
        if self._topics is not None:
            row = self._topics.get(partition.topic)
            if row is None or row.state != "live":
                return f"topic {partition.topic!r} does not exist"
        if not is_topic(partition.topic):
            return f"{partition.topic!r} is not a valid topic name"
        files = survey_partition(self._filesystem, self._directory(partition))
        if not files.names:
            # The partition may be new; if records were acknowledged, each is reported as lost.
            return f"partition {partition} has no files"
        return _facts(files.partition or PartitionMetadata(), row)

    def batches(
        self, partition: TopicPartition, facts: PartitionFacts
    ) -> Iterator[IntactBatch | Finding]:
        """Yield the intact batches; `verify_store.py` reports damage between them."""
        files = survey_partition(self._filesystem, self._directory(partition))
        for _, item in walk_batches(self._filesystem, files, facts.start):
            if isinstance(item, WalkedBatch) and item.is_sound:
                yield IntactBatch(item.header, item.data)
                self._on_bytes(item.header.size)

    def _directory(self, partition: TopicPartition) -> str:
        return log_directory(self._path, LogName(partition.topic, partition.partition))


def _facts(partition: PartitionMetadata, row: TopicRow | None) -> PartitionFacts:
    policy = "" if row is None else row.configs.get("cleanup.policy", "")
    may_be_compacted = partition.is_rewritten and (
        row is None or "compact" in policy or partition.cleaned_offset > 0
    )
    return PartitionFacts(
        start=partition.start_offset,
        end=_UNKNOWN_END,
        topic_id=_id_of(row),
        compacted_before=_UNKNOWN_END if may_be_compacted else 0,
        deletions=partition.deletions,
        promise=_PROMISES[partition.durability],
    )


def _id_of(row: TopicRow | None) -> uuid.UUID | None:
    return None if row is None else row.id
