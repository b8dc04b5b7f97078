"""Values of other schemas, found by their id, become columns of the declared schema.

What comes out is compared with what fastavro resolves.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import Unavailable
from millstream.formats.avro.avro_format import AvroFormat, AvroFraming
from millstream.http1.registered_schema import RegisteredSchema


class KnownSchemas:
    """The schemas of a registry, in memory; notes what it was asked for."""

    def __init__(self, schemas: Mapping[int, object], *, is_down: bool = False) -> None:
        self.schemas = schemas
        self.is_down = is_down
        self.asked: list[int] = []

    def find(self, schema_ids: Sequence[int]) -> Mapping[int, RegisteredSchema]:
        if self.is_down:
            raise Unavailable("schema registry: connection refused")
        self.asked += schema_ids
        return {one: self._schema(one) for one in schema_ids if one in self.schemas}

    def _schema(self, schema_id: int) -> RegisteredSchema:
        found = self.schemas[schema_id]
        if isinstance(found, RegisteredSchema):
            return found
        return RegisteredSchema("AVRO", json.dumps(found))


def record(*fields: object, name: str = "Order") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": one[0], "type": one[1], **(one[2] if len(one) > 2 else {})}  # type: ignore[index, arg-type]
            for one in fields
        ],
    }


def framed(schema_id: int, schema: dict[str, Any], value: object) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + target.getvalue()


def opened(reader: object, schemas: Mapping[int, object]) -> AvroFormat:
    return AvroFormat(
        json.dumps(reader), framing=AvroFraming.CONFLUENT, registry=KnownSchemas(schemas)
    )


def read(
    reader: dict[str, Any], schemas: Mapping[int, object], values: Sequence[bytes | None]
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    form = opened(reader, schemas)
    decoded = form.decode(pa.array(values, pa.binary()))
    table = pa.table(list(decoded.columns), schema=form.schema)
    table.validate(full=True)
    reasons = dict(zip(decoded.bad.tolist(), decoded.reasons.to_pylist(), strict=True))
    return table.to_pylist(maps_as_pydicts="strict"), reasons


def by_fastavro(written: dict[str, Any], reader: dict[str, Any], value: object) -> object:
    source = io.BytesIO(framed(1, written, value)[5:])
    return fastavro.schemaless_reader(
        source, fastavro.parse_schema(written), fastavro.parse_schema(reader)
    )


INNER = record(("x", "int"), ("y", "string"), name="Inner")
ENUM = {"type": "enum", "name": "Color", "symbols": ["red", "green"]}

RESOLVED = {
    "the order of fields": (
        record(("a", "long"), ("b", "string")),
        record(("b", "string"), ("a", "long")),
        {"a": 1, "b": "one"},
    ),
    "a field that the reader does not have": (
        record(("a", "long"), ("gone", {"type": "array", "items": INNER}), ("b", "string")),
        record(("a", "long"), ("b", "string")),
        {"a": 1, "gone": [{"x": 1, "y": "z"}] * 3, "b": "one"},
    ),
    "defaults": (
        record(("a", "long")),
        record(
            ("a", "long"),
            ("n", ["null", "string"], {"default": None}),
            ("i", "int", {"default": -7}),
            ("d", "double", {"default": 1}),
            ("t", "boolean", {"default": True}),
            ("s", "string", {"default": "ä"}),
            ("e", ENUM, {"default": "green"}),
            ("l", {"type": "array", "items": "int"}, {"default": [1, 2]}),
            ("m", {"type": "map", "values": "long"}, {"default": {"k": 5}}),
            ("r", INNER, {"default": {"x": 3, "y": "w"}}),
        ),
        {"a": 1},
    ),
    "promotions": (
        record(
            ("a", "int"), ("b", "int"), ("c", "int"), ("d", "long"), ("e", "long"), ("f", "float")
        ),
        record(
            ("a", "long"),
            ("b", "float"),
            ("c", "double"),
            ("d", "float"),
            ("e", "double"),
            ("f", "double"),
        ),
        {"a": -5, "b": 7, "c": 2**31 - 1, "d": 3, "e": 2**53, "f": 0.5},
    ),
    "text and bytes": (
        record(("a", "string"), ("b", "bytes")),
        record(("a", "bytes"), ("b", "string")),
        {"a": "ä", "b": "ö".encode()},
    ),
    "an alias of a field": (
        record(("old", "long")),
        record(("new", "long", {"aliases": ["older", "old"]})),
        {"old": 1},
    ),
    "a value that may be null now": (
        record(("a", "int"), ("b", "string")),
        record(("a", ["null", "long"]), ("b", ["string", "null"])),
        {"a": 1, "b": "x"},
    ),
    "a value that may not be null any more": (
        record(("a", ["null", "int"])),
        record(("a", "long")),
        {"a": 1},
    ),
    "a null": (record(("a", ["null", "int"])), record(("a", ["long", "null"])), {"a": None}),
    "a union of many": (
        record(("a", ["string", "null", "int", INNER, {"type": "array", "items": "int"}])),
        record(("a", ["null", "long"])),
        {"a": 12},
    ),
    "a union of many that is skipped": (
        record(("u", ["string", INNER, "null", {"type": "map", "values": "int"}]), ("a", "int")),
        record(("a", "int")),
        {"u": {"k": 1, "l": 2}, "a": 5},
    ),
    "a record among others": (
        record(("a", [record(("z", "string"), name="Other"), INNER])),
        record(("a", ["null", record(("y", "string"), name="Inner")])),
        {"a": ("Inner", {"x": 1, "y": "found"})},
    ),
    "what is nested": (
        record(
            ("l", {"type": "array", "items": record(("p", "int"), ("q", "float"), name="Pair")}),
            ("m", {"type": "map", "values": ["null", "int"]}),
        ),
        record(
            ("m", {"type": "map", "values": ["null", "double"]}),
            (
                "l",
                {
                    "type": "array",
                    "items": record(
                        ("q", "double"),
                        ("new", "string", {"default": "-"}),
                        ("p", "long"),
                        name="Pair",
                    ),
                },
            ),
        ),
        {"l": [{"p": 1, "q": 0.5}, {"p": 2, "q": 1.5}], "m": {"a": 1, "b": None}},
    ),
    "a symbol that both have": (
        record(("e", {**ENUM, "symbols": ["blue", "green", "red"]})),
        record(("e", ENUM)),
        {"e": "red"},
    ),
    "a symbol that only the writer has": (
        record(("e", {**ENUM, "symbols": ["blue", "green"]})),
        record(("e", {**ENUM, "default": "green"})),
        {"e": "blue"},
    ),
    "a decimal": (
        record(
            ("x", "int"),
            ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ),
        record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})),
        {"x": 1, "d": Decimal("-12.34")},
    ),
}


@pytest.mark.parametrize("case", RESOLVED)
def test_values_of_another_schema_become_what_fastavro_resolves(case: str) -> None:
    written, reader, value = RESOLVED[case]
    rows, bad = read(reader, {7: written}, [framed(7, written, value)] * 2)
    assert not bad
    assert rows == [by_fastavro(written, reader, value)] * 2


def test_rows_of_several_schemas_keep_their_order() -> None:
    first, second = record(("x", "long"), ("y", "long")), record(("y", "long"), ("x", "long"))
    values = [
        framed(1, first, {"x": 1, "y": 2}),
        None,
        framed(2, second, {"x": 3, "y": 4}),
        b"noise",
        framed(1, first, {"x": 5, "y": 6}),
        framed(9, first, {"x": 7, "y": 8}),
        framed(2, second, {"x": 9, "y": 10})[:-1],
    ]
    rows, bad = read(second, {1: first, 2: second}, values)
    assert [(row["x"], row["y"]) for row in rows] == [
        (1, 2),
        (None, None),
        (3, 4),
        (None, None),
        (5, 6),
        (None, None),
        (None, None),
    ]
    assert list(bad) == [3, 5, 6]
    assert bad[5] == "schema id 9 is not in the registry"
    assert "schema id" in bad[3]
    assert "truncated" in bad[6]


BAD = {
    "a null": (
        record(("a", ["null", "int"])),
        record(("a", "int")),
        {"a": None},
        "the value is null",
    ),
    "a branch": (
        record(("a", ["null", "int", "string"])),
        record(("a", ["null", "int"])),
        {"a": "x"},
        "string of the writer's schema cannot be read as int",
    ),
    "a record of another name": (
        record(("a", [INNER, record(("x", "int"), name="Other")])),
        record(("a", record(("x", "int"), name="Inner"))),
        {"a": ("Other", {"x": 1})},
        "record Other of the writer's schema cannot be read as record Inner",
    ),
    "a symbol": (
        record(("e", {**ENUM, "symbols": ["blue", "red"]})),
        record(("e", ENUM)),
        {"e": "blue"},
        "the symbol is not one of the reader's",
    ),
    "bytes that are no text": (
        record(("a", "bytes")),
        record(("a", "string")),
        {"a": b"\xff"},
        "not valid UTF-8",
    ),
    "a missing field": (
        record(("a", "int")),
        record(("a", "int"), ("b", "int")),
        {"a": 1},
        "field 'b' is not in the writer's schema, and has no default",
    ),
    "a number made smaller": (
        record(("a", "long")),
        record(("a", "int")),
        {"a": 1},
        "field 'a': long of the writer's schema cannot be read as int",
    ),
    "a decimal of another scale": (
        record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3})),
        record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})),
        {"d": Decimal("1.5")},
        "decimal(9,3)",
    ),
    "a bad item": (
        record(("l", {"type": "array", "items": ["null", "int"]})),
        record(("l", {"type": "array", "items": "int"})),
        {"l": [1, None]},
        "the value is null",
    ),
    "a date beyond the years": (
        record(("d", "int")),
        record(("d", {"type": "int", "logicalType": "date"})),
        {"d": 2**31 - 1},
        "does not fit",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_value_that_cannot_be_resolved_spoils_its_own_row_and_says_why(case: str) -> None:
    written, reader, value, reason = BAD[case]
    sound = record(*[(field["name"], field["type"]) for field in reader["fields"]])
    values = [framed(7, written, value), None, framed(7, written, value)]
    rows, bad = read(reader, {7: written, 8: sound}, values)
    assert list(bad) == [0, 2]
    assert reason in bad[0]
    assert rows == [dict.fromkeys(rows[0])] * 3


@pytest.mark.parametrize(
    ("unit", "number"), [("millis", 1_700_000_000_123), ("nanos", 1_700_000_000_123_456_789)]
)
def test_a_time_keeps_its_meaning_in_another_unit(unit: str, number: int) -> None:
    written = record(("t", {"type": "long", "logicalType": f"timestamp-{unit}"}))
    reader = record(("t", {"type": "long", "logicalType": "timestamp-micros"}))
    raw = record(("t", "long"))
    rows, bad = read(reader, {7: written}, [framed(7, raw, {"t": number})])
    assert not bad
    assert rows[0]["t"].timestamp() == pytest.approx(1_700_000_000.123, abs=0.001)


def test_a_schema_that_uses_others_is_read_with_them() -> None:
    outer = {"type": "record", "name": "Order", "fields": [{"name": "i", "type": "Inner"}]}
    whole = record(("i", INNER))
    reader = record(("i", record(("y", "string"), name="Inner")))
    schema = RegisteredSchema("AVRO", json.dumps(outer), (("Inner", json.dumps(INNER)),))
    rows, bad = read(reader, {4: schema}, [framed(4, whole, {"i": {"x": 1, "y": "z"}})])
    assert not bad
    assert rows == [{"i": {"y": "z"}}]


def test_a_schema_of_another_kind_is_named() -> None:
    reader = record(("a", "int"))
    schema = RegisteredSchema("PROTOBUF", 'syntax = "proto3";')
    _, bad = read(reader, {4: schema}, [framed(4, reader, {"a": 1})])
    assert bad == {0: "schema id 4: it is a schema of PROTOBUF, and the topic's values are Avro"}


def test_a_registry_that_is_down_is_an_error_and_no_null() -> None:
    reader = record(("a", "int"))
    registry = KnownSchemas({1: reader}, is_down=True)
    form = AvroFormat(json.dumps(reader), framing=AvroFraming.CONFLUENT, registry=registry)
    values = pa.array([framed(1, reader, {"a": 1})], pa.binary())
    with pytest.raises(Unavailable, match="connection refused"):
        form.decode(values)
    registry.is_down = False
    assert form.decode(values).columns[0].to_pylist() == [1]


def test_an_id_is_asked_for_once() -> None:
    reader = record(("a", "int"))
    registry = KnownSchemas({1: reader})
    form = AvroFormat(json.dumps(reader), framing=AvroFraming.CONFLUENT, registry=registry)
    values = pa.array([framed(1, reader, {"a": 1})] * 3, pa.binary())
    for _ in range(3):
        form.decode(values)
    assert registry.asked == [1]


def test_more_schemas_than_are_kept_compiled_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.formats.avro.avro_format.PROGRAMS_MAX", 2)
    reader = record(("a", "long"))
    written = {one: record(("x", "int"), ("a", "int")) for one in range(5)}
    form = opened(reader, written)
    for ids in ([0], [0, 1], [1, 2, 0], [3, 0, 4]):
        values = [framed(one, written[one], {"x": 9, "a": one}) for one in ids]
        decoded = form.decode(pa.array(values, pa.binary()))
        assert not decoded.bad.size
        assert decoded.columns[0].to_pylist() == ids


SCALARS = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "boolean": st.booleans(),
}
PROMOTED = {
    "int": ("int", "long", "double"),
    "long": ("long", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string", "bytes"),
    "boolean": ("boolean",),
}


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """A written schema, one of a reader that resolves it, and values."""
    names = [f"f{index}" for index in range(draw(st.integers(1, 5)))]
    written, reader, kinds = [], [], {}
    for name in names:
        kind = draw(st.sampled_from(sorted(SCALARS)))
        shape = draw(st.sampled_from(["plain", "null", "list", "union"]))
        other = draw(st.sampled_from(PROMOTED[kind]))
        values = SCALARS[kind]
        if shape == "plain":
            pair = (kind, draw(st.sampled_from([other, ["null", other]])))
        elif shape == "null":
            pair, values = (["null", kind], ["null", other]), st.none() | values
        elif shape == "list":
            pair = ({"type": "array", "items": kind}, {"type": "array", "items": other})
            values = st.lists(values, max_size=3)
        else:
            pair = ([{"type": "map", "values": "int"}, kind, "null"], ["null", other])
            values = st.none() | values
        written.append((name, pair[0]))
        kinds[name] = values
        if draw(st.booleans()):
            reader.append((name, pair[1]))
    reader.append(("added", "long", {"default": 5}))
    records = draw(st.lists(st.fixed_dictionaries(kinds), min_size=1, max_size=6))
    return record(*written), record(*draw(st.permutations(reader))), records


@settings(max_examples=60, deadline=None)
@given(evolutions())
def test_any_evolution_gives_what_fastavro_resolves(
    evolution: tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]],
) -> None:
    written, reader, values = evolution
    rows, bad = read(reader, {7: written}, [framed(7, written, value) for value in values])
    assert not bad
    assert rows == [by_fastavro(written, reader, value) for value in values]
