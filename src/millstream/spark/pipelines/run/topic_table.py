"""A topic as a table that is read again whenever it is used.

Spark plans a batch of a Python source once per query: beside a stream, every micro-batch would see
the topic as it was when the query started. Here the tasks plan when they run, each for its share of
the partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from millstream.spark.read.ranges import OffsetRange, ReadTask
from millstream.spark.source import MillstreamDataSource


def read_topic_table(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return all records of a topic, as of the time of reading.

    There is one task for each partition that has records now; other partitions are distributed
    among these tasks.
    """
    reader_options = dict(options)
    schema = spark.read.format("millstream").options(**reader_options).load().schema
    parts = MillstreamDataSource(reader_options).reader(schema).partitions()
    task_count = max(1, len({range_.partition for range_ in _ranges(parts)}))

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = MillstreamDataSource(reader_options).reader(schema)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for range_ in _ranges(reader.partitions()):
                    if range_.partition.partition % task_count == number:
                        yield from reader.read(ReadTask((range_,)))

    return spark.range(0, task_count, 1, task_count).mapInArrow(read, schema)


def _ranges(tasks: Sequence[InputPartition]) -> list[OffsetRange]:
    return [range_ for task in tasks if isinstance(task, ReadTask) for range_ in task.ranges]
