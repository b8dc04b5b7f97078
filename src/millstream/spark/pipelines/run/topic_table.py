"""A topic as a table that is read anew whenever it is used.

Spark plans a batch of a Python source once for each query: beside a stream, every micro-batch would
see the topic as it was when the query began. So the tasks plan here, each for its part of the
partitions, when they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from millstream.spark.read.ranges import OffsetRange, ReadTask
from millstream.spark.source import MillstreamDataSource


def read_topic_table(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return all of a topic, as of when it is read.

    There is a task for each partition that has records now; the others are dealt out to them.
    """
    given = dict(options)
    schema = spark.read.format("millstream").options(**given).load().schema
    parts = MillstreamDataSource(given).reader(schema).partitions()
    task_count = max(1, len({one.where for one in _ranges(parts)}))

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = MillstreamDataSource(given).reader(schema)
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for one in _ranges(reader.partitions()):
                    if one.where.partition % task_count == number:
                        yield from reader.read(ReadTask((one,)))

    return spark.range(0, task_count, 1, task_count).mapInArrow(read, schema)


def _ranges(tasks: Sequence[InputPartition]) -> list[OffsetRange]:
    return [one for task in tasks if isinstance(task, ReadTask) for one in task.ranges]
