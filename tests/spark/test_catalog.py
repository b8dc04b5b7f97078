"""Topics as tables in Spark's catalog."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.spark.topics import consume, create, values


@pytest.fixture
def table(spark, topic):
    """A name for a table, which is removed at the end."""
    name = topic.replace("-", "_")
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def declare(spark, node, topic, table, **options):
    given = {"bootstrap.servers": node.bootstrap, "topic": topic, **options}
    pairs = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
    spark.sql(f"CREATE TABLE {table} USING millstream OPTIONS ({pairs})")


def fails(message):
    return pytest.raises(Exception, match=message)


def test_a_table_is_queried_inserted_into_and_streamed(spark, node, topic, table, tmp_path):
    create(node, topic)
    # An option of writes and one of reads: each is used where it has a meaning.
    declare(spark, node, topic, table, compression="lz4", failOnDataLoss="true")
    spark.sql(f"INSERT INTO {table} (key, value) VALUES (X'6B', X'76'), (NULL, NULL)")
    assert spark.table(table).columns == [
        "topic", "partition", "offset", "timestamp", "timestampType", "key", "value"
    ]  # fmt: skip
    query = f"SELECT topic, key, value FROM {table} WHERE offset >= 0 ORDER BY key"
    assert [tuple(row) for row in spark.sql(query).collect()] == [
        (topic, None, None),
        (topic, b"k", b"v"),
    ]
    spark.sql(f"INSERT INTO {table} WITH (`jobId` = '{topic}') (value) SELECT value FROM {table}")
    spark.sql(f"INSERT INTO {table} WITH (`jobId` = '{topic}') (value) SELECT value FROM {table}")
    written = Counter(one.value() for one in consume(node, topic))
    assert written == {b"v": 2, None: 2}

    stream = spark.readStream.option("startingOffsets", "earliest").table(table)
    copy = stream.select("key", "value").writeStream.format("parquet")
    copy = copy.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    copy.start(str(tmp_path / "out")).awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4


def test_a_table_with_chosen_columns_takes_rows_by_position_and_from_a_stream(
    spark, node, topic, table, tmp_path
):
    create(node, topic)
    declare(spark, node, topic, table, columns="key,value")
    spark.sql(f"INSERT INTO {table} VALUES (X'6B', X'76')")
    assert [tuple(row) for row in spark.table(table).collect()] == [(b"k", b"v")]
    rows = spark.readStream.option("startingOffsets", "earliest").table(table)
    target = rows.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    target.trigger(availableNow=True).toTable(table).awaitTermination()
    assert values(node, topic) == [b"v", b"v"]


def test_typed_columns_of_a_table_become_the_value(spark, node, topic, table):
    create(node, topic)
    declare(spark, node, topic, table, valueFormat="json", valueSchema="id INT, name STRING")
    spark.sql(f"INSERT INTO {table} (id, name) VALUES (1, 'ada')")
    assert [json.loads(value) for value in values(node, topic)] == [{"id": 1, "name": "ada"}]
    assert tuple(spark.sql(f"SELECT id, name FROM {table}").first()) == (1, "ada")


def test_columns_that_the_node_assigns_are_not_inserted_in_silence(spark, node, topic, table):
    create(node, topic)
    create(node, f"{topic}-other")
    declare(spark, node, topic, table)
    spark.sql(f"INSERT INTO {table} (value) VALUES (X'61')")
    with fails(r"column offset of a table cannot be written, .* name the columns to insert"):
        spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
    with fails(f"a row has topic '{topic}-other', and the table writes to topic '{topic}'"):
        spark.sql(f"INSERT INTO {table} (topic, value) VALUES ('{topic}-other', X'62')")
    assert values(node, topic) == [b"a"]


@pytest.mark.parametrize("rest", ["(key BINARY, value BINARY) USING", "AS"])
def test_a_table_whose_options_spark_keeps_to_itself_says_what_to_do(
    spark, node, topic, table, rest
):
    create(node, topic)
    options = f"OPTIONS (`bootstrap.servers` '{node.bootstrap}', topic '{topic}')"
    told = "there are no options.*create it without columns, as in CREATE TABLE"
    if rest == "AS":
        with fails(told):
            spark.sql(f"CREATE TABLE {table} USING millstream {options} AS SELECT 'v' AS value")
        return
    spark.sql(f"CREATE TABLE {table} {rest} millstream {options}")
    with fails(told):
        spark.table(table).collect()
    with fails(told):
        spark.sql(f"INSERT INTO {table} VALUES (X'6B', X'76')")


def test_wrong_options_of_a_table_are_told_when_it_is_created(spark, node, topic, table):
    create(node, topic)
    with fails("option jobId is for one write, not for all writes of a table"):
        declare(spark, node, topic, table, jobId="nightly")
    with fails("compression must be one of"):
        declare(spark, node, topic, table, compression="rar")
    with fails("option 'colour' does not exist"):
        declare(spark, node, topic, table, colour="red")


def test_options_that_are_given_come_before_those_of_a_table(spark, node, topic, table):
    create(node, topic)
    create(node, f"{topic}-other")
    declare(spark, node, topic, table, columns="key,value")
    spark.sql(f"INSERT INTO {table} VALUES (X'6B', X'76')")
    given = {"bootstrap.servers": node.bootstrap, "topic": f"{topic}-other"}
    spark.table(table).write.format("millstream").options(**given).mode("append").save()
    assert values(node, f"{topic}-other") == [b"v"]
    assert values(node, topic) == [b"v"]
