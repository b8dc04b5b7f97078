"""A batch of a topic: planned once on the driver, read range by range in the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from millstream.clients.partition import RecordSource
from millstream.spark.options import ReadOptions
from millstream.spark.read.filters import NO_CONDITIONS, push
from millstream.spark.read.plan import find_partitions, make_tasks, resolve_start
from millstream.spark.read.positions import Offsets, resolve
from millstream.spark.read.ranges import ReadTask
from millstream.spark.source_cache import open_source
from millstream.spark.topic_values import TopicValues

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads from where the options say up to what there is when the query is planned."""

    def __init__(self, options: ReadOptions, values: TopicValues, columns: StructType) -> None:
        self._options = options
        self._values = values
        self._columns = columns
        self._conditions = NO_CONDITIONS

    def partitions(self) -> list[InputPartition]:
        """Return what each task reads."""
        options = self._options
        place = open_source(options.place)
        where = [
            one for one in find_partitions(place, options.selection) if self._conditions.has(one)
        ]
        bounds = place.bounds(where, isolation=options.isolation)
        start = resolve(options.starting, where, bounds, place, name="startingOffsets")
        end = resolve(options.ending, where, bounds, place, name="endingOffsets")
        start, _ = resolve_start(place, start, bounds, options)
        start, end = self._clipped(place, start, end)
        # An empty list would be taken for one partition without a value.
        return [*make_tasks(place, start, end, options)] or [ReadTask(())]

    def _clipped(
        self, place: RecordSource, start: Offsets, end: Offsets
    ) -> tuple[Offsets, Offsets]:
        """Leave out what cannot meet the conditions."""
        clipped = {one: self._conditions.clip(start[one], end[one]) for one in end}
        start = {one: bounds[0] for one, bounds in clipped.items()}
        end = {one: bounds[1] for one, bounds in clipped.items()}
        if (least := self._conditions.timestamp_ms_min) is not None and least > 0:
            for one, offset in place.offsets_at(list(end), least).items():
                start[one] = end[one] if offset is None else max(start[one], offset)
        return start, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        # Tasks alone decode: who plans does without what that needs.
        from millstream.spark.read.row_reader import RowReader  # noqa: PLC0415

        assert isinstance(partition, ReadTask)
        reading = RowReader(
            options=self._options,
            values=self._values,
            columns=self._columns,
            conditions=self._conditions,
        )
        return reading.rows(partition)


class PushdownReader(BatchReader):
    """The same, with conditions of the query met here.

    Spark refuses a reader that knows `pushFilters` as long as its own setting for it is off, so
    there are two classes, and `source.py` decides which.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name.
        """Take what can be met here, and return what Spark has to apply."""
        self._conditions, left = push(filters, self._conditions)
        return left
