"""Union reads in Spark: history and tail, beside Spark's own scan of the files of the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_least
from pyspark.sql import DataFrame

import millstream.spark
from millstream.clients.kafka.client import KafkaClient
from millstream.lake.table import LakeTable
from millstream.lake.writer import LakeWriter
from subjects.lake.writer import BATCH_SIZE, fill
from subjects.log.common import KIB, MIB
from subjects.spark.common import rate, running, warmed

TOPIC = "united"


def _query(table: DataFrame) -> None:
    table.selectExpr("sum(length(value))", "max(offset)").collect()


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    total = scale.pick(smoke=8 * BATCH_SIZE, quick=256 * MIB, full=1024 * MIB)
    uri = str(folder / "table")
    with running(folder) as bench:
        bench.make_topic(TOPIC)
        fill(bench.port, TOPIC, KIB, total)
        with KafkaClient(bench.bootstrap) as client:
            records = LakeWriter(client, TOPIC, uri).run().offsets
        parquet = bench.spark.read.parquet(*LakeTable.open(uri).file_uris())
        native = millstream.spark.table(bench.spark, TOPIC, bootstrap=bench.bootstrap, history=uri)
        by_source = bench.through_node(TOPIC, history=uri, columns="offset,value")

        def turn(name: str, table: DataFrame) -> Figures:
            return {name: rate(records, partial(_query, table))}

        tables = {"parquet": parquet, "table": native, "source": by_source}
        arms = [partial(turn, name, table) for name, table in tables.items()]
        yield warmed(arms, scale)


def _row(name: str, ours: str, bound: float | None) -> Row:
    return Row(
        name=name,
        unit="million/s",
        ours=ours,
        limit="parquet",
        limit_name="Spark's scan of the files",
        goal=None if bound is None else ratio_at_least(bound),
    )


UNION = Experiment(
    title="union read of history",
    note=(
        "A topic of 1 KB records in 4 partitions that is all in its table, so the tail is empty."
        " Two columns of all rows are read on local[2]. The limit is Spark's own scan of the same"
        " files. The planning of each query is counted, of the union also that of its empty tail."
    ),
    rows=(
        _row("history by millstream.spark.table", "table", 0.9),
        _row('history by format("millstream")', "source", None),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_quick=3,
    repetitions_full=5,
)
