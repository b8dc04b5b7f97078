"""Records into topics, exactly once: out of another topic, or out of a table.

A job has an id. What it writes becomes visible in one step, and the node remembers the id with it.
So a run that is repeated with the same id, whatever became of the first, writes nothing twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from millstream.errors import RequestError
from millstream.spark.maintenance.failure import one_line_failures

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE_FORMATS = ("parquet", "orc", "csv", "json")
_FORMAT = "millstream"
_RAW = {"valueFormat": "raw"}
"""Values go as they are, whatever a topic declares of them."""
_SOURCE_COLUMNS = ("key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTarget:
    """Where records go, and as which job."""

    bootstrap: str
    topic: str
    job_id: str


@dataclass(frozen=True, slots=True)
class RangeEdge:
    """One end of a range: an offset in every partition, a moment, or an end of the log."""

    offset: int | None = None
    moment: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> RangeEdge:
        """Read an offset, or a time as ISO 8601 has it, in UTC where it names no zone."""
        if text.isdecimal():
            return cls(offset=int(text))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise RequestError(
                f"found {text!r}, needed is an offset or a time such as 2026-01-31T12:00:00Z"
            ) from None
        return cls(moment=moment.replace(tzinfo=moment.tzinfo or UTC))

    def options(self, name: str) -> dict[str, str]:
        """Return what the data source has to be told, `name` being `starting` or `ending`."""
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
    """Write a range of one topic into another, `end` not included.

    Keys, values, headers and timestamps stay. Each record goes to the partition of its number with
    `keeps_partition`, and else to that of its key.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - an extra, and slow.

    first, last = start or RangeEdge(), end or RangeEdge()
    options = {"topic": source, "includeHeaders": "true", **_RAW}
    options |= first.options("starting") | last.options("ending")
    reader = spark.read.format(_FORMAT).option("bootstrap.servers", target.bootstrap)
    found = reader.options(**options).load()
    offset = functions.col("offset")
    if first.offset is not None:
        found = found.filter(offset >= first.offset)
    if last.offset is not None:
        found = found.filter(offset < last.offset)
    wanted = [*_SOURCE_COLUMNS, "partition"] if keeps_partition else _SOURCE_COLUMNS
    _write(found.select(*wanted), target)


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
    """Write a table into a topic, a record for each row: see `table_records`."""
    found = table_records(spark, table, table_format=table_format, key=key, value=value)
    _write(found, target)


def table_records(
    spark: SparkSession,
    table: str,
    *,
    table_format: str | None = None,
    key: str | None = None,
    value: str | None = None,
) -> DataFrame:
    """Return the rows of a table as records: `key`, where one is wanted, and `value`, in bytes.

    `table` is a path, or the name of a table that Spark knows. The key is that of the column `key`,
    and the value that of the column `value`, or else all columns as JSON. Bytes and text go as
    they are, other types as the text that Spark writes them as.
    """
    from pyspark.sql import functions  # noqa: PLC0415 - an extra, and slow.

    found = _table(spark, table, table_format)
    for name in filter(None, (key, value)):
        if name not in found.columns:
            raise RequestError(f"{table} has no column {name!r}, but {', '.join(found.columns)}")
    if value is None:
        content = functions.to_json(functions.struct(*map(_column, found.columns)))
        # A row of which every column is null is still a row.
        values = functions.coalesce(content, functions.lit("{}")).cast("binary")
    else:
        values = _bytes(found, value)
    columns = [values.alias("value")]
    if key is not None:
        columns.insert(0, _bytes(found, key).alias("key"))
    return found.select(*columns)


def _table(spark: SparkSession, table: str, table_format: str | None) -> DataFrame:
    name = table_format or _format_of(table)
    if name is None:
        return spark.table(table)
    options: Mapping[str, str] = {"header": "true"} if name == "csv" else {}
    return spark.read.format(name).options(**options).load(table)


def _format_of(table: str) -> str | None:
    """Return the format that a path, or the files in it, are named after; none for a name."""
    names = [table.rstrip("/")]
    if os.path.isdir(table):
        names += sorted(os.listdir(table))
    for name in names:
        parts = name.rpartition("/")[2].split(".")[1:]  # It may be packed: .csv.gz
        if found := next((part for part in parts if part in TABLE_FORMATS), None):
            return found
    if "/" not in table and not os.path.exists(table):
        return None
    raise RequestError(
        f"found no format in the name {table!r}, name one of {', '.join(TABLE_FORMATS)}"
    )


def _column(name: str) -> Column:
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.col("`" + name.replace("`", "``") + "`")


def _bytes(found: DataFrame, name: str) -> Column:
    """Return a column as bytes."""
    is_binary = found.schema[name].dataType.typeName() == "binary"
    return _column(name) if is_binary else _column(name).cast("string").cast("binary")


def _write(found: DataFrame, target: JobTarget) -> None:
    writer = found.write.format(_FORMAT).mode("append")
    writer = writer.option("bootstrap.servers", target.bootstrap).option("topic", target.topic)
    writer.options(jobId=target.job_id, **_RAW).save()
