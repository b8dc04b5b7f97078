"""Choice of a topic's format, and schemas written as DDL and as JSON."""

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


def test_a_topic_of_messagepack_values_has_no_typed_columns():
    assert isinstance(choose_format({}, {VALUE_FORMAT_CONFIG: "msgpack"}), RawFormat)
    options = {"valueFormat": "json", "valueSchema": "a INT"}
    assert isinstance(choose_format(options, {VALUE_FORMAT_CONFIG: "msgpack"}), JsonFormat)


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
    value_format = choose_format(options, DECLARED)
    assert isinstance(value_format, kind)
    assert value_format.schema.names == names


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"valueFormat": "xml"}, "valueFormat must be one of raw, json, avro, got 'xml'"),
        ({"valueFormat": "avro"}, "valueFormat is avro, which requires a schema: set the option"),
        (
            {"valueFormat": "raw", "valueSchema": "a INT"},
            "valueSchema requires valueFormat to be json or avro",
        ),
        ({"valueSchema": "a WORD"}, r"expected a type \(BOOLEAN, .*\), got 'WORD'"),
        (
            {"valueFormat": "avro", "valueSchema": AVRO, "avroFraming": "magic"},
            "avroFraming must be one of none, confluent, got 'magic'",
        ),
        (
            {"valueFormat": "avro", "valueSchema": AVRO, "avroSchemaId": "-1"},
            "avroSchemaId must be between 0 and 2147483647, got '-1'",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, why):
    with pytest.raises(InvalidConfig, match=why):
        choose_format(options, DECLARED)


def test_confluents_framing_is_an_option():
    options = {"valueFormat": "avro", "valueSchema": AVRO, "avroFraming": "confluent"}
    value_format = choose_format(options | {"avroSchemaId": "7"}, {})
    assert value_format.encode([pa.array([1], pa.int32())]).to_pylist() == [b"\0\0\0\0\x07\x02\x02"]


# Spark's schemas.

EVERY = (
    "b BOOLEAN, i8 TINYINT, i16 smallint, i32 int, i64 bigint NOT NULL, f FLOAT, d Double,"
    " s STRING, bin BINARY, day DATE,"
    " at TIMESTAMP, local TIMESTAMP_NTZ, dec DECIMAL(10, 2), dec2 numeric,"
    " `a ``b``, c` INT COMMENT 'it\\'s > , odd', l ARRAY<ARRAY<INT>>, m MAP<STRING, MAP<INT,INT>>,"
    " st STRUCT<x: INT NOT NULL, y STRUCT<z: DECIMAL(3)>>"
)


def test_every_type_can_be_written_as_ddl():
    schema = arrow_schema(EVERY)
    assert schema.names[14] == "a `b`, c"
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("local").type == pa.timestamp("us")
    assert schema.field("dec2").type == pa.decimal128(10, 0)
    assert not schema.field("i64").nullable
    assert not schema.field("st").type.field("x").nullable
    assert schema.field("st").type.field("y").type.field("z").type == pa.decimal128(3, 0)
    assert pa.types.is_map(schema.field("m").type.item_type)


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
    """Spark compares the schema of a source's batches with the one it expects, to the letter."""
    schema = choose_format(options, {}).schema
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC") == schema


def test_ddl_and_json_mean_the_same_schema():
    schema = arrow_schema(EVERY)
    assert arrow_schema(from_arrow_schema(schema).json()) == schema


def test_a_schema_as_json_means_what_spark_reads_in_it():
    """Nullability inside of lists and maps, and the metadata of columns, are kept."""
    text = json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": "a", "type": "string", "metadata": {"comment": "é", "n": 1}},
                {"name": "b", "type": "string collate UTF8_LCASE", "nullable": False},
                {
                    "name": "c",
                    "type": "string",
                    "nullable": True,
                    "metadata": {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}},
                },
                {"name": "d", "type": "decimal( 4 , 2 )", "nullable": True},
                {"name": "e", "type": "decimal", "nullable": True},
                {
                    "name": "f",
                    "type": {
                        "type": "map",
                        "keyType": "string",
                        "valueType": {
                            "type": "array",
                            "elementType": {"type": "struct", "fields": []},
                            "containsNull": False,
                        },
                        "valueContainsNull": False,
                    },
                    "nullable": True,
                },
            ],
        }
    )
    expected = to_arrow_schema(StructType.fromJson(json.loads(text)), timezone="UTC")
    assert arrow_schema(text).equals(expected, check_metadata=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected the name of a column, got 'the end'"),
        ("a", r"expected a type \(.*\), got 'the end'"),
        ("a INT,", "expected the name of a column"),
        ("a INT b INT", "expected ',' or the end, got 'b'"),
        ("a INT NOT", "expected 'NULL'"),
        ("a ARRAY<INT", "expected '>'"),
        ("a ARRAY INT", "expected '<'"),
        ("a MAP<INT>", "expected ','"),
        ("a STRUCT<>", "expected the name of a column"),
        ("a INT COMMENT x", "expected a comment in quotes"),
        ("a DECIMAL(39,0)", r"precision must be between 1 and 38 .*, got DECIMAL\(39,0\)"),
        ("a DECIMAL(2,3)", r"DECIMAL\(2,3\)"),
        ("a DECIMAL(x)", "expected a number"),
        ("a INT; DROP", "expected a name, a type or a symbol, got '; DROP'"),
        ("a " + "ARRAY<" * 100, "nested too deeply: more than 64 levels"),
        ('{"type":"struct"}', "not in the form of StructType.json.*`fields`"),
        ('{"type":"struct","fields":[{"name":"a"}]}', "not in the form of StructType.json.*`type`"),
        ('{"fields":[{"name":"a","type":"word","nullable":true}]}', "column cannot have: 'word'"),
        ('{"fields":[{"name":1,"type":"long","nullable":true}]}', r"not in the form.*fields\[0\]"),
        ('{"fields":[{"name":"a","type":"decimal(39,0)"}]}', r"got DECIMAL\(39,0\)"),
        ('{"fields":[{"name":"a","type":{"type":"udt","pyClass":"os.x"}}]}', "not in the form"),
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
