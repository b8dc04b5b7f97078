"""Chapter 3: one query over the topic and the table, and a plot of its result."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from node import Node
from output import explain, java_stderr_to, show, show_code
from pipeline import ARCHIVE

from millstream.spark.session import running_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

PLOT = Path("millstream-demo.png")
CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}


def present(node: Node, directory: Path, events: int) -> None:
    """Run the query, check its result and plot it."""
    explain("To Spark, a topic is a table. Query the topic and the table by page and hour:")
    show_code(compare)
    with java_stderr_to(directory / "java"), running_session("millstream demo", conf=CONF) as spark:
        rows = compare(spark, node.bootstrap, str(directory / ARCHIVE)).collect()
    show(table(rows[:5]))
    show(f"... {len(rows):,} rows")
    counted, archived = sum(row.counted for row in rows), sum(row.archived for row in rows)
    show(f"{events:,} clicks sent, {counted:,} counted in the topic, {archived:,} in the table")
    assert all(row.counted == row.archived for row in rows)
    assert counted == events
    explain("Plot the result.")
    draw(rows)


def compare(spark: SparkSession, bootstrap: str, archive: str) -> DataFrame:
    """Compare the counts in the topic with the rows of the table."""
    topic = spark.read.format("millstream").options(
        **{"bootstrap.servers": bootstrap},
        topic="clicks-by-hour",
        valueFormat="json",
        valueSchema="page STRING, hour TIMESTAMP, clicks BIGINT",
    )
    return spark.sql(
        """
        SELECT page, hour, counted, archived, users
        FROM (
            SELECT page, hour, max(clicks) AS counted -- The largest count is the latest.
            FROM {counts} GROUP BY ALL
        )
        FULL JOIN (
            SELECT page, date_trunc('HOUR', at) AS hour,
                   count(*) AS archived, count(DISTINCT user) AS users
            FROM {archive} GROUP BY ALL
        ) USING (page, hour)
        ORDER BY counted DESC
        """,
        counts=topic.load(),
        archive=spark.read.parquet(archive),
    )


def table(rows: list[Row]) -> str:
    """Format rows as columns."""
    head = f"{'page':<10}{'hour':<8}{'counted':>8}{'archived':>10}{'users':>7}"
    lines = (
        f"{row.page:<10}{row.hour:%H:%M}   {row.counted:>8,}{row.archived:>10,}{row.users:>7,}"
        for row in rows
    )
    return "\n".join((head, *lines))


def draw(rows: list[Row]) -> None:
    """Plot the clicks of each page over the day, if matplotlib is installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        show("matplotlib is not installed, so there is no plot: pip install matplotlib")
        return
    pages: dict[str, dict[int, int]] = defaultdict(dict)
    for row in rows:
        pages[row.page][row.hour.hour] = row.counted
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(
        title="Clicks by page and hour", xlabel="hour of the day (UTC)", ylabel="clicks"
    )
    for page, counts in sorted(pages.items()):
        hours = sorted(counts)
        axes.plot(hours, [counts[hour] for hour in hours], marker=".", label=page)
    axes.set_xticks(range(0, 24, 3))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(PLOT, dpi=120)
    show(f"{PLOT.resolve()}")
