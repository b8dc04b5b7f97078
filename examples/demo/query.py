"""The third chapter: one query over the topic and the table, and a plot of what it found."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from node import Node
from pipeline import ARCHIVE
from telling import java_aside, say, show, show_code

from millstream.spark.session import running_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

PLOT = Path("millstream-demo.png")
CONF = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}


def tell(node: Node, directory: Path, events: int) -> None:
    """Ask, check and draw."""
    say("To Spark a topic is a table. One query over both, by page and hour:")
    show_code(ask)
    with java_aside(directory / "java"), running_session("millstream demo", conf=CONF) as spark:
        rows = ask(spark, node.bootstrap, str(directory / ARCHIVE)).collect()
    show(table(rows[:5]))
    show(f"... {len(rows):,} rows")
    counted, archived = sum(row.counted for row in rows), sum(row.archived for row in rows)
    show(f"{events:,} clicks were sent, the topic counted {counted:,}, the table has {archived:,}")
    assert all(row.counted == row.archived for row in rows)
    assert counted == events
    say("And a plot of it.")
    draw(rows)


def ask(spark: SparkSession, bootstrap: str, archive: str) -> DataFrame:
    """Compare what the topic counted with what is in the table."""
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
    """Lay rows out in columns."""
    head = f"{'page':<10}{'hour':<8}{'counted':>8}{'archived':>10}{'users':>7}"
    lines = (
        f"{row.page:<10}{row.hour:%H:%M}   {row.counted:>8,}{row.archived:>10,}{row.users:>7,}"
        for row in rows
    )
    return "\n".join((head, *lines))


def draw(rows: list[Row]) -> None:
    """Draw the clicks of each page over the day, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        show("matplotlib is missing, so there is none: pip install matplotlib")
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
