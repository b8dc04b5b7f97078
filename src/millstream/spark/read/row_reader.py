"""What a task does: ranges of offsets in, parts of the table out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from millstream.clients.aborted_filter import AbortedFilter
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import RecordSource
from millstream.errors import DataLost, OffsetOutOfRange
from millstream.formats.typed_batch import OnBadRecord, apply_format
from millstream.records.arrow.decoder import arrow_batches
from millstream.records.topic_partition import TopicPartition
from millstream.spark.columns import TABLE_NAMES
from millstream.spark.options import ReadOptions
from millstream.spark.read.dead_letters import DEAD_LETTER_COLUMNS, send
from millstream.spark.read.filters import NO_CONDITIONS, Conditions
from millstream.spark.read.ranges import OffsetRange, ReadTask
from millstream.spark.read.tables import arrow_schema, make_table, stored_columns
from millstream.spark.source_cache import open_source
from millstream.spark.topic_values import TopicValues

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """How records become rows: what all tasks of a query have in common."""

    options: ReadOptions
    values: TopicValues
    columns: StructType
    conditions: Conditions = NO_CONDITIONS

    def rows(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Read the records of a task that meet the conditions, with the columns asked for."""
        place = open_source(self.options.place)
        schema = arrow_schema(self.columns)
        typing = self._typing(place, schema)
        names = {*stored_columns(schema.names)}
        if self.conditions.keys is not None:
            names.add("key")
        if typing is not None:
            names |= typing.needed
        for wanted in task.ranges:
            for decoded in _decoded(place, wanted, self.options, sorted(names)):
                kept = self.conditions.keep(decoded)
                if typing is not None and kept.num_rows:
                    kept = typing.typed(kept, wanted.where)
                if kept.num_rows:
                    yield make_table(kept, wanted.where, schema)

    def _typing(self, place: RecordSource, schema: pa.Schema) -> ValueTyper | None:
        """Return what types values, where a typed column was asked for."""
        if all(name in TABLE_NAMES for name in schema.names):
            return None
        return ValueTyper(place, self.values)


class ValueTyper:
    """Types values, and sends those that do not fit where they are to go."""

    def __init__(self, place: RecordSource, values: TopicValues) -> None:
        self._place = place
        self._options = values.options
        self._format = values.format()

    @property
    def needed(self) -> frozenset[str]:
        """What has to be decoded of the records."""
        is_kept_elsewhere = self._options.on_bad is OnBadRecord.DEAD_LETTER
        return frozenset(DEAD_LETTER_COLUMNS if is_kept_elsewhere else ("offset", "value"))

    def typed(self, decoded: pa.RecordBatch, where: TopicPartition) -> pa.RecordBatch:
        """Add the typed columns; dead letters are safe when this returns."""
        applied = apply_format(
            decoded, self._format, self._options.on_bad, origin=where, prefix=self._options.prefix
        )
        if applied.dead_letters is not None:
            assert isinstance(self._place, KafkaClient), "checked when the query was planned"
            assert self._options.dead_letter_topic is not None
            send(self._place, self._options.dead_letter_topic, applied.dead_letters)
        return applied.records


def _decoded(
    place: RecordSource, wanted: OffsetRange, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read a range, and go on with what is left of it where losing the rest is allowed."""
    start, end = wanted.start, wanted.end
    while start < end:
        voids = AbortedFilter()
        try:
            for stretch in place.stretches(wanted.where, start, end, isolation=options.isolation):
                voids.add(stretch.aborted)
                yield from arrow_batches(
                    stretch.data,
                    columns=columns,
                    is_wanted=lambda header: not voids.is_void(header),  # noqa: B023 - at once.
                    start=start,
                    end=end,
                )
                start = stretch.next_offset
        except OffsetOutOfRange as error:
            left = max(start, error.start), min(end, error.end)
            reason = (
                f"offsets {start} to {end - 1} of {wanted.where} were to be read, and it has"
                f" {error.start} to {error.end - 1}"
            )
            if options.fail_on_data_loss or left == (start, end):
                raise DataLost(f"{reason}; failOnDataLoss=false would go on without") from error
            logger.warning("%s: going on without", reason)
            start, end = left
        else:
            return
