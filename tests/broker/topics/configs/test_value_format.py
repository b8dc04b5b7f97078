"""The declared value format of a topic: which declarations are accepted and which are rejected."""

from __future__ import annotations

import json

import pytest

from millstream.broker.topics.configs.topic_config import (
    AlterConfigOperation,
    ConfigChange,
    TopicConfig,
)
from millstream.broker.topics.configs.value_format import (
    VALUE_FORMAT,
    VALUE_SCHEMA,
    VALUE_SCHEMA_SIZE_MAX,
    TopicValueFormat,
)
from millstream.errors import InvalidConfig

STRUCT = '{"type": "struct", "fields": []}'
RECORD = '{"type": "record", "name": "r", "fields": []}'


def declare(kind: str, schema: str) -> TopicConfig:
    return TopicConfig.parse({VALUE_FORMAT: kind, VALUE_SCHEMA: schema})


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        ("raw", ""),
        ("msgpack", ""),
        ("json", "id BIGINT, name STRING"),
        ("json", STRUCT),
        ("avro", RECORD),
    ],
)
def test_a_declaration_is_kept_as_it_was_given(kind: str, schema: str) -> None:
    config = declare(kind, schema)
    assert (config.value_format, config.value_schema) == (TopicValueFormat(kind), schema)
    assert (config.value(VALUE_FORMAT), config.value(VALUE_SCHEMA)) == (kind, schema)


@pytest.mark.parametrize(
    ("kind", "schema", "why"),
    [
        ("raw", STRUCT, "raw values have no schema"),
        ("json", "", "json values need a schema"),
        ("avro", "", "avro values need a schema"),
        ("json", "{", "it is not JSON: "),
        ("json", RECORD, 'not a JSON object with "type": "struct"'),
        ("json", "[]", 'not a JSON object with "type": "struct"'),
        ("json", '"x"', 'not a JSON object with "type": "struct"'),
        ("avro", "id BIGINT", "it is not JSON: "),
        ("avro", STRUCT, 'not a JSON object with "type": "record"'),
        ("avro", '"string"', 'not a JSON object with "type": "record"'),
        ("avro", "[" * 30_000, "it is nested too deeply"),
        ("avro", "NaN", "it is not JSON: "),
    ],
)
def test_a_schema_that_cannot_be_one_is_refused_with_why(kind: str, schema: str, why: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{VALUE_SCHEMA} must be .*, got") as refused:
        declare(kind, schema)
    assert why in str(refused.value)
    assert f"{VALUE_FORMAT} is {kind}" in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_schema_is_as_long_as_kafka_can_say_and_no_longer() -> None:
    """The limit is in bytes, not in characters."""
    letters = VALUE_SCHEMA_SIZE_MAX // 2 - len("n STRING COMMENT ''")
    fits = f"n STRING COMMENT '{'é' * letters}'"
    assert declare("json", fits).value_schema == fits
    with pytest.raises(InvalidConfig, match=rf"has \d+ bytes, limit is {VALUE_SCHEMA_SIZE_MAX}"):
        declare("json", f"n STRING COMMENT '{'é' * (letters + 20)}'")


def test_format_and_schema_change_together() -> None:
    config = TopicConfig.parse({})
    kind = ConfigChange(VALUE_FORMAT, AlterConfigOperation.SET, "avro")
    schema = ConfigChange(VALUE_SCHEMA, AlterConfigOperation.SET, RECORD)
    for alone in (kind, schema):
        with pytest.raises(InvalidConfig, match=VALUE_SCHEMA):
            config.changed([alone])
    declared = config.changed([schema, kind])
    assert json.loads(declared.value_schema)["type"] == "record"
    gone = [
        ConfigChange(name, AlterConfigOperation.DELETE) for name in (VALUE_FORMAT, VALUE_SCHEMA)
    ]
    assert declared.changed(gone) == config
