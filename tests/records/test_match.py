"""Matching of records by key, text, field and time."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from millstream.errors import InvalidRequest
from millstream.records.match import FieldMatcher, RecordMatcher
from millstream.records.record import StoredRecord

VALUE = {
    "n": 5,
    "f": 5.0,
    "text": "5",
    "yes": True,
    "one": 1,
    "none": None,
    "a.b": "dotted",
    "deep": {"list": [{"name": "x"}, "y"], "/~": "escaped"},
}


@pytest.mark.parametrize(
    ("path", "value", "is_found"),
    [
        ("n", None, True),
        ("missing", None, False),
        ("n", "5", True),
        ("n", "5.0", True),
        ("n", "6", False),
        ("f", "5", True),
        ("text", "5", True),
        ("yes", "true", True),
        ("yes", "1", False),
        ("one", "true", False),
        ("none", "null", True),
        ("none", "", False),
        ("deep.list.0.name", "x", True),
        ("deep.list.1", "y", True),
        ("deep.list.2", None, False),
        ("deep.list.-1", None, False),
        ("deep.list.name", None, False),
        ("n.m", None, False),
        ("/a.b", "dotted", True),
        ("/deep/list/0/name", "x", True),
        ("/deep/~1~0", "escaped", True),
    ],
)
@pytest.mark.parametrize(
    ("kind", "encode"), [("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)]
)
def test_a_field_is_found_by_its_path_and_value(
    kind: str, encode: Any, path: str, value: str | None, is_found: bool
) -> None:
    assert FieldMatcher(path, value, value_format=kind)(encode(VALUE)) is is_found


@pytest.mark.parametrize("value", [None, b"", b"no json", b"\xff", b"[" * 100_000, b"7"])
def test_a_value_that_is_no_object_has_no_fields(value: bytes | None) -> None:
    assert not FieldMatcher("n", None)(value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a..b", "field must be names separated by dots, got 'a..b'"),
        (".".join("a" * 33), "field must have at most 32 names, got 33"),
    ],
)
def test_a_path_that_names_no_field_is_refused(path: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        FieldMatcher(path, None)


def record(**fields: Any) -> StoredRecord:
    value = json.dumps({"city": "Köln"}, ensure_ascii=False).encode()
    found = {"offset": 7, "timestamp_ms": 100, "key": b"k-1", "value": value, **fields}
    return StoredRecord(headers=(("trace", b"t-9"),), **found)


@pytest.mark.parametrize(
    ("conditions", "is_found"),
    [
        ({}, True),
        ({"key": b"k-1"}, True),
        ({"key": b"k-"}, False),
        ({"key_prefix": b"k-"}, True),
        ({"key_prefix": b"x"}, False),
        ({"text": "Köl".encode()}, True),
        ({"text": b"k-1"}, True),
        ({"text": b"t-9"}, True),
        ({"text": b"trace"}, True),
        ({"text": b"nowhere"}, False),
        ({"from_ms": 100, "to_ms": 101}, True),
        ({"from_ms": 101}, False),
        ({"to_ms": 100}, False),
        ({"key": b"k-1", "field": FieldMatcher("city", "Köln")}, True),
        ({"key": b"other", "field": FieldMatcher("city", "Köln")}, False),
    ],
)
def test_a_record_has_to_meet_all_conditions(conditions: dict[str, Any], is_found: bool) -> None:
    assert RecordMatcher(**conditions)(record()) is is_found


def test_a_record_without_key_and_value_matches_no_text() -> None:
    assert not RecordMatcher(text=b"x")(record(key=None, value=None))
    assert not RecordMatcher(key=b"")(record(key=None, value=None))
    assert not RecordMatcher(key_prefix=b"x")(record(key=None, value=None))
