"""Union reads in Spark: history from the lake table, the rest from the log, each record once."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

import millstream.spark
from millstream.clients.kafka.client import KafkaClient
from millstream.config.schema import MIB
from millstream.errors import DataLost, InvalidConfig, LakeError
from millstream.lake.scan import scan
from millstream.lake.table import LakeTable
from millstream.lake.topic_table import enable_lake
from millstream.lake.writer import LakeWriter
from millstream.spark.columns import TABLE
from millstream.spark.options import parse_read_options
from millstream.spark.read.batch_reader import BatchReader
from millstream.spark.read.stream_reader import StreamReader
from millstream.spark.topic_values import TopicValues
from tests.spark.topics import create, evict, produce


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


@pytest.fixture
def client(node):
    with KafkaClient(node.bootstrap) as client:
        yield client


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table")


def options(node, topic, uri, **more):
    return {"bootstrap.servers": node.bootstrap, "topic": topic, "history": uri, **more}


def load(spark, node, topic, uri, **more):
    return spark.read.format("millstream").options(**options(node, topic, uri, **more)).load()


def rows(frame):
    """Return partition, offset and value of all rows, sorted."""
    selected = frame.select("partition", "offset", "value")
    return sorted((row[0], row[1], bytes(row[2])) for row in selected.collect())


def batch_reader(node, topic, uri, **more):
    parsed = parse_read_options(options(node, topic, uri, **more), is_stream=False)
    return BatchReader(parsed, TopicValues(parsed.value), TABLE)


def stream_reader(node, topic, uri, **more):
    parsed = parse_read_options(options(node, topic, uri, **more), is_stream=True)
    return StreamReader(parsed, TopicValues(parsed.value), TABLE)


def offsets_of(reader, tasks):
    """Return the offsets of the records of tasks, sorted, without Spark."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return sorted(offset for batch in batches for offset in batch.column("offset").to_pylist())


def expected(*partitions):
    return [
        (number, offset, value)
        for number, written in enumerate(partitions)
        for offset, value in enumerate(written)
    ]


def test_a_batch_has_the_history_of_the_table_and_the_rest_of_the_log(
    spark, node, client, topic, uri
):
    create(node, topic, partitions=2)
    produce(node, topic, values(20))
    LakeWriter(client, topic, uri).run()
    evict(node, topic)
    produce(node, topic, values(5, first=20))
    produce(node, topic, values(3), partition=1)
    frame = load(spark, node, topic, uri, partitionBytes="100")
    assert rows(frame) == expected(values(25), values(3))
    assert frame.count() == 28
    assert rows(frame.where("offset >= 18 and partition = 0")) == expected(values(25))[18:]
    assert rows(frame.where("key is null and offset < 2")) == [
        (0, 0, b"value 0"), (0, 1, b"value 1"), (1, 0, b"value 0"), (1, 1, b"value 1")
    ]  # fmt: skip
    bounds = {
        "startingOffsets": {topic: {"0": 3, "1": 0}},
        "endingOffsets": {topic: {"0": 7, "1": 1}},
    }
    part = load(spark, node, topic, uri, **{name: json.dumps(at) for name, at in bounds.items()})
    assert rows(part) == [*expected(values(7))[3:], (1, 0, b"value 0")]


def test_the_table_of_a_topic_is_scanned_by_spark_and_joined_with_its_log(
    spark, node, client, topic, uri
):
    configs = {
        "millstream.value.format": "json",
        "millstream.value.schema": "id BIGINT",
        "millstream.lake.table": uri,
    }
    client.create_topic(topic, partitions=1, configs=configs)
    written = [b'{"id": %d}' % number for number in range(10)]
    produce(node, topic, [*written[:6], b"no JSON"])
    LakeWriter(client, topic, uri).run()
    evict(node, topic)
    produce(node, topic, written[6:])
    frame = millstream.spark.table(spark, topic, bootstrap=node.bootstrap)
    produce(node, topic, [b"later"])
    LakeWriter(client, topic, uri).run()
    found = frame.orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(11)), "fixed by the call"
    assert [row.id for row in found] == [*range(6), None, *range(6, 10)]
    assert "JSON" in found[6]._error
    assert {row.topic for row in found} == {topic}
    plan = frame._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan
    by_source = load(spark, node, topic, "auto", onBadRecord="null")
    assert [row.id for row in by_source.orderBy("offset").collect()] == [
        *range(6),
        None,
        *range(6, 10),
        None,
    ]


