"""Encoder from columns to batches: the bytes of `build_batch`, by both implementations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import BatchTooLarge, InvalidBatch, RequestError
from millstream.records.arrow import encoder as encoding
from millstream.records.arrow import encoder_vectorized
from millstream.records.arrow.decoder import arrow_batches
from millstream.records.arrow.encoder import (
    RecordColumns,
    encode_batches,
    encode_python,
    next_sequence,
)
from millstream.records.batch import BATCH_SIZE_MAX, HEADER_SIZE, check_batch, decode_header
from millstream.records.build import build_batch
from millstream.records.compression import BODY_SIZE_MAX, Codec
from millstream.records.record import Record
from tests.records.samples import NOW, record_lists

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
LARGE_PAIR = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
IMPLEMENTATIONS = (encode_python, encoder_vectorized.encode)


@pytest.fixture(params=IMPLEMENTATIONS, ids=["plain", "kernels"], autouse=True)
def either_implementation(request, monkeypatch):
    """Run a test with both implementations, even with few rows."""
    monkeypatch.setattr(encoding._ENCODE, "choose", lambda records: request.param)


def columns_of(records, *, is_large=False, before=0, after=0):
    """Return the columns of `records`, as slices of longer ones."""
    other = Record(b"other", b"other", (("other", None),), timestamp_ms=1)
    rows = [other] * before + list(records) + [other] * after
    blob = pa.large_binary() if is_large else pa.binary()
    pairs = pa.large_list(LARGE_PAIR) if is_large else pa.list_(PAIR)
    arrays = (
        pa.array([row.key for row in rows], blob),
        pa.array([row.value for row in rows], blob),
        pa.array([[{"key": k, "value": v} for k, v in row.headers] for row in rows], pairs),
        pa.array([row.timestamp_ms for row in rows], pa.int64()),
    )
    return RecordColumns(*(array.slice(before, len(records)) for array in arrays))


def encode(columns, **options):
    given = {"now_ms": NOW, "size_max": 1000, **options}
    return [(bytes(batch.data), batch.record_count) for batch in encode_batches(columns, **given)]


def values_of(batches):
    data = b"".join(data for data, _ in batches)
    return [row["value"] for batch in arrow_batches(data) for row in batch.to_pylist()]


def outcome(encoder, columns, rows, terms):
    """Return the batches, and the error that ended them."""
    found = []
    try:
        for batch in encoder(columns, rows, terms):
            found.append((bytes(batch.data), batch.record_count))
    except RequestError as error:
        return found, str(error)
    return found, None


@settings(deadline=None, max_examples=150)
@given(record_lists, st.booleans(), st.integers(0, 3), st.integers(0, 3), st.sampled_from(Codec))
def test_a_batch_has_the_bytes_that_build_batch_gives_it(records, is_large, before, after, codec):
    columns = columns_of(records, is_large=is_large, before=before, after=after)
    fields = {
        "producer_id": 7,
        "producer_epoch": 2,
        "base_sequence": 40,
        "is_transactional": True,
        "codec": codec,
    }
    expected = build_batch(records, now_ms=NOW, **fields)
    assert encode(columns, size_max=10**6, **fields) == [(expected, len(records))]


stretched = st.lists(
    st.builds(
        Record,
        value=st.one_of(st.none(), st.integers(0, 400).map(bytes)),
        headers=st.just(()),
        timestamp_ms=st.one_of(
            st.none(), st.integers(NOW, NOW + 300), st.sampled_from([-(2**63), 2**63 - 1])
        ),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=150)
@given(st.one_of(record_lists, stretched), st.integers(1, 900), st.data())
def test_both_implementations_cut_the_same_batches_out_of_the_same_rows(records, size_max, data):
    columns = columns_of(records)
    rows = np.array(data.draw(st.lists(st.integers(0, len(records) - 1), max_size=30)), np.int64)
    terms = encoding.EncodeSettings(NOW, size_max, 1, 1, 2**31 - 5, False, Codec.NONE)
    plain, compiled = (
        outcome(implementation, columns, rows, terms) for implementation in IMPLEMENTATIONS
    )
    assert compiled == plain
    assert sum(count for _, count in plain[0]) == len(rows)


@settings(deadline=None, max_examples=50)
@given(record_lists, st.sampled_from(Codec), st.data())
def test_what_was_written_is_read_back(records, codec, data):
    order = data.draw(st.permutations(range(len(records))))
    rows = np.array(order, np.int64)
    batches = encode(columns_of(records), rows=rows, size_max=100, codec=codec)
    assert values_of(batches) == [records[row].value for row in order]
    for batch, count in batches:
        header = decode_header(batch)
        check_batch(header, batch)
        assert header.record_count == count


def test_batches_are_as_full_as_they_may_be():
    # Two bytes of length, five of small fields, two and eighty of value: 89 bytes a record.
    columns = RecordColumns(value=pa.array([bytes(80)] * 7))
    sizes = [len(data) - HEADER_SIZE for data, _ in encode(columns, size_max=178)]
    assert sizes == [178, 178, 178, 89]
    assert [count for _, count in encode(columns, size_max=177)] == [1] * 7


def test_a_record_over_the_limit_has_a_batch_of_its_own():
    columns = RecordColumns(value=pa.array([b"a", bytes(5000), b"b", b"c"]))
    assert [count for _, count in encode(columns, size_max=100)] == [1, 1, 2]


def test_sequences_count_records_and_start_over_after_the_last():
    columns = RecordColumns(value=pa.array([bytes(80)] * 6))
    batches = encode(columns, size_max=180, producer_id=1, base_sequence=2**31 - 3)
    found = [decode_header(data).base_sequence for data, _ in batches]
    assert found == [2**31 - 3, 2**31 - 1, 1]
    assert next_sequence(1, 2) == 3


def test_without_a_producer_there_are_no_sequences():
    batches = encode(RecordColumns(value=pa.array([bytes(80)] * 4)), size_max=180)
    assert [decode_header(data).base_sequence for data, _ in batches] == [-1, -1]


def test_rows_are_taken_by_number_in_the_given_order_and_as_often():
    columns = RecordColumns(value=pa.array([b"a", b"b", b"c"]))
    assert values_of(encode(columns, rows=np.array([2, 0, 2]))) == [b"c", b"a", b"c"]
    assert encode(columns, rows=np.array([], np.int64)) == []


def test_every_second_number_of_an_array_is_as_good_as_an_array():
    columns = RecordColumns(value=pa.array([b"a", b"b", b"c"]))
    assert values_of(encode(columns, rows=np.array([2, 9, 1, 9, 0])[::2])) == [b"c", b"b", b"a"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_texts_are_written_as_utf8(kind):
    columns = RecordColumns(key=pa.array(["ä", None], kind), value=pa.array([None, "ö"], kind))
    expected = build_batch([Record(None, "ä".encode()), Record("ö".encode(), None)], now_ms=NOW)
    assert encode(columns) == [(expected, 2)]


def test_no_rows_make_no_batches():
    kind = pa.list_(PAIR)
    empty = RecordColumns(value=pa.array([], pa.binary()), headers=pa.array([], kind))
    assert encode(empty) == []


def test_rows_without_a_timestamp_are_of_the_present():
    columns = RecordColumns(value=pa.array([b"a", b"b"]), timestamp=pa.array([None, 5], pa.int64()))
    expected = build_batch([Record(b"a"), Record(b"b", timestamp_ms=5)], now_ms=NOW)
    assert encode(columns) == [(expected, 2)]


def test_a_null_among_lists_of_headers_is_no_headers():
    headers = pa.array([None, [{"key": "h", "value": b"v"}], []], pa.list_(PAIR))
    columns = RecordColumns(value=pa.array([b"a", b"b", b"c"]), headers=headers)
    records = [Record(b"a"), Record(b"b", headers=(("h", b"v"),)), Record(b"c")]
    assert encode(columns) == [(build_batch(records, now_ms=NOW), 3)]


def test_what_lies_behind_a_null_is_not_written():
    pairs = pa.array([{"key": "h", "value": b"v"}] * 2, PAIR)
    is_null = pa.array([True, False])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs, mask=is_null)
    buffers = [pa.py_buffer(b"\x02"), *pa.array([b"abc", b"def"]).buffers()[1:]]
    values = pa.Array.from_buffers(pa.binary(), 2, buffers)
    records = [Record(None), Record(b"def", headers=(("h", b"v"),))]
    expected = build_batch(records, now_ms=NOW)
    assert encode(RecordColumns(value=values, headers=headers)) == [(expected, 2)]


def test_headers_that_lie_in_the_middle_of_others_are_found():
    pairs = pa.array([{"key": str(n), "value": b"%d" % n} for n in range(6)], PAIR).slice(1)
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 3, 5], pa.int32()), pairs).slice(1)
    columns = RecordColumns(value=pa.array([b"a", b"b"]), headers=headers)
    expected = [
        Record(b"a", headers=(("2", b"2"), ("3", b"3"))),
        Record(b"b", headers=(("4", b"4"), ("5", b"5"))),
    ]
    assert encode(columns) == [(build_batch(expected, now_ms=NOW), 2)]


@pytest.mark.parametrize("broken", [{"key": None, "value": b""}, None], ids=["key", "pair"])
def test_a_header_without_a_key_is_refused_by_its_row(broken):
    headers = pa.array([[], [{"key": "", "value": None}], [broken]], pa.list_(PAIR))
    columns = RecordColumns(value=pa.array([b"a", b"b", b"c"]), headers=headers)
    batches = encode_batches(columns, now_ms=NOW, size_max=1000)
    assert next(batches).record_count == 2
    with pytest.raises(InvalidBatch, match=r"header must have a key, .* got none in row 2"):
        next(batches)


def test_a_row_that_no_batch_can_hold_is_refused_with_its_number_and_both_sizes():
    size = 65 * 1024 * 1024
    columns = RecordColumns(value=pa.array([b"small", bytes(size)]))
    batches = encode_batches(columns, now_ms=NOW, size_max=1000)
    assert next(batches).record_count == 1
    limit = BATCH_SIZE_MAX - HEADER_SIZE
    with pytest.raises(BatchTooLarge, match=rf"at most {limit} bytes, got {size + 13} in row 1"):
        next(batches)


def test_a_large_row_is_written_where_packing_makes_it_small():
    columns = RecordColumns(value=pa.array([bytes(63 * 1024 * 1024)]))
    ((data, _),) = encode(columns, codec=Codec.ZSTD)
    assert len(data) < 100_000


def test_a_row_that_would_unpack_to_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(encoding, "BODY_SIZE_MAX", 5000)
    with pytest.raises(BatchTooLarge, match="at most 5000 bytes"):
        encode(RecordColumns(value=pa.array([bytes(6000)])), codec=Codec.ZSTD)
    assert BODY_SIZE_MAX > 5000


def test_many_small_batches_come_out_in_order():
    columns = RecordColumns(value=pa.array([b"%d" % number for number in range(3000)]))
    batches = encode(columns, size_max=1)
    assert [count for _, count in batches] == [1] * 3000
    assert values_of(batches) == columns.value.to_pylist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "at least one column"),
        ({"key": ["a"], "value": ["a", "b"]}, r"same number of rows, got \{'key': 1, 'value': 2\}"),
        ({"value": [1]}, "column value must be binary or string, got int64"),
        ({"value": ["a"], "timestamp": [1.5]}, "column timestamp must be int64, got double"),
        ({"value": ["a"], "headers": [["h"]]}, "column headers must be .*, got list<item: string>"),
        ({"value": ["a"], "headers": ["h"]}, "column headers must be .*, got string"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_at_once(arrays, message):
    with pytest.raises(RequestError, match=message):
        RecordColumns(**{name: pa.array(array) for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size_max": 0}, "size_max must be between 1 and .*, got 0"),
        ({"size_max": BATCH_SIZE_MAX}, "size_max must be between 1 and 67108803, got 67108864"),
        ({"base_sequence": 2**31}, "base_sequence must be between .* got 2147483648"),
        ({"now_ms": 2**63}, "now_ms must fit into 64 bits"),
        ({"rows": np.array([0, 2])}, "rows must be between 0 and 1, got 0 to 2"),
        ({"rows": np.array([-1])}, "rows must be between 0 and 1, got -1 to -1"),
        ({"rows": np.array([0.5])}, "rows must be int64, got float64"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options, message):
    with pytest.raises(RequestError, match=message):
        encode_batches(
            RecordColumns(value=pa.array(["a", "b"])),
            **{"now_ms": NOW, "size_max": 1000, **options},
        )


def test_a_producer_that_does_not_fit_its_field_is_refused():
    with pytest.raises(InvalidBatch, match="field of a record cannot be encoded"):
        encode(RecordColumns(value=pa.array(["a"])), producer_epoch=2**15)
