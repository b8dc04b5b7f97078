"""Spark integration: data source, sinks, pipelines and maintenance jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["table"]


def table(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap: str = "127.0.0.1:9092",
    history: str = "auto",
    options: dict[str, str] | None = None,
) -> DataFrame:
    """Return all records of a topic as they are now: its lake table, and the log after it.

    The table is read by Spark's own Parquet scan. The columns are those of the table, with the
    topic: typed columns are null in rows that were written before the topic declared them.
    `history` is the address of the table, by default the one in the config of the topic; `options`
    are further ones of `format("millstream")`, for logins and the size of tasks.

    Both parts are fixed by the call: call it again to see later records.
    """
    from millstream.spark.union_table import read_union  # noqa: PLC0415 - needs Spark and Arrow.

    given = {"bootstrap.servers": bootstrap, "history": history, **(options or {})}
    return read_union(spark, topic, given)
