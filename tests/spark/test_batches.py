"""Batch reads of topics as tables."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException, PySparkException

from tests.spark.topics import create, produce, transaction


def load(spark, node, topic, **options):
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    return reader.option("topic", topic).options(**options).load()


def rows(frame, *columns):
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_every_column_is_what_was_produced(spark, node, topic):
    create(node, topic, partitions=2)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    at = 1_700_000_000_123
    producer.produce(topic, b"one", b"k", 1, timestamp=at, headers=[("h", b"x"), ("n", None)])
    producer.produce(topic, None, None, 0, timestamp=at + 1)
    producer.flush()
    found = load(spark, node, topic, includeHeaders="true")
    assert found.schema.simpleString() == (
        "struct<topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "key:binary,value:binary,headers:array<struct<key:string,value:binary>>>"
    )
    empty, full = sorted(found.collect(), key=lambda row: row.partition)
    assert (full.topic, full.partition, full.offset, full.timestampType) == (topic, 1, 0, 0)
    assert full.timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert (full.key, full.value) == (b"k", b"one")
    assert [tuple(header) for header in full.headers] == [("h", b"x"), ("n", None)]
    assert (empty.key, empty.value, empty.headers) == (None, None, [])


def test_packed_batches_are_read(spark, node, topic):
    create(node, topic)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    values = [b"%d" % number * 20 for number in range(200)]
    for codec in codecs:
        produce(node, topic, values, **{"compression.type": codec})
    found = load(spark, node, topic, columns="offset,value")
    assert rows(found, "offset", "value") == list(enumerate(values * len(codecs)))


def test_large_topics_are_cut_into_tasks_that_miss_and_repeat_nothing(spark, node, topic):
    create(node, topic, partitions=2)
    for partition in (0, 1):
        produce(node, topic, [b"x" * 100] * 5_000, partition=partition)
    found = load(spark, node, topic, minPartitions="7")
    assert found.rdd.getNumPartitions() >= 7
    expected = sorted((partition, offset) for partition in (0, 1) for offset in range(5_000))
    assert rows(found, "partition", "offset") == expected
    by_bytes = load(spark, node, topic, partitionBytes="100000")
    assert by_bytes.rdd.getNumPartitions() >= 8
    assert rows(by_bytes, "partition", "offset") == expected


def test_only_what_was_committed_is_read(spark, node, topic):
    create(node, topic)
    produce(node, topic, [b"plain"])
    transaction(node, topic, [b"kept"] * 3, is_committed=True, transactional_id=f"{topic}-a")
    transaction(node, topic, [b"void"] * 3, is_committed=False, transactional_id=f"{topic}-b")
    produce(node, topic, [b"after"])
    values = [row.value for row in load(spark, node, topic).orderBy("offset").collect()]
    assert values == [b"plain", b"kept", b"kept", b"kept", b"after"]
    uncommitted = load(spark, node, topic, isolation="read_uncommitted")
    assert uncommitted.count() == 8


def test_files_in_place_show_what_the_node_shows(spark, node, topic):
    create(node, topic, partitions=2)
    produce(node, topic, [b"a"] * 5, partition=0)
    transaction(node, topic, [b"kept"], is_committed=True, transactional_id=f"{topic}-a")
    transaction(node, topic, [b"void"], is_committed=False, transactional_id=f"{topic}-b")
    produce(node, topic, [b"b"] * 3, partition=1)
    reader = spark.read.format("millstream").option("path", node.data).option("topic", topic)
    columns = ("partition", "offset", "timestamp", "value")
    in_place = rows(reader.load(), *columns)
    assert len(in_place) == 9
    assert in_place == rows(load(spark, node, topic), *columns)


def test_a_range_can_be_named(spark, node, topic):
    create(node, topic, partitions=2)
    produce(node, topic, [b"x"] * 10, partition=0)
    produce(node, topic, [b"x"] * 10, partition=1)
    found = load(
        spark,
        node,
        topic,
        startingOffsets=f'{{"{topic}": {{"0": 3, "1": -1}}}}',
        endingOffsets=f'{{"{topic}": {{"0": 5, "1": -1}}}}',
    )
    assert rows(found, "partition", "offset") == [(0, 3), (0, 4)]


def test_a_time_is_a_beginning_and_an_end(spark, node, topic):
    create(node, topic)
    producer = Producer({"bootstrap.servers": node.bootstrap, "batch.num.messages": 3})
    for number in range(10):
        producer.produce(topic, b"x", partition=0, timestamp=1_700_000_000_000 + number * 1_000)
        producer.flush()
    found = load(
        spark,
        node,
        topic,
        startingTimestamp="2023-11-14T22:13:23Z",
        endingTimestamp="1700000005000",
    )
    assert rows(found, "offset") == [(3,), (4,)]


def test_topics_are_found_by_pattern_and_by_name(spark, node, topic):
    for name in (f"{topic}-a", f"{topic}-b", f"other-{topic}"):
        create(node, name)
        produce(node, name, [name.encode()])
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    assert rows(reader.option("topicPattern", f"{topic}-.").load(), "topic") == [
        (f"{topic}-a",),
        (f"{topic}-b",),
    ]
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    named = reader.option("topics", f"{topic}-a, other-{topic}").load()
    assert named.count() == 2
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    assert reader.option("assign", f'{{"{topic}-b": [0]}}').load().count() == 1


def test_an_empty_topic_is_an_empty_table(spark, node, topic):
    create(node, topic, partitions=3)
    assert load(spark, node, topic).collect() == []


def test_a_schema_says_which_columns_are_read(spark, node, topic):
    create(node, topic)
    produce(node, topic, [b"a", b"b"])
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    found = reader.option("topic", topic).schema("value BINARY, offset BIGINT").load()
    assert [tuple(row) for row in found.collect()] == [(b"a", 0), (b"b", 1)]
    with pytest.raises(PySparkException, match="offset must be of type bigint, got int"):
        reader.schema("offset INT").load().collect()


CONDITIONS = {
    "offset > 2 AND offset < 5": [3, 4],
    "partition = 1": [],
    "key IN (X'31', X'35') AND offset < 5": [1],
    "timestamp >= TIMESTAMP '2023-11-14 22:13:27Z'": [7, 8, 9],
    "timestamp < TIMESTAMP '2023-11-14 22:13:22Z'": [0, 1],
    "timestamp > TIMESTAMP '2100-01-01 00:00:00Z'": [],
    "offset % 2 = 0 OR key IS NULL": [0, 2, 4, 6, 8],
}


@pytest.mark.parametrize("is_pushed", [True, False])
def test_a_condition_gives_the_same_wherever_it_is_met(spark, node, topic, is_pushed):
    create(node, topic)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(10):
        at = 1_700_000_000_000 + number * 1_000
        producer.produce(topic, b"x", key=b"%d" % number, partition=0, timestamp=at)
    producer.flush()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(is_pushed).lower())
    try:
        # Spark applies the filters that are not pushed down: one shows that such a query runs.
        for condition in CONDITIONS if is_pushed else list(CONDITIONS)[:1]:
            found = load(spark, node, topic).where(condition)
            assert rows(found, "offset") == [(at,) for at in CONDITIONS[condition]], condition
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "no-such-topic"}, "no-such-topic"),
        ({"startingOffsets": "soon"}, "startingOffsets must be .* got 'soon'"),
        ({"startingOffset": "latest"}, "'startingoffset' does not exist"),
        ({"columns": "vlaue"}, r"columns must be .* got \['vlaue'\]"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "startingOffsets must name exactly"),
    ],
)
def test_what_is_wrong_is_said(spark, node, topic, options, says):
    create(node, topic)
    with pytest.raises((AnalysisException, PySparkException), match=says):
        load(spark, node, **{"topic": topic, **options}).collect()


def test_a_node_that_is_not_there_is_named(spark, topic):
    reader = spark.read.format("millstream").option("bootstrap.servers", "127.0.0.1:1")
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        reader.option("topic", topic).option("timeoutMs", "200").load().collect()


def test_columns_are_named_in_any_case(spark, node, topic):
    create(node, topic)
    frame = spark.createDataFrame([("a", "b")], "KEY STRING, Value STRING")
    frame.write.format("millstream").options(
        **{"bootstrap.servers": node.bootstrap, "topic": topic}
    ).mode("append").save()
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    read = reader.option("topic", topic).schema("OFFSET BIGINT, VALUE BINARY").load()
    assert read.columns == ["OFFSET", "VALUE"]
    assert [tuple(row) for row in read.where("Offset = 0").collect()] == [(0, b"b")]
    assert load(spark, node, topic, columns="KEY").first().key == b"a"


def test_the_plan_shows_what_was_pushed_down(spark, node, topic, capsys):
    create(node, topic)
    frame = load(spark, node, topic).where("partition = 0 AND length(value) > 3")
    frame.explain("formatted")
    plan = capsys.readouterr().out
    pushed = next(line for line in plan.splitlines() if "PushedFilters" in line)
    assert "EqualTo" in pushed
    assert "partition" in pushed
    assert "length" not in pushed
