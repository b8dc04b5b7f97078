"""Avro's binary encoding, checked against fastavro in both directions."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidConfig, InvalidRecord
from millstream.formats.avro.avro_format import AvroFormat, AvroFraming
from millstream.formats.layout.reasons import ITEMS_MAX


def record(*fields: tuple[str, Any], name: str = "r") -> dict[str, Any]:
    members = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": members}


def logical(kind: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


def format_of(schema: Any, **options: Any) -> AvroFormat:
    return AvroFormat(json.dumps(schema), **options)


def write(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def read(schema: Any, value: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(schema), None)


def rows_of(found: Any, value_format: AvroFormat) -> list[dict[str, Any]]:
    table = pa.table(list(found.columns), schema=value_format.schema)
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows


def decode(schema: Any, *values: bytes | None, **options: Any) -> tuple[list[Any], dict[int, str]]:
    value_format = format_of(schema, **options)
    found = value_format.decode(pa.array(values, pa.binary()))
    reasons = dict(zip(found.bad.tolist(), found.reasons.to_pylist(), strict=True))
    return rows_of(found, value_format), reasons


# Any schema.

moment = dt.datetime.fromisoformat
micros = st.datetimes(min_value=moment("1700-01-01"), max_value=moment("2200-01-01"))
millis = micros.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))


def in_utc(moments: Any) -> Any:
    return moments.map(lambda time: time.replace(tzinfo=dt.UTC))


PRIMITIVES: list[tuple[Any, Any]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=5)),
    ("string", st.text(max_size=5)),
    (logical("int", "date"), st.dates()),
    (logical("long", "timestamp-millis"), in_utc(millis)),
    (logical("long", "timestamp-micros"), in_utc(micros)),
    (logical("long", "local-timestamp-millis"), millis),
    (logical("long", "local-timestamp-micros"), micros),
    (logical("bytes", "decimal", precision=9, scale=2), st.decimals(-(10**6), 10**6, places=2)),
    (
        logical("bytes", "decimal", precision=38, scale=0),
        st.integers(-(10**30), 10**30).map(Decimal),
    ),
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any]:
    """Draw a type and a strategy for its values. Named types get their names later."""
    choice = draw(st.integers(0, 9 if depth < 3 else 5))
    if choice <= 3:
        return draw(st.sampled_from(PRIMITIVES))
    if choice == 4:
        symbols = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
        return {"type": "enum", "name": "?", "symbols": symbols}, st.sampled_from(symbols)
    if choice == 5:
        size = draw(st.integers(1, 5))
        return {"type": "fixed", "name": "?", "size": size}, st.binary(min_size=size, max_size=size)
    kind, values = draw(kinds(depth=depth + 1))
    if choice == 6 and not isinstance(kind, list):
        branches = ["null", kind] if draw(st.booleans()) else [kind, "null"]
        return branches, st.none() | values
    if choice == 7:
        return {"type": "map", "values": kind}, st.dictionaries(
            st.text(max_size=3), values, max_size=3
        )
    if choice == 8:
        return draw(records(depth=depth + 1))
    return {"type": "array", "items": kind}, st.lists(values, max_size=3)


@st.composite
def records(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any]:
    found = draw(st.lists(kinds(depth=depth), min_size=1, max_size=4))
    fields = [(f"f{number}", kind) for number, (kind, _) in enumerate(found)]
    values = {f"f{number}": values for number, (_, values) in enumerate(found)}
    return record(*fields, name="?"), st.fixed_dictionaries(values)


def named(kind: Any, numbers: Any) -> Any:
    """Give each named type a distinct name."""
    if isinstance(kind, list):
        return [named(branch, numbers) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    found = {
        key: named(value, numbers) if key != "symbols" else value for key, value in kind.items()
    }
    if found.get("name") == "?":
        found["name"] = f"N{next(numbers)}"
    return found


@st.composite
def schemas_and_rows(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    schema, values = draw(records())
    rows = draw(st.lists(values, min_size=1, max_size=5))
    return named(schema, iter(range(1000))), rows


@settings(max_examples=150, deadline=None)
@given(schemas_and_rows(), st.data())
def test_every_schema_is_read_and_written_as_fastavro_does(given_, data):
    schema, rows = given_
    values = [write(schema, row) for row in rows]
    mixed: list[tuple[bytes | None, Any]] = list(zip(values, rows, strict=True))
    nothing = dict.fromkeys(rows[0])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(mixed)))
        broken = data.draw(st.sampled_from([None, values[0] + b"\0", values[-1][:-1]]))
        mixed.insert(place, (broken, nothing))
    value_format = format_of(schema)
    found = value_format.decode(pa.array([value for value, _ in mixed], pa.binary()))
    assert rows_of(found, value_format) == [row for _, row in mixed]
    bad = [
        number for number, (value, row) in enumerate(mixed) if row is nothing and value is not None
    ]
    assert found.bad.tolist() == bad
    good = pa.array([number for number, (_, row) in enumerate(mixed) if row is not nothing])
    written = value_format.encode([column.take(good) for column in found.columns])
    assert [read(schema, value) for value in written.to_pylist()] == rows


@settings(max_examples=150, deadline=None)
@given(schemas_and_rows(), st.lists(st.binary(max_size=20), max_size=4), st.data())
def test_noise_harms_no_row_but_its_own(given_, noise, data):
    schema, rows = given_
    value = bytearray(write(schema, rows[0]))
    if value:
        value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    sound = write(schema, rows[-1])
    values = [part for broken in [*noise, bytes(value)] for part in (broken, sound)]
    value_format = format_of(schema)
    found = value_format.decode(pa.array(values, pa.binary()))
    assert rows_of(found, value_format)[1::2] == [rows[-1]] * (len(noise) + 1)
    assert not np.any(found.bad % 2)


WIDE = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("tags", {"type": "array", "items": "string"}),
    ("prices", {"type": "map", "values": "double"}),
    ("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
    ("cents", logical("bytes", "decimal", precision=5, scale=2)),
    ("inner", record(("x", "float"), ("y", "boolean"), name="i")),
)
WIDE_ROW = {
    "id": 300,
    "name": "é",
    "tags": ["a", ""],
    "prices": {"k": 1.5},
    "kind": "B",
    "cents": Decimal("-1.25"),
    "inner": {"x": 0.5, "y": True},
}


def test_every_cut_of_a_record_is_refused():
    value = write(WIDE, WIDE_ROW)
    rows, reasons = decode(WIDE, *(value[:size] for size in range(len(value) + 1)))
    assert rows[-1] == WIDE_ROW
    assert sorted(reasons) == list(range(len(value)))


def test_a_part_of_a_column_is_read_as_that_part():
    value, value_format = write(WIDE, WIDE_ROW), format_of(WIDE)
    values = pa.array([b"bad", value, None, b"", value])
    found = value_format.decode(values.slice(1, 3))
    assert found.columns[0].to_pylist() == [300, None, None]
    assert found.bad.tolist() == [2]


# Damage.


def varint(number: int) -> bytes:
    return write("long", number)


LISTS = record(("v", {"type": "array", "items": "int"}))


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("long", b"\xff" * 9 + b"\x02", "too many bytes"),
        ("long", b"\x80" * 11, "too many bytes"),
        ("int", varint(2**31), "does not fit"),
        ("boolean", b"\x02", "not of the declared type"),
        ("string", varint(-1), "the length is negative or exceeds the value"),
        ("string", varint(2**62), "the length is negative or exceeds the value"),
        ("string", varint(1) + b"\xff", "not valid UTF-8"),
        ("bytes", varint(5) + b"abcd", "the length is negative or exceeds the value"),
        (["null", "int"], varint(2), "no such branch"),
        (["null", "int"], varint(-1), "no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, varint(1), "no such symbol"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, varint(-1), "no such symbol"),
        ({"type": "array", "items": "int"}, varint(2**40), "the length is negative"),
        ({"type": "array", "items": "int"}, varint(-(2**63)), "the length is negative"),
        ({"type": "array", "items": "int"}, varint(-1) + varint(99), "the length is negative"),
        (logical("bytes", "decimal", precision=2, scale=0), varint(1) + b"\x64", "does not fit"),
        (logical("bytes", "decimal", precision=2, scale=0), varint(1) + b"\x9c", "does not fit"),
        (logical("bytes", "decimal", precision=38), varint(17) + b"\1" + bytes(16), "does not fit"),
        (logical("bytes", "decimal", precision=38), varint(16) + b"\x80" + bytes(15), "not fit"),
        (logical("bytes", "decimal", precision=38), varint(17) + b"\0" + b"\xff" * 16, "not fit"),
        (logical("long", "timestamp-millis"), varint(2**60), "does not fit"),
        (logical("long", "timestamp-millis"), varint(253_402_300_800_000), "does not fit"),
        (logical("long", "timestamp-micros"), varint(-62_135_596_800_000_001), "does not fit"),
        (logical("int", "date"), varint(2_932_897), "does not fit"),
        (logical("int", "date"), varint(-719_163), "does not fit"),
    ],
)
def test_a_broken_value_is_refused_with_why(kind, value, why):
    rows, reasons = decode(record(("v", kind)), value)
    assert rows == [{"v": None}]
    assert reasons[0].startswith("field v")
    assert why in reasons[0]


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (varint(2) + b"\2\4" + varint(1) + b"\6" + b"\0", [1, 2, 3]),
        (varint(-2) + varint(2) + b"\2\4" + b"\0", [1, 2]),
        (b"\0", []),
    ],
)
def test_lists_may_come_in_blocks_with_and_without_their_size(value, items):
    rows, reasons = decode(LISTS, value)
    assert not reasons
    assert rows == [{"v": items}]


def test_a_decimal_may_have_bytes_in_front_that_say_nothing():
    schema = record(("v", logical("bytes", "decimal", precision=4, scale=0)))
    rows, reasons = decode(
        schema, varint(20) + bytes(18) + b"\x04\xd2", varint(20) + b"\xff" * 18 + b"\xfb\x2e", b"\0"
    )
    assert not reasons
    assert [row["v"] for row in rows] == [Decimal(1234), Decimal(-1234), Decimal(0)]


def test_a_value_has_no_more_items_than_it_may():
    items = np.full(ITEMS_MAX + 1, 2, np.uint8).tobytes()
    _, reasons = decode(LISTS, varint(ITEMS_MAX + 1) + items + b"\0")
    assert f"more than {ITEMS_MAX:,} items" in reasons[0]


# Framing.


def test_a_frame_is_skipped_and_written():
    value = write(WIDE, WIDE_ROW)
    framed = b"\0\0\0\1\2" + value
    rows, reasons = decode(
        WIDE, framed, value, b"\1" + framed[1:], b"", b"\0\0\0", framing=AvroFraming.CONFLUENT
    )
    assert rows[0] == WIDE_ROW
    assert sorted(reasons) == [1, 2, 3, 4]
    assert all(
        "does not start with a zero byte and a schema id" in reasons[row] for row in (2, 3, 4)
    )
    value_format = format_of(WIDE, framing=AvroFraming.CONFLUENT, schema_id=258)
    columns = value_format.decode(pa.array([framed])).columns
    assert value_format.encode(columns).to_pylist() == [framed]


def test_a_record_of_another_schema_id_is_bad_and_not_read_as_this_one():
    value = write(WIDE, WIDE_ROW)
    values = [b"\0\0\0\1\2" + value, b"\0\0\0\1\3" + value, b"", b"\0\xff\0\0\0" + value, None]
    value_format = format_of(WIDE, framing=AvroFraming.CONFLUENT, schema_id=258)
    decoded = value_format.decode(pa.array(values, pa.binary()))
    assert decoded.bad.tolist() == [1, 2, 3]
    reasons = decoded.reasons.to_pylist()
    assert reasons[0] == "schema id must be 258, got 259"
    assert "does not start with a zero byte and a schema id" in reasons[1]
    assert reasons[2] == f"schema id must be 258, got {0xFF << 24}"
    assert [column[1].as_py() for column in decoded.columns] == [None] * len(decoded.columns)
    assert decoded.columns[0][0].is_valid
    assert value_format.decode(pa.array([], pa.binary())).bad.tolist() == []


def test_a_frame_cannot_be_written_without_a_schema_id():
    value_format = format_of(LISTS, framing=AvroFraming.CONFLUENT)
    with pytest.raises(InvalidConfig, match="requires avroSchemaId"):
        value_format.encode([pa.array([[1]], value_format.schema.field(0).type)])


# Schemas.


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "is not valid JSON"),
        ("[" * 30_000, "nested too deeply"),
        ('"string"', "must be a record, got string"),
        ('["null", {"type": "record", "name": "r", "fields": []}]', "must be a record, got union"),
        (record(), "must have at least 1 field"),
        (
            record(("v", ["int", "string"])),
            "field 'v': union must be of null and one.*, got int, string",
        ),
        (record(("v", ["null", "int", "string"])), "got null, int, string"),
        (record(("v", [])), "got none"),
        (record(("v", ["null"])), "other type, got null"),
        (record(("v", "r")), "field 'v': type 'r' contains itself"),
        (record(("v", {"type": "array", "items": "r"})), "field 'v.*': type 'r' contains itself"),
        (record(("v", "other")), "field 'v': type 'other' is not defined"),
        (record(("v", logical("int", "time-millis"))), "logical type 'time-millis' of int is not"),
        (record(("v", logical("bytes", "big-decimal"))), "logical type 'big-decimal' of bytes"),
        (
            record(("v", logical("bytes", "decimal"))),
            "precision must be between 1 and 38, got None",
        ),
        (record(("v", logical("bytes", "decimal", precision=39))), "and 38, got 39"),
        (
            record(("v", logical("bytes", "decimal", precision=2, scale=3))),
            "scale must be between 0 and 2, got 3",
        ),
        (record(("v", {"type": "array", "items": "null"})), "items of type null take no bytes"),
        (record(("v", {"type": "array", "items": record(name="e")})), "of type record take no"),
        (
            record(("v", {"type": "fixed", "name": "f", "size": 0})),
            "size must be between 1 and 1048576, got 0",
        ),
        (record(("v", {"type": "enum", "name": "e", "symbols": []})), "list of distinct symbols"),
        (record(("v", {"type": "array"})), "object, got None"),
        (record(("v", 1)), "type must be a name, a list or an object, got 1"),
        (record(("v", "int"), ("v", "int")), "field 'v' occurs twice in the record"),
        (record(("v", record(("x", "int")))), "type 'r' is defined twice"),
        ({"type": "record", "fields": []}, "a record must have a name, got None"),
        ({"type": "record", "name": "r"}, "a record must have a list of fields"),
        ({"type": "record", "name": "r", "fields": [{"name": "v"}]}, "field 'v': has no type"),
        (
            {"type": "record", "name": "r", "fields": [1]},
            "field must be an object with a name, got 1",
        ),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused_with_its_name(schema, why):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(InvalidConfig, match=why):
        AvroFormat(text)


def test_a_named_type_may_be_used_again_by_its_name_or_its_full_name():
    schema = {
        "type": "record",
        "name": "r",
        "namespace": "a.b",
        "fields": [
            {"name": "x", "type": {"type": "fixed", "name": "F", "size": 1}},
            {"name": "y", "type": "F"},
            {"name": "z", "type": ["null", "a.b.F"]},
        ],
    }
    row = {"x": b"1", "y": b"2", "z": b"3"}
    assert decode(schema, write(schema, row)) == ([row], {})


# Writing.


@pytest.mark.parametrize(
    ("kind", "column", "why"),
    [
        ("int", pa.array([1, None], pa.int32()), "row 1: field v .*a required field"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab", b"abc"]), "row 1: field v"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            pa.array(["A", "B"]),
            "must be one of A, got 'B'",
        ),
        (
            logical("fixed", "decimal", name="D", size=1, precision=5, scale=0),
            pa.array([Decimal(127), Decimal(128)], pa.decimal128(5, 0)),
            "row 1: field v .*does not fit",
        ),
    ],
)
def test_what_the_schema_does_not_allow_is_not_written(kind, column, why):
    with pytest.raises(InvalidRecord, match=why):
        format_of(record(("v", kind))).encode([column])


def test_long_values_find_room():
    schema = record(("v", "string"), ("w", {"type": "array", "items": "string"}))
    rows = [{"v": "x" * size, "w": ["y" * size] * 3} for size in (0, 10_000, 5, 100_000)]
    value_format = format_of(schema)
    columns = pa.Table.from_pylist(rows, value_format.schema).columns
    values = value_format.encode([column.combine_chunks() for column in columns])
    assert [read(schema, value) for value in values.to_pylist()] == rows
    assert value_format.encode(
        [column.slice(0, 0).combine_chunks() for column in columns]
    ) == pa.array([], pa.binary())


def test_columns_may_be_parts_of_longer_ones():
    value_format = format_of(WIDE)
    rows = [dict(WIDE_ROW, id=number, tags=["x"] * number) for number in range(5)]
    table = pa.Table.from_pylist(rows, value_format.schema)
    values = value_format.encode([column.combine_chunks().slice(2, 2) for column in table.columns])
    assert [read(WIDE, value) for value in values.to_pylist()] == rows[2:4]
