"""Typed columns beside the columns of every topic, and the handling of bad records."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import BadRecord, InvalidConfig, InvalidRecord, InvalidRequest
from millstream.formats.dead_letters import ERROR_HEADER, ORIGIN_HEADER, with_headers
from millstream.formats.declaration import choose_format
from millstream.formats.typed_batch import (
    BadRecords,
    OnBadRecord,
    applied_fields,
    apply_format,
    bad_records_from,
)
from millstream.formats.typed_columns import encode_values, typed_fields
from millstream.formats.value_format import RawFormat
from millstream.records.arrow.decoder import column_schema
from millstream.records.topic_partition import TopicPartition

ORIGIN = TopicPartition("orders", 3)
JSON = choose_format({"valueFormat": "json", "valueSchema": "id BIGINT, name STRING"}, {})


def batch(*values: bytes | None, first: int = 100) -> pa.RecordBatch:
    rows = [
        {
            "offset": first + row,
            "timestamp": 1000 + row,
            "key": None if row == 0 else b"k%d" % row,
            "value": value,
            "headers": [{"key": "h", "value": None}] * row,
        }
        for row, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, column_schema())


GOOD, BAD = b'{"id":7,"name":"x"}', b'{"id":"7"}'


def test_typed_columns_stand_behind_those_of_the_batch():
    given_ = batch(GOOD, None)
    records, letters = apply_format(given_, JSON, origin=ORIGIN)
    assert letters is None
    assert records.schema.names == [*given_.schema.names, "id", "name"]
    assert records.select(given_.schema.names) == given_
    assert records.column("id").to_pylist() == [7, None]
    assert list(records.schema)[-2:] == applied_fields(JSON)


def test_raw_values_bring_no_columns():
    assert apply_format(batch(GOOD, BAD), RawFormat(), origin=ORIGIN) == (batch(GOOD, BAD), None)


def test_a_bad_record_fails_the_query_with_its_place_and_what_is_wrong():
    with pytest.raises(BadRecord) as failed:
        apply_format(batch(GOOD, BAD, BAD), JSON, origin=ORIGIN)
    assert str(failed.value) == (
        "topic 'orders', partition 3, offset 101: field id (int64): the value is not of the"
        " declared type at byte 6, and 1 more in the batch"
    )


def test_a_bad_record_stays_with_nulls_and_why():
    records, letters = apply_format(batch(GOOD, BAD, None), JSON, OnBadRecord.NULL, origin=ORIGIN)
    assert letters is None
    assert records.num_rows == 3
    assert records.column("value").to_pylist() == [GOOD, BAD, None]
    assert records.column("id").to_pylist() == [7, None, None]
    assert [error is None for error in records.column("_error").to_pylist()] == [True, False, True]
    assert "not of the declared type" in records.column("_error")[1].as_py()
    assert list(records.schema)[-3:] == applied_fields(JSON, OnBadRecord.NULL)


def test_nothing_bad_is_all_null_in_the_column_of_errors():
    records, _ = apply_format(batch(GOOD, GOOD), JSON, OnBadRecord.NULL, origin=ORIGIN)
    assert records.column("_error").null_count == 2


def test_a_dead_letter_is_its_record_with_two_more_headers():
    records, letters = apply_format(
        batch(GOOD, BAD, GOOD, b"{"), JSON, OnBadRecord.DEAD_LETTER, origin=ORIGIN
    )
    assert records.column("offset").to_pylist() == [100, 102]
    assert records.column("id").to_pylist() == [7, 7]
    assert letters is not None
    own = {"key": "h", "value": None}
    found = letters.to_pylist()
    errors = [row["headers"].pop() for row in found]
    assert found == [
        {
            "timestamp": 1001,
            "key": b"k1",
            "value": BAD,
            "headers": [own, {"key": ORIGIN_HEADER, "value": b"orders-3-101"}],
        },
        {
            "timestamp": 1003,
            "key": b"k3",
            "value": b"{",
            "headers": [own] * 3 + [{"key": ORIGIN_HEADER, "value": b"orders-3-103"}],
        },
    ]
    assert [error["key"] for error in errors] == [ERROR_HEADER] * 2
    assert errors[1]["value"] == b"the value is truncated at byte 1"


def test_without_bad_records_there_are_no_dead_letters():
    records, letters = apply_format(batch(GOOD), JSON, OnBadRecord.DEAD_LETTER, origin=ORIGIN)
    assert (records.num_rows, letters) == (1, None)


def test_dead_letters_need_all_of_a_record():
    part = batch(BAD).select(["offset", "value", "timestamp"])
    with pytest.raises(
        InvalidRequest, match="require the columns key, headers, which were not read"
    ):
        apply_format(part, JSON, OnBadRecord.DEAD_LETTER, origin=ORIGIN)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([GOOD, BAD, None, b"", b"{}"]), max_size=20))
def test_every_record_is_either_kept_or_a_letter(values):
    records, letters = apply_format(batch(*values), JSON, OnBadRecord.DEAD_LETTER, origin=ORIGIN)
    is_bad = [value in (BAD, b"") for value in values]
    assert records.column("offset").to_pylist() == [
        100 + row for row, bad in enumerate(is_bad) if not bad
    ]
    sent = [] if letters is None else [dict_of(row)[ORIGIN_HEADER] for row in letters.to_pylist()]
    assert sent == [b"orders-3-%d" % (100 + row) for row, bad in enumerate(is_bad) if bad]


def dict_of(row: dict[str, Any]) -> dict[str, bytes]:
    return {header["key"]: header["value"] for header in row["headers"]}


def test_headers_are_added_to_a_part_of_a_column_and_to_none_at_all():
    headers = batch(GOOD, GOOD, GOOD, GOOD).column("headers").slice(1, 2)
    found = with_headers(headers, {"a": pa.array([b"1", b"2"]), "b": pa.array([b"3", None])})
    names = ["".join(pair["key"] for pair in row) for row in found.to_pylist()]
    assert names == ["hab", "hhab"]
    assert [row[-1]["value"] for row in found.to_pylist()] == [b"3", None]


# Options.


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, BadRecords(OnBadRecord.FAIL)),
        ({"onBadRecord": "null"}, BadRecords(OnBadRecord.NULL)),
        (
            {"onbadrecord": "DEADLETTER", "deadlettertopic": "dead"},
            BadRecords(OnBadRecord.DEAD_LETTER, "dead"),
        ),
    ],
)
def test_options_say_what_becomes_of_bad_records(options, found):
    assert bad_records_from(options) == found


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"onBadRecord": "drop"}, "onBadRecord must be one of fail, deadLetter, null, got 'drop'"),
        (
            {"onBadRecord": "deadLetter"},
            "must be set if, and only if, onBadRecord is deadLetter.* deadLetterTopic None",
        ),
        ({"deadLetterTopic": "dead"}, "got onBadRecord fail and deadLetterTopic 'dead'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, why):
    with pytest.raises(InvalidConfig, match=why):
        bad_records_from(options)


@pytest.mark.parametrize("name", ["key", "Timestamp", "timestamptype", "_error"])
def test_a_field_with_the_name_of_a_usual_column_needs_a_prefix(name):
    clash = choose_format({"valueFormat": "json", "valueSchema": f"`{name}` INT"}, {})
    with pytest.raises(InvalidConfig, match=r"set the option valuePrefix \(now ''\)"):
        typed_fields(clash)
    prefix = "v_"
    assert [field.name for field in typed_fields(clash, prefix=prefix)] == [f"v_{name}"]
    value = json.dumps({name: 5}).encode()
    records, _ = apply_format(batch(value), clash, origin=ORIGIN, prefix=prefix)
    assert records.column(f"v_{name}").to_pylist() == [5]
    assert encode_values(records, clash, prefix=prefix).to_pylist() == [value.replace(b" ", b"")]


def test_names_that_only_differ_in_capitals_are_refused():
    clash = choose_format({"valueFormat": "json", "valueSchema": "a INT, A INT"}, {})
    with pytest.raises(InvalidConfig, match="typed column 'A' has the name of another column"):
        typed_fields(clash)


# The way back.


def test_values_are_made_of_the_typed_columns_by_their_names():
    rows = pa.RecordBatch.from_pydict(
        {"other": [1, 2], "name": ["x", None], "id": pa.array([1, 2], pa.int32())}
    )
    assert encode_values(rows, JSON).to_pylist() == [b'{"id":1,"name":"x"}', b'{"id":2}']
    assert encode_values(rows.select(["name"]), JSON).to_pylist() == [b'{"name":"x"}', b"{}"]


def test_a_column_that_would_change_by_its_conversion_is_refused():
    rows = pa.RecordBatch.from_pydict({"id": [1.5]})
    with pytest.raises(InvalidRecord, match="column 'id' must be of type int64, got double"):
        encode_values(rows, JSON)
