"""Clicks as a table that is appended to, and their number by page."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def clicks() -> DataFrame:
    """Return the topic as a stream: each run appends the records since the last run."""
    return (
        spark.readStream.format("millstream")
        .option("bootstrap.servers", spark.conf.get("millstream.bootstrap"))
        .option("topic", "clicks")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("from_json(CAST(value AS STRING), 'user STRING, page STRING') AS click")
        .select("click.*")
    )


@dp.materialized_view
def clicks_by_page() -> DataFrame:
    """Return the clicks by page, counted again in each run."""
    return spark.read.table("clicks").groupBy("page").count()
