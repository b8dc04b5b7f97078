"""The committed records of a topic's log, as rows of its lake table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from millstream.clients.aborted_filter import AbortedFilter
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import Isolation, OffsetBounds, RecordSource, TopicDescription
from millstream.errors import DataLost, OffsetOutOfRange
from millstream.formats.bad_records import OnBadRecord
from millstream.formats.declaration import choose_format
from millstream.formats.names import COLUMN_NAMES
from millstream.formats.record_columns import make_table, stored_columns
from millstream.formats.typed_batch import applied_fields, apply_format
from millstream.formats.typed_columns import ERROR_COLUMN
from millstream.formats.value_format import ValueFormat
from millstream.lake.table import RECORD_COLUMNS
from millstream.records.arrow.decoder import arrow_batches
from millstream.records.topic_partition import TopicPartition

CLASH_PREFIX = "value_"
"""Prefix of all typed columns if one of them has the name of a column of the records."""

_COMMITTED = Isolation.READ_COMMITTED


class TopicLog:
    """Reads a topic by its id: a topic of the same name that is created later is not read."""

    def __init__(self, source: RecordSource, topic: TopicDescription) -> None:
        self._source = source
        self.topic = topic
        self._format = declared_format(source, topic.name)
        self.prefix = typed_prefix(self._format)
        """Prefix of the typed columns."""
        self.typed: list[pa.Field] = []
        """Columns of the topic's declared schema, and `_error` for values that do not fit it."""
        if len(self._format.schema):
            self.typed = applied_fields(self._format, OnBadRecord.NULL, prefix=self.prefix)
        self.schema = pa.schema([*RECORD_COLUMNS, *self.typed])

    def bounds(self) -> dict[int, OffsetBounds]:
        """Return the readable offsets of each partition, up to the last stable offset."""
        partitions = [
            TopicPartition(self.topic.name, number) for number in range(self.topic.partitions)
        ]
        bounds = self._source.bounds(partitions, isolation=_COMMITTED)
        return {partition.partition: bounds[partition] for partition in partitions}

    def check_start(self, partition: int, start: int, bounds: OffsetBounds) -> None:
        """Raise `DataLost` if retention has deleted records from `start` on, or `start` is ahead.

        Records that were deleted on request are not a loss, so the source is asked.
        """
        name = TopicPartition(self.topic.name, partition)
        if start > bounds.end:
            raise DataLost(
                f"the lake has {name} up to offset {start}, and the log ends at {bounds.end}: the"
                " log was restored from an older copy"
            )
        if start < bounds.start:
            try:
                next(
                    self._source.chunks(
                        name,
                        start,
                        bounds.end,
                        isolation=_COMMITTED,
                        topic_id=self.topic.id,
                    ),
                    None,
                )
            except OffsetOutOfRange as error:
                raise DataLost(
                    f"offsets {start} to {error.start - 1} of {name} were deleted by retention"
                    " before they were written to the lake"
                ) from error

    def rows(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range, in order."""
        name = TopicPartition(self.topic.name, partition)
        columns = stored_columns(RECORD_COLUMNS.names)
        aborted = AbortedFilter()
        try:
            for chunk in self._source.chunks(
                name, start, end, isolation=_COMMITTED, topic_id=self.topic.id
            ):
                aborted.add(chunk.aborted)
                for decoded in arrow_batches(
                    chunk.data,
                    columns=columns,
                    is_wanted=lambda header: not aborted.is_filtered(header),
                    start=start,
                    end=end,
                ):
                    yield self._typed(decoded, name)
        except OffsetOutOfRange as error:
            raise DataLost(
                f"cannot read offsets {start} to {end - 1} of {name}, which has offsets"
                f" {error.start} to {error.end - 1}"
            ) from error

    def _typed(self, decoded: pa.RecordBatch, name: TopicPartition) -> pa.RecordBatch:
        if self.typed:
            decoded = apply_format(
                decoded, self._format, OnBadRecord.NULL, origin=name, prefix=self.prefix
            ).records
        return make_table(decoded, name, self.schema)


def open_log(source: RecordSource, topic: str) -> TopicLog:
    """Return the log of a topic; raises `UnknownTopic` if it does not exist."""
    return TopicLog(source, source.topics([topic])[topic])


def declared_format(source: RecordSource, topic: str) -> ValueFormat:
    """Return the format that a topic declares; a data directory does not have declarations."""
    configs: Mapping[str, str] = {}
    if isinstance(source, KafkaClient):
        configs = source.topic_configs([topic])[topic]
    return choose_format({}, configs)


def typed_prefix(value_format: ValueFormat) -> str:
    """Return the prefix of typed columns: none, unless one has the name of another column."""
    taken = {name.lower() for name in (*COLUMN_NAMES, ERROR_COLUMN)}
    is_clashing = any(field.name.lower() in taken for field in value_format.schema)
    return CLASH_PREFIX if is_clashing else ""
