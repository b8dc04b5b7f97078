"""Clicks as a table that grows, and how many each page had."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def clicks() -> DataFrame:
    """Return the topic as a stream: each run adds what came since the last."""
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
    """Count them, anew in each run."""
    return spark.read.table("clicks").groupBy("page").count()
