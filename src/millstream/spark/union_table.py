"""A topic as one DataFrame: its lake table by Spark's own Parquet scan, and the log after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millstream.clients.partition import Isolation
from millstream.formats.bad_records import OnBadRecord
from millstream.lake.history import TableHistory
from millstream.lake.topic_log import open_log
from millstream.lake.topic_table import no_table
from millstream.spark.options import parse_read_options
from millstream.spark.read.history import open_union
from millstream.spark.read.plan import find_partitions
from millstream.spark.read.positions import Offsets
from millstream.spark.source_cache import open_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPARK_SCHEMES = {"s3://": "s3a://"}
"""Schemes of addresses that Spark spells in another way."""


def read_union(spark: SparkSession, topic: str, options: dict[str, str]) -> DataFrame:
    """Return all records of a topic as they are now; see `millstream.spark.table`."""
    given = parse_read_options(
        {**options, "topic": topic, "includeHeaders": "true"}, is_stream=False
    )
    source = open_source(given.source)
    topic_ids = find_partitions(source, given.selection)
    union = open_union(source, given, topic_ids)
    if (history := union.history(topic)) is None:
        raise no_table(topic)
    bounds = union.bounds(list(topic_ids), isolation=Isolation.READ_COMMITTED)
    history = union.history(topic) or history  # The newest, if that was needed.
    log = open_log(source, topic)
    starts = {
        at: bound.start if (position := union.position(at)) is None else position
        for at, bound in bounds.items()
    }
    ends = {at: bound.end for at, bound in bounds.items()}
    union.lost(starts, ends)
    schema = from_arrow_schema(pa.unify_schemas([history.table.schema, log.schema]))
    tail = {
        **options,
        "topic": topic,
        "history": history.uri,
        "includeHeaders": "true",
        "startingOffsets": _by_topic(starts),
        "endingOffsets": _by_topic(ends),
        "valuePrefix": log.prefix,
        "onBadRecord": OnBadRecord.NULL.value,
    }
    frame = spark.read.format("millstream").options(**tail).load()
    return _history(spark, topic, history, schema).unionByName(frame, allowMissingColumns=True)


def _history(
    spark: SparkSession, topic: str, history: TableHistory, schema: StructType
) -> DataFrame:
    """Return the rows of a version of a table, by their files."""
    addresses = [_address(uri) for uri in history.table.file_uris()]
    rows = (
        spark.read.schema(schema).parquet(*addresses)
        if addresses
        else spark.createDataFrame([], schema)
    )
    for deletion in history.deletions:
        rows = rows.where(f"NOT {deletion.spark_sql()}")
    return rows.selectExpr(f"'{topic}' AS topic", *(f"`{name}`" for name in schema.fieldNames()))


def _address(uri: str) -> str:
    """Return the address of a file as Spark has it."""
    for scheme, spelled in _SPARK_SCHEMES.items():
        if uri.startswith(scheme):
            return spelled + uri.removeprefix(scheme)
    return uri if "://" in uri else Path(uri).absolute().as_uri()


def _by_topic(offsets: Offsets) -> str:
    """Return offsets as options have them."""
    positions: dict[str, dict[str, int]] = {}
    for partition, offset in offsets.items():
        positions.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return json.dumps(positions)
