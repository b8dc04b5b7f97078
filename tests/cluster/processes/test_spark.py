"""Spark reads and writes a cluster exactly once while its nodes are killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException

from millstream.clients.kafka.client import KafkaClient
from millstream.testing.cluster import RunningCluster
from millstream.testing.cluster.reading import WAIT_SECONDS, read_topic

WORKER_LATE = "Python worker failed to connect back"
QUERY_STARTS_MAX = 5
RECORDS = 600
BATCH_RECORDS = 60


@pytest.fixture
def topics(cluster: RunningCluster, name: str) -> tuple[str, str, str]:
    """A topic with numbers, and two empty ones."""
    names = (f"{name}-source", f"{name}-stream", f"{name}-batch")
    with KafkaClient(cluster.bootstrap) as client:
        for topic in names:
            client.create_topic(topic, partitions=3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(names[0], str(number), partition=number % 3)
    assert producer.flush(WAIT_SECONDS) == 0
    return names


class Killer:
    """Runs disturbances one after the other in a thread, and remembers what failed."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = steps
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for step in self._steps:
                step()
        except Exception as error:  # noqa: BLE001 - raised by `finish`.
            self._failure = error

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def finish(self) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def process_all(query: Any, start_query: Callable[[], Any]) -> None:
    """Let a query process everything, and stop it.

    Spark gives a Python process ten seconds to start, which no setting changes, and ends the query
    if a busy machine takes longer. Then the query is started again, as its user would do.
    """
    for _ in range(QUERY_STARTS_MAX):
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            if WORKER_LATE not in str(error):
                raise
            query = start_query()
        else:
            query.stop()
            return
    raise AssertionError(f"Spark gave up {QUERY_STARTS_MAX} times: {WORKER_LATE}")


@pytest.mark.timeout(600)
def test_batches_and_streams_of_spark_are_stored_once(
    cluster: RunningCluster, spark: Any, topics: tuple[str, str, str], tmp_path: Path
):
    source, stream, batch = topics
    server = {"bootstrap.servers": cluster.bootstrap}
    read = {**server, "topic": source, "startingOffsets": "earliest"}

    def start_query() -> Any:
        return (
            spark.readStream.format("millstream")
            .options(**read, maxRecordsPerTrigger="15")
            .load()
            .select("value")
            .writeStream.format("millstream")
            .options(**server, topic=stream, checkpointLocation=str(tmp_path / "checkpoint"))
            .start()
        )

    query = start_query()

    def write_batch(number: int) -> None:
        ends = f'{{"{source}": {{"0": 20, "1": 20, "2": 20}}}}'
        rows = spark.read.format("millstream").options(**read, endingOffsets=ends).load()
        rows = rows.selectExpr(f"concat(cast(value as string), '.{number}') as value")
        job = rows.write.format("millstream").options(**server, topic=batch, jobId=f"job-{number}")
        job.mode("append").save()

    def wait_for_batches(count: int) -> None:
        end = len(written) + count
        with changed:
            assert changed.wait_for(lambda: len(written) >= end, WAIT_SECONDS)

    written: list[int] = []
    changed = threading.Condition()

    def kill_leader() -> None:
        leader = cluster.leader(batch, 0)
        cluster.nodes[leader].kill()
        wait_for_batches(2)
        cluster.nodes[leader].start()

    def kill_all() -> None:
        cluster.kill()
        cluster.start()

    killer = Killer(lambda: wait_for_batches(1), kill_leader, lambda: wait_for_batches(1), kill_all)
    while not killer.is_done or not written:
        write_batch(len(written))
        with changed:
            written.append(len(written))
            changed.notify_all()
    killer.finish()
    process_all(query, start_query)
    copied = Counter(record.value for record in read_topic(cluster.bootstrap, stream))
    assert copied == {str(number).encode(): 1 for number in range(RECORDS)}
    expected = {f"{row}.{number}".encode(): 1 for row in range(BATCH_RECORDS) for number in written}
    assert Counter(record.value for record in read_topic(cluster.bootstrap, batch)) == expected
    cluster.wait_until_in_sync()
    cluster.check_replicas(*topics)
