"""JSON values become rows at their own positions, whatever values are beside them."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import InvalidConfig, InvalidRecord
from millstream.formats.declaration import arrow_schema
from millstream.formats.json.json_format import JsonFormat
from millstream.formats.layout.reasons import ITEMS_MAX, SKIPPED_DEPTH_MAX
from millstream.formats.layout.schema_plan import DEPTH_MAX, NODES_MAX

from .json_reference import reference_row

SCHEMA = arrow_schema(
    "id BIGINT NOT NULL, name STRING, price DOUBLE, small TINYINT, is_new BOOLEAN, tags"
    " ARRAY<STRING>, who STRUCT<a: INT NOT NULL, b: ARRAY<STRUCT<c: BIGINT>>>, m MAP<STRING, INT>"
)
FORMAT = JsonFormat(SCHEMA)


def rows_of(found: Any, schema: pa.Schema) -> list[dict[str, Any]]:
    table = pa.table(list(found.columns), schema=schema)
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def decode(schema: str, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    """Return the rows, as tuples or as the values of the only column, and reasons of bad rows."""
    value_format = JsonFormat(arrow_schema(schema))
    found = value_format.decode(pa.array(values, pa.binary()))
    rows = [tuple(row.values()) for row in rows_of(found, value_format.schema)]
    reasons = dict(zip(found.bad.tolist(), found.reasons.to_pylist(), strict=True))
    return [row[0] if len(row) == 1 else row for row in rows], reasons


def read(kind: str, written: str | bytes) -> Any:
    """Decode one field of type `kind`; return its value, or the reason why it is bad."""
    text = written if isinstance(written, bytes) else written.encode()
    rows, reasons = decode(f"v {kind}", b'{"v":' + text + b"}")
    assert not reasons or rows == [None]
    return reasons.get(0, rows[0])


def same(left: Any, right: Any) -> bool:
    """Return whether values are equal; NaN equals itself."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def check_batch(values: list[bytes | None]) -> None:
    found = FORMAT.decode(pa.array(values, pa.binary()))
    rows = rows_of(found, FORMAT.schema)
    expected = [reference_row(value, SCHEMA) for value in values]
    assert found.bad.tolist() == [row for row, values in enumerate(expected) if values is None]
    assert len(found.reasons) == len(found.bad)
    assert len(rows) == len(values)
    nothing = dict.fromkeys(SCHEMA.names)
    for row, values_expected in zip(rows, expected, strict=True):
        assert same(row, values_expected or nothing), (row, values_expected)


# Alignment.

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-200, 200),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
)
anything = st.recursive(
    scalars,
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from("abc"), inside, max_size=3)
    ),
    max_leaves=6,
)
likely = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "name": st.none() | st.text(max_size=8),
        "price": st.none() | st.floats() | st.integers(),
        "small": st.none() | st.integers(-128, 127),
        "is_new": st.none() | st.booleans(),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4),
        "who": st.fixed_dictionaries(
            {"a": st.integers(-9, 9)},
            optional={
                "b": st.lists(
                    st.none() | st.fixed_dictionaries({}, optional={"c": st.integers(-9, 9)}),
                    max_size=3,
                )
            },
        ),
        "m": st.none() | st.dictionaries(st.text(max_size=2), st.none() | st.integers(0, 9)),
        "other": anything,
    },
)
unlikely = st.dictionaries(st.sampled_from(SCHEMA.names), anything, max_size=4)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    value = draw(st.one_of(likely, likely, unlikely, anything))
    text = json.dumps(value, indent=draw(st.none() | st.just(1)), ensure_ascii=draw(st.booleans()))
    return text.encode(errors="replace")


