"""Exactly-once writes to a topic, beside Spark writing the rows as Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least
from pyspark import StorageLevel

from subjects.kafka.client import delete_topic
from subjects.spark.common import PARTITIONS, rate, read_all, running, warmed

VALUE = "cast(rpad(cast(id as string), 100, 'x') as binary) as value"


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    records = scale.pick(smoke=10_000, quick=1_000_000, full=2_000_000)
    numbers = count()
    with running(folder) as bench:
        made = bench.spark.range(0, records, 1, PARTITIONS).selectExpr(VALUE)
        rows = made.persist(StorageLevel.MEMORY_ONLY)
        assert rows.count() == records

        def nothing() -> Figures:
            return {"nothing": rate(records, lambda: read_all(rows))}

        def parquet() -> Figures:
            path = str(folder / f"parquet-{next(numbers)}")
            return {"parquet": rate(records, lambda: rows.write.parquet(path))}

        def topic() -> Figures:
            name = f"sink-{next(numbers)}"
            bench.make_topic(name)
            writer = rows.write.format("millstream").mode("append")
            writer.option("bootstrap.servers", bench.bootstrap).option("topic", name)
            found = {"topic": rate(records, writer.save)}
            delete_topic(bench.port, name)
            return found

        yield warmed((nothing, parquet, topic), scale)
        rows.unpersist()


SINK = Experiment(
    title="sink of 100-byte records",
    note=(
        "Rows of 100 bytes, which Spark holds in its memory in 4 partitions, are written into a"
        " topic of 4 partitions in one transaction, synced to the disk. The limit is Spark writing"
        " the same rows as Parquet, not compressed, without dictionaries, and not synced."
        " Reading them and throwing them away is given to see what that takes of both."
    ),
    rows=(
        Row(
            name="write 100-byte records into a topic",
            unit="million/s",
            ours="topic",
            limit="parquet",
            limit_name="Parquet",
            goal=at_least(0.5),
        ),
        Row(name="the same rows into nothing", unit="million/s", ours="nothing"),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_full=5,
    repetitions_quick=3,
)
