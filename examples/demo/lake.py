"""The topic as a Delta table: history from the table, the rest from the log, in one query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clicks import TIMEOUT_SECONDS, TOPIC, clicks, make_producer
from node import Node
from output import explain, run, show, show_code

import millstream.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATER = 500
TABLE = "lake"


def present(node: Node, directory: Path, spark: SparkSession, events: int) -> None:
    """Write the topic to a table, go on, and read both as one."""
    explain("Keep the history of the clicks as a Delta table, written exactly once.")
    at = ("--bootstrap", node.bootstrap)
    run("lake", "enable", TOPIC, "--table", TABLE, *at, directory=directory)
    run("lake", "write", TOPIC, *at, directory=directory)
    explain(
        f"Send {LATER} more clicks, and query both as one: Spark scans the files of the table, and"
        " Millstream reads the log from where the table ends."
    )
    producer = make_producer(node.bootstrap)
    for event in clicks(events, events + LATER):
        producer.produce(TOPIC, **event)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    show_code(count)
    rows = count(spark, node.bootstrap).collect()
    show("\n".join(f"partition {row.partition}: {row.clicks:>6,}" for row in rows))
    total = sum(row.clicks for row in rows)
    show(f"{total:,} clicks, {events:,} of them from the table and {LATER} from the log")
    assert total == events + LATER


def count(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Count the clicks of each partition, each once."""
    both = millstream.spark.table(spark, TOPIC, bootstrap=bootstrap)
    return spark.sql(
        """
        SELECT partition, count(DISTINCT offset) AS clicks
        FROM {both} GROUP BY partition ORDER BY partition
        """,
        both=both,
    )
