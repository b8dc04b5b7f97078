"""A log of changes becomes a table with the latest row of each key.

    python examples/pipelines/changelog/produce.py
    millstream pipeline run examples/pipelines/changelog/pipeline.py

The table is kept in versions beside this file:

    customers/
      CURRENT          which version counts: {"query": "...", "batch": 7}
      batch-7/         all rows after batch 7, in Parquet
      batch-6/         the version before, for those who still read it

A batch reads the version that counts, writes the next one whole, and then replaces CURRENT, which
is one rename. This is exact: a batch that is run again, after a crash, has the same number and the
same rows, so it writes the same version over what was left of it, or finds that it counts already.
Whoever reads sees the one version or the other. (Mode `complete` into a table would end at the same
rows, but Spark removes the old files before it writes the new ones.)

Each batch writes the whole table. For large ones use a format with a merge of its own, such as
Delta, in the place of `write_version`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, max_by, struct

from millstream.spark.pipelines import Pipeline, TopicSource, step, target

TABLE = Path(__file__).parent / "customers"
CURRENT = TABLE / "CURRENT"
COLUMNS = "id STRING, name STRING, city STRING"


@step
def changes(log: DataFrame) -> DataFrame:
    """Return keys as text, with what they became; nothing where they were deleted."""
    return log.select(
        col("key").cast("string").alias("id"),
        col("value").isNull().alias("is_deleted"),
        "name",
        "city",
        "offset",
    )


@target(reads="changes")
def customers(batch: DataFrame, batch_id: int) -> None:
    """Make the next version of the table."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    counts = current()
    if counts is not None and counts["query"] != query:
        raise RuntimeError(f"{TABLE} was made by another query: remove it or bring its checkpoint")
    if counts is not None and counts["batch"] >= batch_id:
        return
    write_version(batch, batch_id)
    replace_current({"query": query, "batch": batch_id})
    if counts is not None:
        keep = {f"batch-{counts['batch']}", f"batch-{batch_id}"}
        for old in TABLE.glob("batch-*"):
            if old.name not in keep:
                shutil.rmtree(old)


def write_version(batch: DataFrame, batch_id: int) -> None:
    """Write all rows as they are after a batch.

    Changes of a key are in one partition, where the highest offset is the latest.
    """
    latest = batch.groupBy("id").agg(
        max_by(struct("is_deleted", "name", "city"), "offset").alias("last")
    )
    there = latest.where("NOT last.is_deleted").select("id", "last.name", "last.city")
    kept = read_table(batch.sparkSession).join(latest, "id", "left_anti")
    kept.unionByName(there).write.mode("overwrite").parquet(str(TABLE / f"batch-{batch_id}"))


def read_table(spark: SparkSession) -> DataFrame:
    """Return the version that counts; an empty one before there is any."""
    counts = current()
    if counts is None:
        return spark.createDataFrame([], COLUMNS)
    return spark.read.schema(COLUMNS).parquet(str(TABLE / f"batch-{counts['batch']}"))


def current() -> dict[str, object] | None:
    """Return which version counts; nothing before there is any."""
    return json.loads(CURRENT.read_text()) if CURRENT.exists() else None


def replace_current(counts: dict[str, object]) -> None:
    """Let another version count, in one step."""
    fresh = CURRENT.with_suffix(".new")
    fresh.write_text(json.dumps(counts))
    fresh.replace(CURRENT)


pipeline = Pipeline(
    name="changelog",
    trigger="5 seconds",
    sources=[
        TopicSource(
            name="log",
            topic="customer-changes",
            format="json",
            schema="name STRING, city STRING",
            record_columns=["key", "value", "offset"],
        )
    ],
    steps=[changes],
    targets=[customers],
)
