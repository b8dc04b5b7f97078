"""Batch reads of a topic, beside Spark reading the same rows from Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from measure.experiment import (
    Against,
    Arm,
    Experiment,
    Figures,
    PeerArms,
    PeerMissing,
    PeerServer,
    Row,
    Scale,
    at_least,
    ratio_at_least,
)
from peers.connector import connector_jars
from pyspark.sql import DataFrame

from subjects.kafka.confluent import topic
from subjects.log.common import KIB, MIB
from subjects.spark.common import (
    BATCH_SIZE,
    Bench,
    random_values,
    rate,
    read_all,
    running,
    session,
    warmed,
)

TOPIC = "scanned"
CONNECTOR = "kafka connector"
ONE_TASK = str(1024 * MIB)

Query = Callable[[DataFrame], object]


def _total_length(table: DataFrame) -> None:
    table.selectExpr("sum(length(value))").collect()


QUERIES: tuple[tuple[str, Query], ...] = (
    ("sum(length(value))", _total_length),
    ("count", DataFrame.count),
)


def _total(scale: Scale) -> int:
    return scale.pick(smoke=8 * BATCH_SIZE, quick=256 * MIB, full=512 * MIB)


def _arms(size: int) -> Callable[[Scale, Path], AbstractContextManager[Sequence[Arm]]]:
    @contextmanager
    def prepared(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
        total = _total(scale)
        with running(folder) as bench:
            bench.make_topic(TOPIC)
            records = bench.fill(TOPIC, random_values(size), total // BATCH_SIZE)
            parquet = _as_parquet(bench, folder / "parquet")
            assert parquet.count() == records

            def turn(name: str, table: DataFrame, query: Query) -> Figures:
                return {name: rate(records, partial(query, table))}

            value, everything = {"columns": "value"}, {}
            arms = [
                partial(turn, f"{place} {name}", table, query)
                for columns, queries in ((value, QUERIES), (everything, (("all", read_all),)))
                for name, query in queries
                for place, table in (
                    ("parquet", parquet.select("value") if columns else parquet),
                    ("node", bench.through_node(TOPIC, **columns)),
                    ("files", bench.in_place(TOPIC, **columns)),
                )
            ]
            yield warmed(arms, scale)

    return prepared


def _kafka_format(bench: Bench, topic: str) -> DataFrame:
    """Return a topic as Spark's own connector for Kafka sees it."""
    reader = bench.spark.read.format("kafka").option("kafka.bootstrap.servers", bench.bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


@contextmanager
def _connector_turns(
    bench: Bench, topic: str, size: int, who: str, scale: Scale
) -> Iterator[Sequence[Arm]]:
    records = bench.fill(topic, random_values(size), _total(scale) // BATCH_SIZE)
    table = _kafka_format(bench, topic)
    assert table.count() == records

    def turn(name: str, query: Query) -> Figures:
        return {name: rate(records, partial(query, table))}

    queries = ((QUERIES[0][0], _total_length), ("all", read_all))
    arms = [partial(turn, f"{who} {name}", query) for name, query in queries]
    yield warmed(arms, scale)


def _from_us(size: int) -> PeerArms:
    @contextmanager
    def prepared(scale: Scale, folder: Path, _: PeerServer) -> Iterator[Sequence[Arm]]:
        with running(folder) as bench:
            bench.make_topic(TOPIC)
            with _connector_turns(bench, TOPIC, size, CONNECTOR, scale) as arms:
                yield arms

    return PeerArms(peer=CONNECTOR, arms=prepared)


def _from_kafka(size: int) -> PeerArms:
    @contextmanager
    def prepared(scale: Scale, folder: Path, server: PeerServer) -> Iterator[Sequence[Arm]]:
        if not connector_jars():
            raise PeerMissing("there is no connector of Spark to read it with")
        bench = Bench(session(), f"127.0.0.1:{server.port}", server.port, folder)
        with (
            topic(bench.bootstrap, {}) as name,
            _connector_turns(bench, name, size, "kafka", scale) as arms,
        ):
            yield arms

    return PeerArms(peer="kafka", arms=prepared)


def _as_parquet(bench: Bench, folder: Path) -> DataFrame:
    """Write the topic as Parquet, a file for each partition."""
    table = bench.through_node(TOPIC, partitionBytes=ONE_TASK)
    table.write.parquet(str(folder))
    return bench.spark.read.parquet(str(folder))


def _against(query: str) -> tuple[Against, ...]:
    """Return the peers of a query: the connector is not measured with a count."""
    if query == "count":
        return ()
    from_us, from_kafka = "Spark's Kafka connector, from us", "Spark's Kafka connector, from Kafka"
    return (
        Against(peer=CONNECTOR, name=from_us, figure=f"{CONNECTOR} {query}"),
        Against(peer="kafka", name=from_kafka, figure=f"kafka {query}", goal=ratio_at_least(1)),
    )


def _experiment(size: int, name: str, rate_min: float | None) -> Experiment:
    def row(what: str, place: str, query: str, bound: float | None = None) -> Row:
        where = "through the node" if place == "node" else "in place"
        return Row(
            name=f"scan {name} records {where}, {what}",
            unit="million/s",
            ours=f"{place} {query}",
            limit=f"parquet {query}",
            limit_name="Parquet",
            goal=None if bound is None else ratio_at_least(bound),
            peers=_against(query),
        )

    floor = () if rate_min is None else (_rate_row(name, rate_min),)
    return Experiment(
        title=f"scan {name} records",
        note=(
            f"A topic of {name} records without keys in 4 partitions, in batches of 512 KB, not"
            " compressed and cached, is read as a table on local[2]. The value alone is read with"
            " the option `columns`. All columns means that every row is made with all of its"
            " columns, and thrown away. The limit is Spark with the same rows and columns in four"
            " Parquet files, not compressed and without dictionaries; its count looks at no column."
            " Spark's own planning, and the start of Python processes for it, are counted. The"
            " peer is Spark's own connector for Kafka with its defaults, which runs in the JVM,"
            " reading the same batches from a node and from Kafka; it always makes all columns."
        ),
        rows=(
            row("sum(length(value))", "node", "sum(length(value))", 0.5),
            *floor,
            row("sum(length(value))", "files", "sum(length(value))", 0.5),
            row("count", "node", "count"),
            row("count", "files", "count"),
            row("all columns", "node", "all"),
            row("all columns", "files", "all"),
        ),
        arms=_arms(size),
        peers=(_from_us(size), _from_kafka(size)),
        repetitions_smoke=1,
        repetitions_full=4,
        repetitions_quick=2,
    )


def _rate_row(name: str, rate_min: float) -> Row:
    return Row(
        name=f"scan {name} records through the node, end to end",
        unit="million/s",
        ours="node sum(length(value))",
        goal=at_least(rate_min),
    )


SCAN_100_BYTES = _experiment(100, "100-byte", 1.0)
SCAN_1_KB = _experiment(KIB, "1 KB", None)
