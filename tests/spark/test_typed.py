"""Typed columns of topics that declare a schema, read and written."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException

from tests.spark.topics import consume, create, produce, values

DDL = "id BIGINT, name STRING"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Person",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    }
)


def declare(node, topic, kind, schema):
    create(node, topic, **{"millstream.value.format": kind, "millstream.value.schema": schema})


def read(spark, node, topic, **options):
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    return reader.option("topic", topic).options(**options).load()


def save(frame, node, topic, **options):
    writer = frame.write.format("millstream").option("bootstrap.servers", node.bootstrap)
    writer.option("topic", topic).options(**options).mode("append").save()


def rows(frame, *columns):
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_declared_json_comes_out_as_columns(spark, node, topic):
    declare(node, topic, "json", DDL)
    produce(node, topic, [b'{"id": 1, "name": "Ada"}', b'{"name": null, "id": 2, "more": []}'])
    found = read(spark, node, topic)
    assert found.columns[-4:] == ["key", "value", "id", "name"]
    assert rows(found, "id", "name") == [(1, "Ada"), (2, None)]
    assert rows(found.where("offset = 1"), "id") == [(2,)]


def test_an_option_says_what_a_topic_does_not(spark, node, topic):
    create(node, topic)
    produce(node, topic, [b'{"id": 7}'])
    found = read(spark, node, topic, valueFormat="json", valueSchema="id INT", valuePrefix="v_")
    assert rows(found, "v_id") == [(7,)]
    raw = read(spark, node, topic)
    assert "id" not in raw.columns


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_typed_columns_become_values_and_come_back(spark, node, topic, kind):
    declare(node, topic, kind, DDL if kind == "json" else AVRO)
    people = [(1, "Ada"), (2, None), (3, "Grace")]
    save(spark.createDataFrame(people, DDL), node, topic)
    assert rows(read(spark, node, topic), "id", "name") == people
    if kind == "json":
        assert sorted(json.loads(value)["id"] for value in values(node, topic)) == [1, 2, 3]


def test_a_value_that_does_not_fit_fails_the_query_with_its_place(spark, node, topic):
    declare(node, topic, "json", DDL)
    produce(node, topic, [b'{"id": 1}', b'{"id": "one"}'])
    with pytest.raises(PySparkException, match=f"topic '{topic}', partition 0, offset 1"):
        read(spark, node, topic).collect()


def test_a_value_that_does_not_fit_is_null_on_request(spark, node, topic):
    declare(node, topic, "json", DDL)
    produce(node, topic, [b'{"id": 1}', b"broken"])
    good, bad = read(spark, node, topic, onBadRecord="null").orderBy("offset").collect()
    assert (good.id, good._error) == (1, None)
    assert (bad.id, bad.value) == (None, b"broken")
    assert bad._error


def test_a_value_that_does_not_fit_becomes_a_dead_letter_on_request(spark, node, topic):
    declare(node, topic, "json", DDL)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(topic, b'{"id": 1}', partition=0)
    producer.produce(topic, b"broken", key=b"k", partition=0, headers=[("h", b"x")])
    producer.flush()
    dead = f"{topic}-dead"
    options = {"onBadRecord": "deadLetter", "deadLetterTopic": dead}
    assert rows(read(spark, node, topic, **options), "id") == [(1,)]
    (letter,) = consume(node, dead)
    assert (letter.key(), letter.value()) == (b"k", b"broken")
    headers = dict(letter.headers())
    assert headers["h"] == b"x"
    assert headers["millstream.origin"] == f"{topic}-0-1".encode()
    assert headers["millstream.error"]


def test_columns_that_every_topic_has_are_read_without_a_look_at_values(spark, node, topic):
    declare(node, topic, "json", DDL)
    produce(node, topic, [b"broken"])
    assert rows(read(spark, node, topic, columns="value"), "value") == [(b"broken",)]


def test_topics_that_declare_different_values_are_read_together_as_they_are(spark, node, topic):
    declare(node, f"{topic}-a", "json", DDL)
    create(node, f"{topic}-b")
    for name in (f"{topic}-a", f"{topic}-b"):
        produce(node, name, [b"{}"])
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    reader = reader.option("topics", f"{topic}-a,{topic}-b")
    with pytest.raises(PySparkException, match="declare different formats or schemas"):
        reader.load()
    assert reader.option("valueFormat", "raw").load().count() == 2


def test_a_row_that_the_schema_does_not_allow_is_not_written(spark, node, topic):
    declare(node, topic, "avro", AVRO)
    with pytest.raises(PySparkException, match="id"):
        save(spark.sql("SELECT CAST(NULL AS BIGINT) AS id, 'x' AS name"), node, topic)
    assert values(node, topic) == []
