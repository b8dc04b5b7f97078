"""Pipeline from a changelog to a table with the latest row of each key.

    python examples/pipelines/changelog/produce.py
    millstream pipeline run examples/pipelines/changelog/pipeline.py

The table is stored in versions beside this file:

    customers/
      CURRENT          the current version: {"query": "...", "batch": 7}
      batch-7/         all rows after batch 7, in Parquet
      batch-6/         the previous version, for readers that still use it

A batch reads the current version, writes the next one, and then replaces CURRENT with one rename.
This is exact: a batch that is repeated after a crash has the same number and the same rows, so it
writes the same version again, or finds that it is current already. A reader sees one version or the
other. (Mode `complete` of a table gives the same rows, but Spark removes the old files before it
writes the new ones.)

Each batch writes the whole table. For large tables, use a format that supports merging, such as
Delta, instead of `write_version`.
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
    """Return keys as text with their new values; null values for deleted keys."""
    return log.select(
        col("key").cast("string").alias("id"),
        col("value").isNull().alias("is_deleted"),
        "name",
        "city",
        "offset",
    )


@target(reads="changes")
def customers(batch: DataFrame, batch_id: int) -> None:
    """Write the next version of the table."""
    query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    version = current()
    if version is not None and version["query"] != query:
        raise RuntimeError(
            f"{TABLE} was written by another query: delete it or restore its checkpoint"
        )
    if version is not None and version["batch"] >= batch_id:
        return
    write_version(batch, batch_id)
    replace_current({"query": query, "batch": batch_id})
    if version is not None:
        keep = {f"batch-{version['batch']}", f"batch-{batch_id}"}
        for old in TABLE.glob("batch-*"):
            if old.name not in keep:
                shutil.rmtree(old)


def write_version(batch: DataFrame, batch_id: int) -> None:
    """Write all rows as of the end of a batch.

    All changes of a key are in one partition, so the highest offset is the latest.
    """
    latest = batch.groupBy("id").agg(
        max_by(struct("is_deleted", "name", "city"), "offset").alias("last")
    )
    current_rows = latest.where("NOT last.is_deleted").select("id", "last.name", "last.city")
    kept = read_table(batch.sparkSession).join(latest, "id", "left_anti")
    kept.unionByName(current_rows).write.mode("overwrite").parquet(str(TABLE / f"batch-{batch_id}"))


def read_table(spark: SparkSession) -> DataFrame:
    """Return the rows of the current version; none if there is no version."""
    version = current()
    if version is None:
        return spark.createDataFrame([], COLUMNS)
    return spark.read.schema(COLUMNS).parquet(str(TABLE / f"batch-{version['batch']}"))


def current() -> dict[str, object] | None:
    """Return the current version, or `None`."""
    return json.loads(CURRENT.read_text()) if CURRENT.exists() else None


def replace_current(version: dict[str, object]) -> None:
    """Replace the current version atomically."""
    new_file = CURRENT.with_suffix(".new")
    new_file.write_text(json.dumps(version))
    new_file.replace(CURRENT)


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
