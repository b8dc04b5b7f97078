"""Which format a topic has: what it declares, what an option says, how a schema is written."""

from __future__ import annotations

import contextlib
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from millstream.errors import InvalidConfig
from millstream.formats.avro.avro_format import AvroFormat
from millstream.formats.ddl import parse_ddl
from millstream.formats.declaration import (
    VALUE_FORMAT_CONFIG,
    VALUE_SCHEMA_CONFIG,
    arrow_schema,
    choose_format,
)
from millstream.formats.json.json_format import JsonFormat
from millstream.formats.value_format import RawFormat

AVRO = json.dumps(
    {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "int"]}]}
)
DECLARED = {VALUE_FORMAT_CONFIG: "json", VALUE_SCHEMA_CONFIG: "a INT"}


def test_a_topic_that_declares_nothing_is_raw():
    assert isinstance(choose_format({}, {}), RawFormat)
    assert isinstance(choose_format({"topic": "x"}, {VALUE_FORMAT_CONFIG: "raw"}), RawFormat)


@pytest.mark.parametrize(
    ("options", "kind", "names"),
    [
        ({}, JsonFormat, ["a"]),
        ({"valueformat": "raw"}, RawFormat, []),
        ({"valueFormat": "JSON"}, JsonFormat, ["a"]),
        ({"valueSchema": "b INT, c INT"}, JsonFormat, ["b", "c"]),
        ({"VALUEFORMAT": "avro", "VALUESCHEMA": AVRO}, AvroFormat, ["a"]),
    ],
)
def test_an_option_goes_before_what_the_topic_declares(options, kind, names):
    found = choose_format(options, DECLARED)
    assert isinstance(found, kind)
    assert found.schema.names == names


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"valueFormat": "xml"}, "valueFormat is 'xml', allowed is raw, json, avro"),
        ({"valueFormat": "avro"}, "valueFormat is avro, and there is no valueSchema"),
        ({"valueFormat": "raw", "valueSchema": "a INT"}, "valueFormat is raw: allowed with json"),
        ({"valueSchema": "a WORD"}, "found 'WORD', expected a type: BOOLEAN"),
        (
            {"valueFormat": "avro", "valueSchema": AVRO, "avroFraming": "magic"},
            "avroFraming is 'magic', allowed is none, confluent",
        ),
        (
            {"valueFormat": "avro", "valueSchema": AVRO, "avroSchemaId": "-1"},
            "avroSchemaId is '-1', allowed is 0 to 2147483647",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, why):
    with pytest.raises(InvalidConfig, match=why):
        choose_format(options, DECLARED)


def test_confluents_framing_is_an_option():
    options = {"valueFormat": "avro", "valueSchema": AVRO, "avroFraming": "confluent"}
    found = choose_format(options | {"avroSchemaId": "7"}, {})
    assert found.encode([pa.array([1], pa.int32())]).to_pylist() == [b"\0\0\0\0\x07\x02\x02"]


# Spark's schemas.

EVERY = (
    "b BOOLEAN, i8 TINYINT, i16 smallint, i32 int, i64 bigint NOT NULL, f FLOAT, d Double,"
    " s STRING, bin BINARY, day DATE,"
    " at TIMESTAMP, local TIMESTAMP_NTZ, dec DECIMAL(10, 2), dec2 numeric,"
    " `a ``b``, c` INT COMMENT 'it\\'s > , odd', l ARRAY<ARRAY<INT>>, m MAP<STRING, MAP<INT,INT>>,"
    " st STRUCT<x: INT NOT NULL, y STRUCT<z: DECIMAL(3)>>"
)


def test_every_type_can_be_written_as_ddl():
    found = arrow_schema(EVERY)
    assert found.names[14] == "a `b`, c"
    assert found.field("at").type == pa.timestamp("us", tz="UTC")
    assert found.field("local").type == pa.timestamp("us")
    assert found.field("dec2").type == pa.decimal128(10, 0)
    assert not found.field("i64").nullable
    assert not found.field("st").type.field("x").nullable
    assert found.field("st").type.field("y").type.field("z").type == pa.decimal128(3, 0)
    assert pa.types.is_map(found.field("m").type.item_type)


@pytest.mark.parametrize(
    "options",
    [
        {
            "valueFormat": "json",
            "valueSchema": EVERY.replace(" bin BINARY,", "").replace("<INT,", "<STRING,"),
        },
        {
            "valueFormat": "avro",
            "valueSchema": json.dumps(
                {
                    "type": "record",
                    "name": "r",
                    "fields": [
                        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                        {"name": "m", "type": {"type": "map", "values": ["null", "bytes"]}},
                        {"name": "l", "type": {"type": "array", "items": "int"}},
                        {"name": "n", "type": "null"},
                    ],
                }
            ),
        },
    ],
    ids=["json", "avro"],
)
def test_spark_takes_the_columns_for_what_they_are(options):
    """It compares the schema of what a source gives with what it expects, to the letter."""
    schema = choose_format(options, {}).schema
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC") == schema


def test_ddl_and_json_say_the_same():
    struct = parse_ddl(EVERY)
    assert StructType.fromJson(json.loads(struct.json())) == struct
    assert arrow_schema(struct.json()) == arrow_schema(EVERY)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "found 'the end', expected the name of a column"),
        ("a", "found 'the end', expected a type"),
        ("a INT,", "expected the name of a column"),
        ("a INT b INT", "found 'b', expected ',' or the end"),
        ("a INT NOT", "expected 'NULL'"),
        ("a ARRAY<INT", "expected '>'"),
        ("a ARRAY INT", "expected '<'"),
        ("a MAP<INT>", "expected ','"),
        ("a STRUCT<>", "expected the name of a column"),
        ("a INT COMMENT x", "expected a comment in quotes"),
        ("a DECIMAL(39,0)", r"DECIMAL\(39,0\), allowed is a precision of 1 to 38"),
        ("a DECIMAL(2,3)", r"DECIMAL\(2,3\)"),
        ("a DECIMAL(x)", "expected a number"),
        ("a INT; DROP", "found '; DROP', expected a name, a type or a sign"),
        ("a " + "ARRAY<" * 100, "more than 64 levels deep"),
        ('{"type":"struct"}', "schema is not what"),
        ('{"type":"struct","fields":[{"name":"a"}]}', "schema is not what"),
        ('{"type":"struct","fields":[{"name":"a","type":"word","nullable":true}]}', "schema is"),
        ('{"type":"struct","fields":[{"name":1,"type":"long","nullable":true}]}', "schema is"),
        ('{"a":' * 20_000, "schema is nested too deeply"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_where(text, why):
    with pytest.raises(InvalidConfig, match=why):
        arrow_schema(text)


@given(st.text(max_size=30) | st.lists(st.sampled_from(EVERY.split())).map(" ".join))
def test_noise_is_a_schema_or_refused_but_never_crashes(text):
    with contextlib.suppress(InvalidConfig):
        arrow_schema(text)
