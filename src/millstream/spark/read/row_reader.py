"""Reader of a task: ranges of offsets to Arrow batches of table rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from millstream.clients.aborted_filter import AbortedFilter
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import RecordSource
from millstream.errors import DataLost, OffsetOutOfRange, UnknownTopicId
from millstream.formats.record_columns import make_table, stored_columns
from millstream.formats.typed_batch import OnBadRecord, apply_format
from millstream.records.arrow.decoder import arrow_batches
from millstream.records.topic_partition import TopicPartition
from millstream.spark.columns import TABLE_NAMES, is_table_name, spelled
from millstream.spark.options import ReadOptions
from millstream.spark.read.dead_letters import DEAD_LETTER_COLUMNS, send
from millstream.spark.read.filters import NO_CONDITIONS, Conditions
from millstream.spark.read.ranges import OffsetRange, ReadTask
from millstream.spark.read.tables import arrow_schema
from millstream.spark.source_cache import open_source
from millstream.spark.task_memory import TASK_MEMORY
from millstream.spark.topic_values import TopicValues

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Converts records to rows, with settings common to all tasks of a query."""

    options: ReadOptions
    values: TopicValues
    columns: StructType
    conditions: Conditions = NO_CONDITIONS

    def rows(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        """Yield the records of a task that meet the conditions, with the selected columns."""
        TASK_MEMORY.start_task()
        source = open_source(self.options.source)
        asked = arrow_schema(self.columns)
        schema = self._spelled(asked)
        typing = self._typing(source, schema)
        names = {*stored_columns(schema.names)}
        if self.conditions.keys is not None:
            names.add("key")
        if typing is not None:
            names |= typing.needed
        for range_ in task.ranges:
            for decoded in _decoded(source, range_, self.options, sorted(names)):
                kept = self.conditions.keep(decoded)
                if typing is not None and kept.num_rows:
                    kept = typing.typed(kept, range_.partition)
                if kept.num_rows:
                    rows = make_table(kept, range_.partition, schema)
                    yield rows if schema is asked else rows.rename_columns(asked.names)

    def _spelled(self, asked: pa.Schema) -> pa.Schema:
        """Return the columns as they are named here: a query may write them in any case."""
        known = list(TABLE_NAMES)
        if any(not is_table_name(name) for name in asked.names):
            known += [field.name for field in self.values.fields()]
        names = [spelled(name, known) or name for name in asked.names]
        if names == asked.names:
            return asked
        fields = [field.with_name(name) for field, name in zip(asked, names, strict=True)]
        return pa.schema(fields)

    def _typing(self, source: RecordSource, schema: pa.Schema) -> ValueTyper | None:
        """Return a typer of values if a typed column was selected."""
        if all(name in TABLE_NAMES for name in schema.names):
            return None
        return ValueTyper(source, self.values)


class ValueTyper:
    """Adds typed columns, and writes bad records to the dead letter topic."""

    def __init__(self, source: RecordSource, values: TopicValues) -> None:
        self._source = source
        self._options = values.options
        self._format = values.format()

    @property
    def needed(self) -> frozenset[str]:
        """Columns of the records that must be decoded."""
        has_dead_letters = self._options.on_bad is OnBadRecord.DEAD_LETTER
        return frozenset(DEAD_LETTER_COLUMNS if has_dead_letters else ("offset", "value"))

    def typed(self, decoded: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch:
        """Add the typed columns. Dead letters are durable when this returns."""
        applied = apply_format(
            decoded,
            self._format,
            self._options.on_bad,
            origin=partition,
            prefix=self._options.prefix,
        )
        if applied.dead_letters is not None:
            assert isinstance(self._source, KafkaClient), "checked when the query was planned"
            assert self._options.dead_letter_topic is not None
            send(self._source, self._options.dead_letter_topic, applied.dead_letters)
        return applied.records


def _decoded(
    source: RecordSource, range_: OffsetRange, options: ReadOptions, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range. If records were lost and that is allowed, skip them."""
    start, end = range_.start, range_.end
    if range_.history is not None:
        from millstream.spark.read.history import rows_of_range  # noqa: PLC0415 - few queries have one.

        yield from rows_of_range(range_, columns)
        return
    while start < end:
        aborted = AbortedFilter()
        try:
            for chunk in source.chunks(
                range_.partition,
                start,
                end,
                isolation=options.isolation,
                topic_id=range_.topic_id,
            ):
                aborted.add(chunk.aborted)
                yield from arrow_batches(
                    chunk.data,
                    columns=columns,
                    is_wanted=lambda header: not aborted.is_filtered(header),  # noqa: B023 - called at once.
                    start=start,
                    end=end,
                )
                start = chunk.next_offset
        except UnknownTopicId as error:
            reason = f"cannot read offsets {start} to {end - 1}: {error}"
            if options.fail_on_data_loss:
                raise DataLost(
                    f"{reason}; set failOnDataLoss=false to continue without them"
                ) from error
            logger.warning("%s; continuing without them", reason)
            return
        except OffsetOutOfRange as error:
            moved = _moved(source, replace(range_, start=start, end=end), options)
            if moved is not None:
                yield from _decoded(source, moved, options, columns)
                start = moved.end
                continue
            remaining = max(start, error.start), min(end, error.end)
            reason = (
                f"cannot read offsets {start} to {end - 1} of {range_.partition}, which has offsets"
                f" {error.start} to {error.end - 1}"
            )
            if options.fail_on_data_loss or remaining == (start, end):
                raise DataLost(
                    f"{reason}; set failOnDataLoss=false to continue without the others"
                ) from error
            logger.warning("%s; continuing without the others", reason)
            start, end = remaining
        else:
            return


def _moved(source: RecordSource, range_: OffsetRange, options: ReadOptions) -> OffsetRange | None:
    """Return the part of a range that the lake has by now; see `moved_range`."""
    if options.history is None:
        return None
    from millstream.spark.read.history import moved_range  # noqa: PLC0415

    return moved_range(source, options, range_)