def test_a_stream_starts_in_the_table_and_goes_over_to_the_log_with_one_checkpoint(
    spark, node, client, topic, uri, tmp_path
):
    create(node, topic)
    produce(node, topic, values(30))
    LakeWriter(client, topic, uri).run()
    evict(node, topic)
    batches: list[list[int]] = []

    def keep(frame, _):
        batches.append(sorted(row.offset for row in frame.select("offset").collect()))

    def run(**more):
        stream = spark.readStream.format("millstream").options(
            **options(node, topic, uri, startingOffsets="earliest", **more)
        )
        query = (
            stream.load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    produce(node, topic, values(10, first=30))
    run(maxRecordsPerTrigger="25")
    assert [offset for batch in batches for offset in batch] == list(range(40))
    assert batches[0] == list(range(25))
    # While the query is stopped, the lake and retention go past its checkpoint.
    produce(node, topic, values(10, first=40))
    LakeWriter(client, topic, uri).run()
    evict(node, topic)
    produce(node, topic, values(5, first=50))
    run()
    assert [offset for batch in batches for offset in batch] == list(range(55))


@contextlib.contextmanager
def changing(node, topic, uri):
    """Write the topic and its lake, compact that, and delete from the log, all the time."""
    is_done = threading.Event()
    failures: list[BaseException] = []

    def change():
        number = 1
        try:
            with KafkaClient(node.bootstrap) as own:
                while not is_done.is_set():
                    produce(node, topic, values(10, first=10 * number))
                    LakeWriter(own, topic, uri).run()
                    evict(node, topic)
                    if number % 3 == 0:
                        LakeTable.open(uri).compact(file_bytes=128 * MIB)
                    number += 1
        except BaseException as error:  # noqa: BLE001 - of a thread.
            failures.append(error)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
    assert not failures


def test_reads_during_writes_compaction_and_retention_have_no_gap_and_no_duplicate(
    spark, node, client, topic, uri
):
    create(node, topic)
    produce(node, topic, values(10))
    LakeWriter(client, topic, uri).run()
    counts = []
    with changing(node, topic, uri):
        for number in range(40):
            if number % 20 == 0:
                table = millstream.spark.table(spark, topic, bootstrap=node.bootstrap, history=uri)
                offsets = sorted(row.offset for row in table.select("offset").collect())
            else:
                reader = batch_reader(node, topic, uri)
                offsets = offsets_of(reader, reader.partitions())
            assert offsets == list(range(len(offsets)))
            counts.append(len(offsets))
    assert counts == sorted(counts)


def test_a_stream_during_writes_compaction_and_retention_has_no_gap_and_no_duplicate(
    node, client, topic, uri
):
    create(node, topic)
    produce(node, topic, values(10))
    LakeWriter(client, topic, uri).run()
    found: list[int] = []
    with changing(node, topic, uri):
        position = None
        for _ in range(5):  # Restarts of the query.
            reader = stream_reader(node, topic, uri, startingOffsets="earliest")
            position = position or reader.initialOffset()
            for _ in range(5):
                end = reader.latestOffset(position, ReadAllAvailable())
                found += offsets_of(reader, reader.partitions(position, end))
                position = end
    assert found == list(range(len(found)))


def test_what_retention_deletes_between_planning_and_reading_is_read_from_the_table(
    node, client, topic, uri
):
    create(node, topic)
    writer = LakeWriter(client, topic, uri)
    produce(node, topic, values(10))
    writer.run()
    produce(node, topic, values(10, first=10))
    reader = batch_reader(node, topic, uri)
    tasks = reader.partitions()
    writer.run()
    evict(node, topic)
    assert offsets_of(reader, tasks) == list(range(20))


def test_a_lake_that_is_written_between_table_and_log_is_no_loss(
    node, client, topic, uri, monkeypatch
):
    create(node, topic)
    writer = LakeWriter(client, topic, uri)
    produce(node, topic, values(10))
    writer.run()
    ask = KafkaClient.bounds

    def ask_later(self, *arguments, **more):
        monkeypatch.setattr(KafkaClient, "bounds", ask)
        produce(node, topic, values(10, first=10))
        writer.run()
        evict(node, topic)
        return ask(self, *arguments, **more)

    reader = batch_reader(node, topic, uri)
    monkeypatch.setattr(KafkaClient, "bounds", ask_later)
    assert offsets_of(reader, reader.partitions()) == list(range(20))
    monkeypatch.setattr(KafkaClient, "bounds", ask_later)
    produce(node, topic, values(10, first=20))
    with scan(topic, table=uri, bootstrap=node.bootstrap) as found:
        assert found.dataset().count_rows() == 40


def test_records_that_are_neither_in_the_table_nor_in_the_log_are_a_loss(node, client, topic, uri):
    create(node, topic)
    produce(node, topic, values(10))
    LakeWriter(client, topic, uri).run()
    produce(node, topic, values(5, first=10))
    evict(node, topic)
    produce(node, topic, values(5, first=15))
    with pytest.raises(DataLost, match=r"offsets 10 to 14 of .* before they were written"):
        batch_reader(node, topic, uri).partitions()
    after = {"startingOffsets": json.dumps({topic: {"0": 15}})}
    reader = batch_reader(node, topic, uri, **after)
    assert offsets_of(reader, reader.partitions()) == list(range(15, 20))
    reader = batch_reader(node, topic, uri, failOnDataLoss="false")
    remaining = [*range(10), *range(15, 20)]
    assert offsets_of(reader, reader.partitions()) == remaining
    stream = stream_reader(node, topic, uri, startingOffsets="earliest")
    with pytest.raises(DataLost, match="offsets 10 to 14"):
        stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    stream = stream_reader(node, topic, uri, startingOffsets="earliest", failOnDataLoss="false")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end["(lost)"] == {f"{topic}-0": 5}
    assert offsets_of(stream, stream.partitions(start, end)) == remaining


def test_deleted_keys_are_left_out_of_the_history_before_its_files_are_rewritten(
    spark, node, client, topic, uri
):
    create(node, topic)
    enable_lake(client, topic, uri)
    keys = [b"ada", b"bob", None, b"adam", b"ada"]
    produce(node, topic, values(5), keys=keys)
    LakeWriter(client, topic, uri).run()
    evict(node, topic)
    produce(node, topic, values(5, first=5), keys=keys)
    for body in ({"key": "ada", "before": 5}, {"key_prefix": "adam"}):
        request = urllib.request.Request(
            f"{node.url}/v1/topics/{topic}/records",
            data=json.dumps(body).encode(),
            method="DELETE",
        )
        urllib.request.urlopen(request).close()
    reader = batch_reader(node, topic, "auto")
    remaining = [1, 2, 5, 6, 7, 9]
    assert offsets_of(reader, reader.partitions()) == remaining
    stream = stream_reader(node, topic, "auto", startingOffsets="earliest")
    start = stream.initialOffset()
    tasks = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    assert offsets_of(stream, tasks) == remaining
    table = millstream.spark.table(spark, topic, bootstrap=node.bootstrap)
    assert [row.offset for row in table.select("offset").orderBy("offset").collect()] == remaining
    LakeWriter(client, topic, uri).run()
    reader = batch_reader(node, topic, "auto")
    assert offsets_of(reader, reader.partitions()) == remaining


def test_times_and_limits_apply_to_the_history(node, client, topic, uri):
    create(node, topic)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(20):
        producer.produce(topic, bytes(100), timestamp=1_700_000_000_000 + number)
    producer.flush()
    LakeWriter(client, topic, uri).run()
    evict(node, topic)
    produce(node, topic, values(3, first=20))
    reader = batch_reader(node, topic, uri, startingTimestamp="1700000000007")
    assert offsets_of(reader, reader.partitions()) == list(range(7, 23))
    stream = stream_reader(node, topic, uri, startingOffsets="earliest")
    start = stream.initialOffset()
    size = Path(LakeTable.open(uri).file_uris()[0]).stat().st_size
    end = stream.latestOffset(start, ReadMaxBytes(size // 2))
    assert 5 <= end[topic]["0"] <= 15, "about half of the file"


def test_options_that_do_not_go_together_and_wrong_tables_are_refused(node, client, topic, uri):
    create(node, topic)
    create(node, f"{topic}-other")
    produce(node, topic, values(3))
    with pytest.raises(LakeError, match="there is no Delta table"):
        batch_reader(node, topic, uri).partitions()
    LakeWriter(client, topic, uri).run()
    with pytest.raises(InvalidConfig, match="history requires isolation read_committed"):
        batch_reader(node, topic, uri, isolation="read_uncommitted")
    with pytest.raises(InvalidConfig, match=r"history=auto requires bootstrap\.servers"):
        parse_read_options({"path": "x", "topic": topic, "history": "auto"}, is_stream=False)
    with pytest.raises(InvalidConfig, match="history must be auto or the address"):
        batch_reader(node, topic, " ")
    with pytest.raises(LakeError, match="needs a table of its own"):
        batch_reader(node, f"{topic}-other", uri).partitions()
    both = {"bootstrap.servers": node.bootstrap, "topics": f"{topic},{topic}-other"}
    parsed = parse_read_options({**both, "history": uri}, is_stream=False)
    with pytest.raises(InvalidConfig, match="history must be auto to read several topics"):
        BatchReader(parsed, TopicValues(parsed.value), TABLE).partitions()
    reader = batch_reader(node, topic, "auto")
    assert offsets_of(reader, reader.partitions()) == [0, 1, 2], "it has no table, so from the log"


def test_a_table_with_reader_features_is_refused(node, client, topic, uri):
    create(node, topic)
    produce(node, topic, values(3))
    LakeWriter(client, topic, uri).run()
    log = Path(uri, "_delta_log", "00000000000000000002.json")
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(LakeError, match="deletionVectors"):
        batch_reader(node, topic, uri).partitions()