TOKENS = ["{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", "1", "-0", "0.5", "1e5", "01", "tru"]
TOKENS += ["true", "null", '"id"', '"id":1', '"name"', '"\\u00e9"', '"\\ud800"', '"tags":', "{}"]


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Draw a document that was cut, joined to another, or had a byte changed."""
    text = bytearray(draw(documents()))
    place = draw(st.integers(0, len(text)))
    match draw(st.sampled_from(["cut", "front", "join", "change", "insert", "token"])):
        case "cut":
            return bytes(text[:place])
        case "front":
            return bytes(text[place:])
        case "join":
            return bytes(text + draw(documents()))
        case "change" if text:
            text[place % len(text)] = draw(st.integers(0, 255))
        case "insert":
            text.insert(place, draw(st.integers(0, 255)))
        case _:
            text[place:place] = draw(st.sampled_from(TOKENS)).encode()
    return bytes(text)


noise = st.binary(max_size=12) | st.lists(st.sampled_from(TOKENS), max_size=8).map(
    lambda tokens: "".join(tokens).encode()
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.none() | documents() | documents() | broken() | noise, max_size=12))
def test_any_mix_of_good_and_bad_values_gives_exactly_their_rows(values):
    check_batch(values)


@pytest.mark.parametrize(
    "values",
    [
        [b'{"id":1}{"id":2}', b"", b'{"id":3}'],
        [b'{"id":1', b"}", b'{"id":3}'],
        [b'{"id":1}\n{"id":2}', b'{"id":3}'],
        [b'{"id":1,"name":"a', b'","price":1}', b'{"id":3}'],
        [b'{\n"id"\n:\n1\n}\n', b'{"id":2}'],
        [b'[{"id":1}', b'{"id":2}]', b'{"id":3}'],
        [b"", None, b" ", b'{"id":1}', None],
        [b'\xef\xbb\xbf{"id":1}', b'{"id":2}'],
        [b'{"id":1}\0', b'{"id":2}', b'\0{"id":1}'],
        [b'{"id":1}'.decode().encode("utf-16"), b'{"id":2}'],
    ],
    ids=lambda values: str(len(values)),
)
def test_rows_never_shift(values):
    check_batch(values)


def test_a_part_of_a_column_is_read_as_that_part():
    values = pa.array([b"bad", b'{"id":1}', None, b'{"id":2}', b"{", b'{"id":3}'])
    found = FORMAT.decode(values.slice(1, 4))
    assert found.columns[0].to_pylist() == [1, None, 2, None]
    assert found.bad.tolist() == [3]


def test_no_values_give_no_rows():
    found = FORMAT.decode(pa.array([], pa.binary()))
    assert [len(column) for column in found.columns] == [0] * len(SCHEMA)
    assert not found.bad.size


def test_lists_of_any_length_find_room():
    rows, reasons = decode(
        "a ARRAY<INT>, b MAP<STRING, ARRAY<INT>>",
        *(json.dumps({"a": list(range(n)), "b": {"k": [n] * n}}).encode() for n in range(80)),
    )
    assert not reasons
    assert rows == [(list(range(n)), [("k", [n] * n)]) for n in range(80)]


# Fields.


def test_fields_may_come_in_any_order_and_may_be_missing_or_more():
    rows, reasons = decode(
        "a INT, b STRING", b'{"b":"x","a":1}', b'{"c":[{"a":2}],"b":"y"}', b"{}", b'{"a":null}'
    )
    assert rows == [(1, "x"), (None, "y"), (None, None), (None, None)]
    assert not reasons


def test_names_are_compared_with_their_capitals_and_without_their_escapes():
    rows, reasons = decode("aé INT", '{"aé":1}'.encode(), b'{"a\\u00e9":2}', '{"Aé":3}'.encode())
    assert rows == [1, 2, None]
    assert not reasons


@pytest.mark.parametrize("value", [b'{"a":1,"a":1}', b'{"a":null,"a":1}', b'{"a":1,"\\u0061":2}'])
def test_a_field_that_is_there_twice_is_refused(value):
    _, reasons = decode("a INT", value)
    assert reasons[0].startswith("field a (int32): the field occurs twice at byte ")


def test_a_field_that_must_be_there_and_is_not_makes_the_row_bad():
    schema = "s STRUCT<x: INT NOT NULL>, a INT NOT NULL"
    rows, reasons = decode(
        schema, b'{"a":1}', b"{}", b'{"a":null}', b'{"a":1,"s":{}}', b'{"a":2,"s":{"x":3}}', None
    )
    assert rows == [(None, 1), *[(None, None)] * 3, ({"x": 3}, 2), (None, None)]
    assert [reasons[row].split(" (")[0] for row in sorted(reasons)] == [
        "field a",
        "field a",
        "field s.x",
    ]
    assert sorted(reasons) == [1, 2, 3]


def test_typed_columns_are_nullable_since_a_record_may_have_no_value():
    assert all(field.nullable for field in FORMAT.schema)


# Types.

moment = dt.datetime.fromisoformat


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("TINYINT", "-128", -128),
        ("SMALLINT", "32767", 32767),
        ("INT", "-0", 0),
        ("BOOLEAN", "true", True),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "-0.0", -0.0),
        ("DOUBLE", "1.7976931348623157e308", 1.7976931348623157e308),
        ("DOUBLE", "4.9e-324", 5e-324),
        ("DOUBLE", "1e-400", 0.0),
        ("DOUBLE", "0e999999999999", 0.0),
        ("DOUBLE", "123456789012345678901234567890", 123456789012345678901234567890.0),
        ("DOUBLE", '"Infinity"', math.inf),
        ("DOUBLE", '"-Infinity"', -math.inf),
        ("FLOAT", "0.1", 0.10000000149011612),
        ("FLOAT", "3.4028235e38", 3.4028234663852886e38),
        ("STRING", '"\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\uD83D\\ude00"', '"\\/\b\f\n\r\t\0😀'),
        ("DATE", '"2024-02-29"', dt.date(2024, 2, 29)),
        ("DATE", '"0001-01-01"', dt.date(1, 1, 1)),
        ("DATE", '"9999-12-31"', dt.date(9999, 12, 31)),
        ("TIMESTAMP_NTZ", '"2026-07-01 12:30"', moment("2026-07-01T12:30")),
        ("TIMESTAMP_NTZ", '"2026-07-01"', moment("2026-07-01")),
        ("DECIMAL(5,2)", "999.99", Decimal("999.99")),
        ("DECIMAL(5,2)", "-999.990", Decimal("-999.99")),
        ("DECIMAL(5,2)", '"1.5"', Decimal("1.50")),
        ("DECIMAL(5,2)", "1.5e1", Decimal("15.00")),
        ("DECIMAL(5,2)", "0.00000", Decimal("0.00")),
        ("DECIMAL(5,2)", "12300e-2", Decimal("123.00")),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
        ("DECIMAL(38,0)", "-1" + "0" * 37, Decimal("-1" + "0" * 37)),
        ("DECIMAL(38,38)", "-0." + "9" * 38, Decimal("-0." + "9" * 38)),
        ("ARRAY<INT>", "[]", []),
        ("MAP<STRING, INT>", '{"a":1,"a":2}', [("a", 1), ("a", 2)]),
        ("STRUCT<x: INT>", "{}", {"x": None}),
    ],
)
def test_what_is_of_the_declared_type_is_read(kind, written, value):
    found = read(kind, written)
    assert found == value
    assert str(found) == str(value)


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2026-07-01T12:30:00Z", utc(2026, 7, 1, 12, 30)),
        ("2026-07-01T12:30:00.123456789Z", utc(2026, 7, 1, 12, 30, 0, 123456)),
        ("2026-07-01T12:30:00.5+02:00", utc(2026, 7, 1, 10, 30, 0, 500000)),
        ("2026-07-01T12:30:00-0930", utc(2026, 7, 1, 22, 0)),
        ("2026-07-01 12:30:59+02", utc(2026, 7, 1, 10, 30, 59)),
        ("2026-07-01T12:30", utc(2026, 7, 1, 12, 30)),
        ("1969-12-31T23:59:59.999999Z", utc(1969, 12, 31, 23, 59, 59, 999999)),
    ],
)
def test_a_moment_is_one_in_utc(written, value):
    assert read("TIMESTAMP", f'"{written}"') == value


@given(st.datetimes() | st.dates())
@settings(max_examples=100, deadline=None)
def test_every_day_and_time_is_read_as_python_reads_it(time):
    kind = "TIMESTAMP_NTZ" if isinstance(time, dt.datetime) else "DATE"
    assert read(kind, f'"{time.isoformat()}"') == time


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12)))
@settings(max_examples=100, deadline=None)
def test_every_decimal_is_read_to_its_last_digit_or_refused(number):
    found = read("DECIMAL(20,4)", str(number))
    fits = abs(number) < 10**16 and number == round(number, 4)
    assert found == number if fits else "does not fit the declared type" in found


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30))
@settings(max_examples=200, deadline=None)
def test_every_double_is_the_nearest(number):
    assert read("DOUBLE", repr(number)) == float(number)


@pytest.mark.parametrize(
    ("kind", "written", "why"),
    [
        ("INT", "2147483648", "does not fit"),
        ("TINYINT", "128", "does not fit"),
        ("BIGINT", "9223372036854775808", "does not fit"),
        ("BIGINT", "-9223372036854775809", "does not fit"),
        ("BIGINT", "9" * 100, "does not fit"),
        ("DOUBLE", "1.8e308", "does not fit"),
        ("DOUBLE", "1" + "0" * 400, "does not fit"),
        ("DOUBLE", "1e99999999999999999999", "does not fit"),
        ("FLOAT", "3.5e38", "does not fit"),
        ("DECIMAL(5,2)", "1000", "does not fit"),
        ("DECIMAL(5,2)", "0.001", "does not fit"),
        ("INT", "1.0", "not of the declared type"),
        ("INT", "1e3", "not of the declared type"),
        ("INT", '"1"', "not of the declared type"),
        ("INT", "true", "not of the declared type"),
        ("INT", "[1]", "not of the declared type"),
        ("BOOLEAN", "1", "not of the declared type"),
        ("STRING", "1", "not of the declared type"),
        ("STRING", "{}", "not of the declared type"),
        ("DOUBLE", '"nan"', "not of the declared type"),
        ("DOUBLE", '"Infinite"', "not of the declared type"),
        ("DECIMAL(5,2)", '"1x"', "not of the declared type"),
        ("DECIMAL(5,2)", '""', "not of the declared type"),
        ("ARRAY<INT>", "{}", "not of the declared type"),
        ("STRUCT<x: INT>", "[]", "not of the declared type"),
        ("MAP<STRING, INT>", "[]", "not of the declared type"),
        ("DATE", '"2023-02-29"', "ISO 8601"),
        ("DATE", '"2024-2-29"', "ISO 8601"),
        ("DATE", '"2024-02-29T00:00"', "ISO 8601"),
        ("DATE", '"0000-01-01"', "ISO 8601"),
        ("TIMESTAMP", '"2026-07-01T24:00"', "ISO 8601"),
        ("TIMESTAMP", '"2026-07-01T12:60"', "ISO 8601"),
        ("TIMESTAMP", '"2026-07-01T12:30:60"', "ISO 8601"),
        ("TIMESTAMP", '"2026-07-01T12:30:00.Z"', "ISO 8601"),
        ("TIMESTAMP", '"2026-07-01T12:30+19:00"', "ISO 8601"),
        ("TIMESTAMP", '"2026-07-01T12:30Zx"', "ISO 8601"),
        ("TIMESTAMP", '"yesterday"', "ISO 8601"),
        ("TIMESTAMP", '"0001-01-01T00:00+01:00"', "does not fit"),
        ("TIMESTAMP", '"9999-12-31T23:30-01:00"', "does not fit"),
        ("TIMESTAMP_NTZ", '"2026-07-01T12:30Z"', "ISO 8601"),
        ("TIMESTAMP", "1782909000", "not of the declared type"),
        ("STRING", b'"\xff"', "not valid UTF-8"),
        ("STRING", b'"\xed\xa0\x80"', "not valid UTF-8"),
        ("STRING", b'"\xc0\x80"', "not valid UTF-8"),
        ("STRING", b'"\xf4\x90\x80\x80"', "not valid UTF-8"),
        ("STRING", '"\\ud800"', "not valid UTF-8"),
        ("STRING", '"\\ude00\\ud83d"', "not valid UTF-8"),
        ("STRING", '"\\x"', "not valid UTF-8"),
        ("STRING", '"a\nb"', "not valid UTF-8"),
        ("INT", "nul", "not a valid JSON object"),
        ("INT", "NaN", "not a valid JSON object"),
        ("INT", "01", "not a valid JSON object"),
        ("INT", "+1", "not a valid JSON object"),
        ("INT", "1.", "not a valid JSON object"),
        ("INT", "[1,]", "not of the declared type"),
        ("ARRAY<INT>", "[1,]", "not a valid JSON object"),
        ("ARRAY<INT>", "[1 2]", "not a valid JSON object"),
    ],
)
def test_what_is_not_is_refused_with_why(kind, written, why):
    found = read(kind, written)
    assert isinstance(found, str)
    assert found.startswith("field v"), found
    assert why in found
    assert re.search(r" at byte \d+$", found)


def test_an_item_that_must_be_there_and_is_null_is_refused():
    field = pa.field("v", pa.list_(pa.field("element", pa.int32(), nullable=False)))
    found = JsonFormat(pa.schema([field])).decode(pa.array([b'{"v":[1,null]}', b'{"v":[1]}']))
    assert found.bad.tolist() == [0]
    assert found.columns[0].to_pylist() == [None, [1]]


# Values that would take too much memory or stack.


def test_a_field_outside_the_schema_may_be_nested_up_to_a_limit():
    deep = SKIPPED_DEPTH_MAX
    rows, reasons = decode(
        "a INT",
        b'{"x":' + b"[" * deep + b"]" * deep + b',"a":1}',
        b'{"x":' + b"[" * (deep + 1) + b"]" * (deep + 1) + b',"a":1}',
        b'{"x":' + b'{"x":' * 100_000,
        b"[" * 100_000,
    )
    assert rows == [1, None, None, None]
    assert [reasons[row].split(" at ")[0] for row in (1, 2)] == [
        f"the value is nested more than {deep} levels deep"
    ] * 2
    assert "not a valid JSON object" in reasons[3]


def test_a_value_has_no_more_items_than_it_may():
    many = b'{"v":[' + b"1," * ITEMS_MAX + b"1]}"
    _, reasons = decode("v ARRAY<TINYINT>", many)
    assert f"more than {ITEMS_MAX:,} items" in reasons[0]


# Schemas.


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("v BINARY", r"field 'v' is of type binary, which JSON does not have"),
        ("a STRUCT<v: BINARY>", r"field 'a.v' is of type binary"),
        ("v MAP<INT, INT>", "keys of field 'v' must be strings in JSON, got int32"),
        ("a INT, a INT", "field 'a' occurs twice in the record"),
        (
            "v " + "ARRAY<" * 40 + "INT" + ">" * 40,
            f"must be at most {DEPTH_MAX} levels deep, got 33",
        ),
        (", ".join(f"c{n} INT" for n in range(NODES_MAX)), f"at most {NODES_MAX} fields"),
    ],
)
def test_what_json_cannot_say_is_refused_when_it_is_declared(schema, why):
    with pytest.raises(InvalidConfig, match=why):
        JsonFormat(arrow_schema(schema))


def test_a_schema_needs_a_field():
    with pytest.raises(InvalidConfig, match="at least 1 field, got 0"):
        JsonFormat(pa.schema([]))


# Writing.

WRITTEN = arrow_schema(
    "id BIGINT NOT NULL, name STRING, price DOUBLE, f FLOAT, b BOOLEAN, day DATE, at TIMESTAMP,"
    " local TIMESTAMP_NTZ, d DECIMAL(12,3), tags ARRAY<STRING>, m MAP<STRING, STRUCT<x: INT>>,"
    " s STRUCT<a: INT, n: ARRAY<ARRAY<INT>>>"
)

moments = st.datetimes(min_value=moment("0001-01-02"), max_value=moment("9999-12-30"))
written_rows = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=6),
        "price": st.none() | st.floats(allow_nan=False),
        "f": st.none() | st.floats(width=32, allow_nan=False),
        "b": st.none() | st.booleans(),
        "day": st.none() | st.dates(),
        "at": st.none() | moments.map(lambda time: time.replace(tzinfo=dt.UTC)),
        "local": st.none() | moments,
        "d": st.none() | st.decimals(-(10**8), 10**8, places=3),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "m": st.none()
        | st.dictionaries(
            st.text(max_size=2),
            st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}),
            max_size=3,
        ).map(lambda pairs: list(pairs.items())),
        "s": st.none()
        | st.fixed_dictionaries(
            {
                "a": st.none() | st.integers(-9, 9),
                "n": st.none()
                | st.lists(st.none() | st.lists(st.integers(-9, 9), max_size=2), max_size=3),
            }
        ),
    }
)


@settings(max_examples=100, deadline=None)
@given(st.lists(written_rows, max_size=5), st.integers(0, 2))
def test_what_is_written_is_json_and_is_read_back(rows, start):
    value_format = JsonFormat(WRITTEN)
    table = pa.Table.from_pylist(rows, value_format.schema).slice(start).combine_chunks()
    values = value_format.encode([column.combine_chunks() for column in table.columns])
    assert len(values) == len(rows[start:])
    for value, row in zip(values.to_pylist(), rows[start:], strict=True):
        parsed = json.loads(value)
        assert parsed["id"] == row["id"]
        assert parsed.keys() == {name for name in row if row[name] is not None}
    found = value_format.decode(values)
    assert not found.bad.size, found.reasons
    assert rows_of(found, value_format.schema) == rows[start:]


def test_a_number_that_json_cannot_say_is_written_as_spark_writes_it():
    values = JsonFormat(arrow_schema("v DOUBLE")).encode(
        [pa.array([math.nan, math.inf, -math.inf])]
    )
    assert values.to_pylist() == [b'{"v":"NaN"}', b'{"v":"Infinity"}', b'{"v":"-Infinity"}']


@pytest.mark.parametrize(
    ("schema", "rows", "path"),
    [
        ("a INT NOT NULL", [{"a": 1}, {"a": None}], "a"),
        ("s STRUCT<x: INT NOT NULL>", [{"s": None}, {"s": {"x": None}}], "s.x"),
    ],
)
def test_what_must_be_there_is_not_written_without(schema, rows, path):
    value_format = JsonFormat(arrow_schema(schema))
    columns = pa.Table.from_pylist(rows, value_format.schema).columns
    with pytest.raises(InvalidRecord, match=f"field {path} is required, but is null in 1 values"):
        value_format.encode([column.combine_chunks() for column in columns])
