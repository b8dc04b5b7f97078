"""Deletions by key, as a table follows them.

    DELETE by key ─► record in the topic of deletions ─► masked in the log
                         │
                         ├─► applied by every reader of the table until it is done there
                         └─► delete job of the writer: files rewritten, position moved, one commit

The position of a table in that topic is the application transaction `.../deletions`. It moves past
a deletion once the table has all records that the deletion is about, so that none of them can come
later. Until then the writer applies the deletion again with each run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import Isolation, RecordSource
from millstream.errors import DataLost
from millstream.formats.names import LAKE_DELETIONS_CONFIG
from millstream.lake.table import LakeTable
from millstream.protocols.http.lake_deletions import LakeDeletion, decode_lake_deletion
from millstream.records.arrow.decoder import arrow_batches
from millstream.records.topic_partition import TopicPartition


class PendingDeletion(NamedTuple):
    """A deletion that a table has not finished."""

    offset: int
    """In the topic of deletions."""
    partition: int
    before: int
    pattern: bytes
    is_prefix: bool

    def sql(self) -> str:
        """Return the condition of its rows for delta-rs."""
        begin = f"key >= X'{self.pattern.hex()}'"
        if not self.is_prefix:
            keys = f"key = X'{self.pattern.hex()}'"
        elif (end := _after(self.pattern)) is None:
            keys = begin
        else:
            keys = f"{begin} AND key < X'{end.hex()}'"
        return f"(partition = {self.partition} AND offset < {self.before} AND {keys})"

    def spark_sql(self) -> str:
        """Return the same for Spark; never null."""
        return f"coalesce({self.sql().replace('offset', '`offset`', 1)}, false)"

    def expression(self) -> pc.Expression:
        """Return the same for datasets of Arrow; never null."""
        # Files that delta-rs has rewritten have another type of bytes.
        key = pc.field("key").cast(pa.binary())
        pattern = pa.scalar(self.pattern, pa.binary())
        if not self.is_prefix:
            keys = key == pattern
        else:
            keys = key >= pattern
            if (end := _after(self.pattern)) is not None:
                keys &= key < pa.scalar(end, pa.binary())
        partition, offset = pc.field("partition"), pc.field("offset")
        within = (partition == self.partition) & (offset < self.before)
        return within & pc.coalesce(keys, pa.scalar(False))  # noqa: FBT003


def without(deletions: Iterable[PendingDeletion]) -> pc.Expression | None:
    """Return the condition of rows that none of the deletions is about; `None` without any."""
    condition: pc.Expression | None = None
    for deletion in deletions:
        kept = ~deletion.expression()
        condition = kept if condition is None else condition & kept
    return condition


class TopicDeletions:
    """The topic with the deletions of another topic."""

    def __init__(self, source: RecordSource, topic: str) -> None:
        self._source = source
        self._topic = topic
        self._name: str | None = None
        if isinstance(source, KafkaClient):
            self._name = source.topic_configs([topic])[topic].get(LAKE_DELETIONS_CONFIG) or None

    @property
    def is_recorded(self) -> bool:
        """Whether deletions of the topic are recorded for its table."""
        return self._name is not None

    def pending(self, table: LakeTable) -> list[PendingDeletion]:
        """Return the deletions that a version of the table has not finished.

        Raises `DataLost` if some of them were removed from their topic.
        """
        if self._name is None:
            return []
        position = table.deletions_position()
        partition = TopicPartition(self._name, 0)
        bounds = self._source.bounds([partition], isolation=Isolation.READ_COMMITTED)[partition]
        if position < bounds.start:
            raise DataLost(
                f"deletions {position} to {bounds.start - 1} of topic {self._topic!r} were removed"
                f" from {self._name} before its lake table followed them"
            )
        found = []
        for chunk in self._source.chunks(
            partition, position, bounds.end, isolation=Isolation.READ_COMMITTED
        ):
            for rows in arrow_batches(
                chunk.data, columns=("offset", "value"), start=position, end=bounds.end
            ):
                for offset, value in zip(*(column.to_pylist() for column in rows), strict=True):
                    deletion = decode_lake_deletion(value)
                    if deletion.topic_id == table.topic_id:
                        found.append(_pending(offset, deletion))
        return found


def _pending(offset: int, deletion: LakeDeletion) -> PendingDeletion:
    is_prefix = deletion.key is None
    pattern = deletion.key_prefix if deletion.key is None else deletion.key
    assert pattern is not None
    return PendingDeletion(offset, deletion.partition, deletion.before, pattern, is_prefix)


def finished(pending: Sequence[PendingDeletion], reached: Mapping[int, int]) -> int | None:
    """Return the position after the deletions all of whose records the table has had.

    `reached` says how far it has each partition. `None` if the first deletion is not among them.
    """
    position = None
    for deletion in pending:
        if reached.get(deletion.partition, 0) < deletion.before:
            break
        position = deletion.offset + 1
    return position


def _after(prefix: bytes) -> bytes | None:
    """Return the least bytes after all that begin with `prefix`; `None` if there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
