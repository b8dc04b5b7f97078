"""Jobs that write records to topics exactly once, from another topic or from a table.

A job has an id. Its records become visible in one step, and the node stores the id with them. A run
that is repeated with the same id, whatever happened to the first, writes nothing twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from millstream.clients.kafka.security import NO_SECURITY, KafkaSecurity
from millstream.errors import RequestError
from millstream.spark.maintenance.failure import one_line_failures
from millstream.spark.options import security_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE_FORMATS = ("parquet", "orc", "csv", "json")
_FORMAT = "millstream"
_RAW = {"valueFormat": "raw"}
"""Values are copied as bytes, whatever the topic declares."""
_SOURCE_COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTarget:
    """Target topic and id of a job."""

    bootstrap: str
    topic: str
    job_id: str
    security: KafkaSecurity = NO_SECURITY

    @property
    def options(self) -> dict[str, str]:
        """Options of the data source for the node."""
        return {"bootstrap.servers": self.bootstrap, **security_options(self.security)}


@dataclass(frozen=True, slots=True)
class RangeEdge:
    """One end of a range: an offset in every partition, a time, or an end of the log."""

    offset: int | None = None
    moment: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> RangeEdge:
        """Parse an offset, or a time in ISO 8601, in UTC if it has no zone."""
        if text.isdecimal():
            return cls(offset=int(text))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise RequestError(
                f"must be an offset or a time such as 2026-01-31T12:00:00Z, got {text!r}"
            ) from None
        return cls(moment=moment.replace(tzinfo=moment.tzinfo or UTC))

    def options(self, name: str) -> dict[str, str]:
        """Return the options of the data source for this edge; `name` is `starting` or `ending`."""
        return {f"{name}Timestamp": self.moment.isoformat()} if self.moment else {}


@one_line_failures()
def replay(
    spark: SparkSession,
    source: str,
    target: JobTarget,
    *,
    start: RangeEdge | None = None,
    end: RangeEdge | None = None,
    keeps_partition: bool = False,
) -> None:
    """Copy a range of one topic to another, excluding `end`.

    Keys, values, headers and timestamps are kept. With `keeps_partition` a record goes to the
    partition with the same number, otherwise to the partition of its key.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - optional, and slow to import.

    first, last = start or RangeEdge(), end or RangeEdge()
    options = {"topic": source, "includeHeaders": "true", **_RAW}
    options |= first.options("starting") | last.options("ending")
    frame = spark.read.format(_FORMAT).options(**target.options, **options).load()
    offset = functions.col("offset")
    if first.offset is not None:
        frame = frame.filter(offset >= first.offset)
    if last.offset is not None:
        frame = frame.filter(offset < last.offset)
    wanted = [*_SOURCE_COLUMNS, "partition"] if keeps_partition else _SOURCE_COLUMNS
    _write(frame.select(*wanted), target)


@one_line_failures()
def backfill(
    spark: SparkSession,
    table: str,
    target: JobTarget,
    *,
    table_format: str | None = None,
    key: str | None = None,
    value: str | None = None,
) -> None:
    """Write the rows of a table to a topic, one record per row: see `table_records`."""
    frame = table_records(spark, table, table_format=table_format, key=key, value=value)
    _write(frame, target)


def table_records(
    spark: SparkSession,
    table: str,
    *,
    table_format: str | None = None,
    key: str | None = None,
    value: str | None = None,
) -> DataFrame:
    """Return the rows of a table as records: `value`, and `key` if it is given, as bytes.

    `table` is a path, or the name of a table in Spark's catalog. The record's key is the column
    `key`. The record's value is the column `value`, or without it all columns as JSON. Bytes and
    strings are written as they are, other types as Spark's text form.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - optional, and slow to import.

    frame = _table(spark, table, table_format)
    for name in filter(None, (key, value)):
        if name not in frame.columns:
            raise RequestError(
                f"{table} has no column {name!r}, its columns are {', '.join(frame.columns)}"
            )
    if value is None:
        content = functions.to_json(functions.struct(*map(_column, frame.columns)))
        # Keep rows in which every column is null.
        values = functions.coalesce(content, functions.lit("{}")).cast("binary")
    else:
        values = _bytes(frame, value)
    columns = [values.alias("value")]
    if key is not None:
        columns.insert(0, _bytes(frame, key).alias("key"))
    return frame.select(*columns)


def _table(spark: SparkSession, table: str, table_format: str | None) -> DataFrame:
    name = table_format or _format_of(table)
    if name is None:
        return spark.table(table)
    options: Mapping[str, str] = {"header": "true"} if name == "csv" else {}
    return spark.read.format(name).options(**options).load(table)


def _format_of(table: str) -> str | None:
    """Return the format in the name of a path or of the files in it; `None` for a table name."""
    names = [table.rstrip("/")]
    if os.path.isdir(table):
        names += sorted(os.listdir(table))
    for name in names:
        parts = name.rpartition("/")[2].split(".")[1:]  # It may be compressed: .csv.gz
        if known := next((part for part in parts if part in TABLE_FORMATS), None):
            return known
    if "/" not in table and not os.path.exists(table):
        return None
    raise RequestError(
        f"cannot infer the format of {table!r} from its name, use one of {', '.join(TABLE_FORMATS)}"
    )


def _column(name: str) -> Column:
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.col("`" + name.replace("`", "``") + "`")


def _bytes(frame: DataFrame, name: str) -> Column:
    is_binary = frame.schema[name].dataType.typeName() == "binary"
    return _column(name) if is_binary else _column(name).cast("string").cast("binary")


def _write(frame: DataFrame, target: JobTarget) -> None:
    writer = frame.write.format(_FORMAT).mode("append")
    writer = writer.options(**target.options).option("topic", target.topic)
    writer.options(jobId=target.job_id, **_RAW).save()
