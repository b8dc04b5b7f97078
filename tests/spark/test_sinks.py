"""Writes of Spark are atomic and exactly once."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - what all of Spark's world calls it.

from tests.spark.topics import consume, create, produce, values


def save(frame, node, **options):
    writer = frame.write.format("millstream").option("bootstrap.servers", node.bootstrap)
    writer.options(**options).mode("append").save()


def numbers(spark, count, partitions=3):
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("value"))


def test_every_row_is_written_once(spark, node, topic):
    create(node, topic, partitions=3)
    save(numbers(spark, 10_000), node, topic=topic)
    found = values(node, topic, partitions=3)
    assert found == sorted(b"%d" % number for number in range(10_000))


def test_every_column_is_written(spark, node, topic):
    create(node, topic, partitions=2)
    frame = spark.sql(f"""
        SELECT '{topic}' AS topic, 1 AS partition, 'k' AS key, X'00ff' AS value,
               TIMESTAMP '2023-11-14 22:13:20.5Z' AS timestamp,
               array(named_struct('key', 'h', 'value', X'01')) AS headers
        UNION ALL SELECT '{topic}', 0, NULL, NULL, TIMESTAMP '2023-11-14 22:13:21Z', NULL
    """)
    save(frame, node)
    empty, full = consume(node, topic, partitions=2)
    assert (full.partition(), full.key(), full.value()) == (1, b"k", b"\x00\xff")
    assert full.timestamp()[1] == 1_700_000_000_500
    assert full.headers() == [("h", b"\x01")]
    assert (empty.partition(), empty.key(), empty.value()) == (0, None, None)


def test_keys_go_where_javas_clients_put_them(spark, node, topic):
    theirs = f"{topic}-theirs"
    for name in (topic, theirs):
        create(node, name, partitions=5)
    keys = [f"key-{number}" for number in range(200)]
    produce(node, theirs, [b"x"] * 200, keys=keys, partitioner="murmur2")
    frame = spark.createDataFrame([(key, "x") for key in keys], "key STRING, value STRING")
    save(frame, node, topic=topic)
    assert places(node, topic) == places(node, theirs)


def places(node, topic):
    return {one.key(): one.partition() for one in consume(node, topic, partitions=5)}


def test_rows_without_a_key_go_to_all_partitions_in_turn(spark, node, topic):
    create(node, topic, partitions=4)
    save(numbers(spark, 4_000, partitions=1), node, topic=topic)
    found = [message.partition() for message in consume(node, topic, partitions=4)]
    assert [found.count(number) for number in range(4)] == [1_000] * 4


def test_one_write_goes_to_several_topics_at_once(spark, node, topic):
    for name in (f"{topic}-a", f"{topic}-b"):
        create(node, name)
    frame = numbers(spark, 100).withColumn(
        "topic", F.concat(F.lit(f"{topic}-"), F.when(F.col("value") < "5", "a").otherwise("b"))
    )
    save(frame, node)
    assert len(values(node, f"{topic}-a")) + len(values(node, f"{topic}-b")) == 100
    assert all(value < b"5" for value in values(node, f"{topic}-a"))


def test_batches_are_packed_on_request(spark, node, topic):
    create(node, topic)
    save(numbers(spark, 1_000), node, topic=topic, compression="zstd")
    assert len(values(node, topic)) == 1_000


def test_a_write_under_the_same_name_is_not_done_twice(spark, node, topic):
    create(node, topic)
    for _ in range(2):
        save(numbers(spark, 10), node, topic=topic, jobId=f"{topic}-nightly")
    assert len(values(node, topic)) == 10
    save(numbers(spark, 10), node, topic=topic)
    assert len(values(node, topic)) == 20


def test_a_write_that_fails_leaves_nothing_to_see_and_nothing_in_the_way(spark, node, topic):
    create(node, topic)
    broken = (
        numbers(spark, 1_000)
        .select(
            F.when(F.col("value") == "999", F.raise_error(F.lit("no"))).otherwise(F.col("value"))
        )
        .toDF("value")
    )
    with pytest.raises(PySparkException):
        save(broken, node, topic=topic)
    assert values(node, topic) == []
    save(numbers(spark, 10), node, topic=topic)
    assert len(values(node, topic)) == 10


def test_a_topic_that_is_missing_is_made(spark, node, topic):
    save(numbers(spark, 10), node, topic=topic)
    assert len(values(node, topic)) == 10


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["id"], {}, "column 'id' is not a part of a record"),
        (["CAST(id AS STRING) AS key"], {}, "columns must include value"),
        (["id AS value"], {}, "column value must be of type binary or string, got bigint"),
        (["'x' AS value"], {"topic": None}, "columns must include topic, or the option topic"),
        (
            ["'x' AS value", "7 AS partition"],
            {},
            "for topic topic-.* must be between 0 and 0, got 7",
        ),
        (["'x' AS value"], {"compresion": "gzip"}, "'compresion' does not exist"),
    ],
)
def test_what_cannot_be_written_is_said(spark, node, topic, columns, options, says):
    create(node, topic)
    settings = {"topic": topic, **options}
    given = {name: value for name, value in settings.items() if value is not None}
    with pytest.raises((AnalysisException, PySparkException), match=says):
        save(spark.range(3).selectExpr(*columns), node, **given)
    assert values(node, topic) == []


def test_a_topic_is_not_overwritten(spark, node, topic):
    create(node, topic)
    writer = numbers(spark, 3).write.format("millstream").mode("overwrite")
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        writer.option("bootstrap.servers", node.bootstrap).option("topic", topic).save()


def test_a_stream_writes_each_record_once_over_restarts(spark, node, topic, tmp_path):
    source = f"{topic}-in"
    create(node, source, partitions=2)
    create(node, topic, partitions=2)
    for start in (0, 100, 200):
        rows = spark.range(start, start + 100).selectExpr("CAST(id AS STRING) AS value")
        save(rows, node, topic=source)
        copy(spark, node, source, topic, tmp_path).awaitTermination()
        expected = sorted(b"%d" % number for number in range(start + 100))
        assert values(node, topic, partitions=2) == expected


def copy(spark, node, source, target, folder):
    """Return a query that copies one topic to another."""
    reader = spark.readStream.format("millstream").option("bootstrap.servers", node.bootstrap)
    frame = reader.options(topic=source, startingOffsets="earliest", maxRecordsPerTrigger=30).load()
    writer = frame.select("key", "value").writeStream.format("millstream")
    writer = writer.option("bootstrap.servers", node.bootstrap).option("topic", target)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()
