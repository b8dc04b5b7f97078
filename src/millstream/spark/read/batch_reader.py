"""Reader of a batch: planned once on the driver, read range by range in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from millstream.clients.partition import RecordSource
from millstream.spark.options import ReadOptions
from millstream.spark.read.filters import NO_CONDITIONS, push
from millstream.spark.read.plan import TopicIds, find_partitions, make_tasks, resolve_start
from millstream.spark.read.positions import Offsets, resolve
from millstream.spark.read.ranges import ReadTask
from millstream.spark.source_cache import open_source
from millstream.spark.topic_values import TopicValues

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.spark.read.history import UnionSource


class BatchReader(DataSourceReader):
    """Reads from the start in the options up to the end at planning time."""

    def __init__(self, options: ReadOptions, values: TopicValues, columns: StructType) -> None:
        self._options = options
        self._values = values
        self._columns = columns
        self._conditions = NO_CONDITIONS

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        options = self._options
        source = open_source(options.source)
        topic_ids = find_partitions(source, options.selection)
        union = self._union(source, topic_ids)
        source = union or source
        selected = [partition for partition in topic_ids if self._conditions.has(partition)]
        bounds = source.bounds(selected, isolation=options.isolation)
        start = resolve(options.starting, selected, bounds, source, name="startingOffsets")
        end = resolve(options.ending, selected, bounds, source, name="endingOffsets")
        start, _ = resolve_start(source, start, bounds, options)
        start, end = self._clipped(source, start, end)
        past: list[ReadTask] = []
        if union is not None:
            union.lost(start, end)
            past, start = union.history_tasks(start, end, options)
        # Spark takes an empty list for one partition without a value.
        return [*past, *make_tasks(source, start, end, options, topic_ids)] or [ReadTask(())]

    def _union(self, source: RecordSource, topic_ids: TopicIds) -> UnionSource | None:
        """Return the source with the histories of the topics; `None` without the option."""
        if self._options.history is None:
            return None
        # With what reads tables, which other queries do not need.
        from millstream.spark.read.history import open_union  # noqa: PLC0415

        return open_union(source, self._options, topic_ids)

    def _clipped(
        self, source: RecordSource, start: Offsets, end: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Exclude offsets that cannot meet the conditions."""
        clipped = {
            partition: self._conditions.clip(start[partition], end[partition]) for partition in end
        }
        start = {partition: bounds[0] for partition, bounds in clipped.items()}
        end = {partition: bounds[1] for partition, bounds in clipped.items()}
        if (timestamp_ms := self._conditions.timestamp_ms_min) is not None and timestamp_ms > 0:
            for partition, offset in source.offsets_at(list(end), timestamp_ms).items():
                start[partition] = (
                    end[partition] if offset is None else max(start[partition], offset)
                )
        return start, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of a task."""
        # Only tasks decode; processes that plan do not load what decoding needs.
        from millstream.spark.read.row_reader import RowReader  # noqa: PLC0415

        assert isinstance(partition, ReadTask)
        reader = RowReader(
            options=self._options,
            values=self._values,
            columns=self._columns,
            conditions=self._conditions,
        )
        return reader.rows(partition)


class PushdownReader(BatchReader):
    """A `BatchReader` that applies filters of the query itself.

    Spark refuses a reader that has `pushFilters` while its setting for pushdown is off, so there
    are two classes, and `source.py` chooses.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        """Accept the filters that are supported, and return those that Spark has to apply."""
        self._conditions, remaining = push(filters, self._conditions)
        return remaining
