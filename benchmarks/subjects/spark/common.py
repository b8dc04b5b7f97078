"""Helpers for experiments with Spark: a session, a node, topics with records."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measure.experiment import Arm, Scale
from peers.connector import connector_jars
from pyspark.sql import DataFrame, SparkSession

from millstream import Record
from millstream.clients.kafka.client import KafkaClient
from millstream.records.build import build_batch
from millstream.spark.session import spark_session
from subjects.kafka.client import answer_size, await_leader, produce_frame, send_pipelined
from subjects.kafka.processes import node
from subjects.log.common import KIB, NOW_MS

PARTITIONS = 4
BATCH_SIZE = 512 * KIB
"""What the sink makes too."""

MILLION = 1e6

_RECORD_OVERHEAD = 10
_ALL = -1

_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "3g",
    "spark.sql.parquet.compression.codec": "uncompressed",
    # Records repeat, so as not to take long to make. Parquet may not gain by that.
    "spark.hadoop.parquet.enable.dictionary": "false",
}


@dataclass(frozen=True, slots=True)
class Bench:
    """A session, and a node in a process of its own."""

    spark: SparkSession
    bootstrap: str
    port: int
    data: Path
    """The data directory of the node."""

    def make_topic(self, name: str, configs: Mapping[str, str] | None = None) -> None:
        """Create an empty topic."""
        with KafkaClient(self.bootstrap) as client:
            client.create_topic(name, partitions=PARTITIONS, configs=configs)

    def fill(self, name: str, values: Sequence[bytes], batches: int) -> int:
        """Produce one batch of `values` again and again; return how many records there are."""
        batch = build_batch([Record(value) for value in values], now_ms=NOW_MS)
        each = max(1, batches // PARTITIONS)
        for partition in range(PARTITIONS):
            frame = produce_frame(name, batch, acks=_ALL, partition=partition)
            await_leader(self.port, frame)  # Which produces it for the first time.
            if each > 1:
                answer = answer_size(self.port, frame)
                send_pipelined(self.port, frame, each - 2, answer=answer, window=8)
        return each * PARTITIONS * len(values)

    def through_node(self, topic: str, **options: str) -> DataFrame:
        """Return a topic as a table, read through the node."""
        reader = self.spark.read.format("millstream").options(**options)
        return reader.option("bootstrap.servers", self.bootstrap).option("topic", topic).load()

    def in_place(self, topic: str, **options: str) -> DataFrame:
        """Return a topic as a table, read from the files of the node."""
        reader = self.spark.read.format("millstream").options(**options)
        return reader.option("path", str(self.data)).option("topic", topic).load()


def session() -> SparkSession:
    """Return the session, with Spark's own connector for Kafka if it is installed."""
    found = {"spark.jars": ",".join(map(str, connector_jars()))} if connector_jars() else {}
    return spark_session("millstream benchmarks", "local[2]", _CONF | found)


@contextmanager
def running(folder: Path) -> Iterator[Bench]:
    """Start a node, and end it. The session, with two threads, is there until the process ends."""
    data = folder / "data"
    spark = session()
    with node(data) as server:
        yield Bench(spark, f"127.0.0.1:{server.port}", server.port, data)


def random_values(size: int) -> list[bytes]:
    """Return values of `size` bytes that do not compress: as many as make a batch."""
    chance = random.Random(size)
    return [chance.randbytes(size) for _ in range(BATCH_SIZE // (size + _RECORD_OVERHEAD))]


def rate(records: int, work: Callable[[], object]) -> float:
    """Return how many million records a second `work` does."""
    began = time.perf_counter()
    work()
    return records / (time.perf_counter() - began) / MILLION


def warmed(arms: Sequence[Arm], scale: Scale) -> Sequence[Arm]:
    """Let each arm have a turn that does not count: the first one compiles, and starts workers."""
    if scale is not Scale.SMOKE:
        for arm in arms:
            arm()
    return arms


def read_all(table: DataFrame) -> None:
    """Have Spark make every row, with every column, and throw it away."""
    table.write.format("noop").mode("overwrite").save()
