"""Topics that Confluent's own serializers write to, with a real schema registry, as tables."""

from __future__ import annotations

import json
import os

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException

from tests.registry import running_registry
from tests.spark.topics import create, produce

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "customer", "type": "string"},
        {"name": "gone", "type": {"type": "array", "items": ["null", "string", "int"]}},
    ],
}
SECOND = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string", "default": "none"},
    ],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    with running_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


def serialized(registry, topic, schema, value):
    """Return a value as an unmodified producer writes it; its schema is registered."""
    with SchemaRegistryClient({"url": registry}) as client:
        serializer = AvroSerializer(client, json.dumps(schema))
        return serializer(value, SerializationContext(topic, MessageField.VALUE))


def read(spark, node, topic, **options):
    reader = spark.read.format("millstream").option("bootstrap.servers", node.bootstrap)
    return reader.option("topic", topic).options(**options).load()


def test_records_of_older_schemas_are_read_as_the_declared_one(spark, node, topic, registry):
    declared = {"millstream.value.format": "avro", "millstream.value.schema": json.dumps(SECOND)}
    create(node, topic, **declared)
    old = {"id": 1, "customer": "Ada", "gone": [None, "x", 3]}
    new = {"id": 2**40, "customer": None, "note": "late"}
    values = [
        serialized(registry, topic, FIRST, old),
        serialized(registry, topic, SECOND, new),
        b"\0\x00\x00\xff\xff noise",
    ]
    produce(node, topic, values)
    found = read(spark, node, topic, schemaRegistryUrl=registry, onBadRecord="null")
    rows = found.select("customer", "id", "note", "_error").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [
        ("Ada", 1, "none", None),
        (None, 2**40, "late", None),
        (None, None, None, "schema id 65535 is not in the registry"),
    ]


@pytest.mark.skipif(
    not os.environ.get("MILLSTREAM_LONG"), reason="three attempts wait 10 s each for the registry"
)
def test_a_registry_that_is_down_fails_the_query(spark, node, topic):
    declared = {"millstream.value.format": "avro", "millstream.value.schema": json.dumps(SECOND)}
    create(node, topic, **declared)
    produce(node, topic, [b"\0\x00\x00\x00\x01rest"])
    options = {
        "schemaRegistryUrl": "http://127.0.0.1:1",
        "onBadRecord": "null",
        "timeoutMs": "2000",
    }
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        read(spark, node, topic, **options).collect()
