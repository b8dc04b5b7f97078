"""Decoder from batches to columns: its interface, and its behaviour without optional packages."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from millstream.errors import CorruptBatch, RequestError
from millstream.records.arrow import decoder, decoder_vectorized
from millstream.records.arrow.decoder import ALL_COLUMNS, COLUMNS, arrow_batches, column_schema
from millstream.records.batch import CONTROL_BIT, TIMESTAMP_TYPE_BIT, split, stamp
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.kernels import dispatch
from millstream.records.kernels.dispatch import KernelDispatch
from millstream.records.record import Record
from tests.records.samples import GOLDEN, GOLDEN_BODY, GOLDEN_RECORDS, NOW, assemble

GOLDEN_ROWS = [
    {
        "offset": 0,
        "timestamp": 1000,
        "key": b"k",
        "value": b"hello",
        "headers": [{"key": "h", "value": b"v"}],
    },
    {"offset": 1, "timestamp": 990, "key": None, "value": None, "headers": []},
]
MARKER = assemble(GOLDEN_BODY, attributes=CONTROL_BIT)


def rows(data, **options):
    return pa.Table.from_batches(arrow_batches(data, **options), column_schema()).to_pylist()


def offsets(data, **options):
    found = arrow_batches(data, columns=("offset",), **options)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def numbered(batches, *, codec=Codec.NONE):
    """Return batches of four records each, whose values are their offsets."""
    data = b""
    for base in range(0, 4 * batches, 4):
        records = [Record(b"%d" % number) for number in range(base, base + 4)]
        data += stamp(
            build_batch(records, now_ms=NOW, codec=codec), base_offset=base, leader_epoch=0
        )
    return data


def build_records(records):
    """Return the bytes of each record."""
    body = build_batch(records, now_ms=NOW)[61:]
    size = len(body) // len(records)
    return [body[start : start + size] for start in range(0, len(body), size)]


@pytest.fixture(params=["kernels", "plain python"])
def either_decoder(request, monkeypatch):
    """Run a test with and without Numba, even with few records."""
    if request.param == "plain python":
        hide(monkeypatch, "numba")
    else:
        monkeypatch.setattr(decoder._DECODE, "choose", lambda records: decoder_vectorized.decode)


def hide(monkeypatch, package):
    """Make `import package` fail, also inside modules that had been imported with it."""
    monkeypatch.setitem(sys.modules, package, None)
    for module in (
        "millstream.records.arrow.decoder_vectorized",
        "millstream.records.kernels.decode_kernels",
        "millstream.records.kernels.compiler",
    ):
        monkeypatch.delitem(sys.modules, module, raising=False)
    fresh = KernelDispatch(decoder.decode_python, decoder._compiled)
    monkeypatch.setattr(decoder, "_DECODE", fresh)
    monkeypatch.setattr(dispatch, "_LOAD_RECORDS", 0)
    monkeypatch.setattr(dispatch, "_CALL_RECORDS", 0)


@pytest.mark.usefixtures("either_decoder")
class TestWithAndWithoutNumba:
    def test_a_batch_written_by_hand_becomes_rows(self):
        assert rows(GOLDEN) == GOLDEN_ROWS

    def test_columns_have_the_promised_types(self):
        (batch,) = arrow_batches(GOLDEN)
        assert batch.schema == pa.schema(
            [
                ("offset", pa.int64()),
                ("timestamp", pa.int64()),
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        )
        batch.validate(full=True)

    @pytest.mark.parametrize("asked", [("value",), ("headers", "offset"), ("key", "timestamp")])
    def test_only_the_asked_columns_come_back_in_the_asked_order(self, asked):
        (batch,) = arrow_batches(GOLDEN, columns=asked)
        assert batch.to_pylist() == [{name: row[name] for name in asked} for row in GOLDEN_ROWS]
        assert batch.schema.names == list(asked)

    def test_nothing_becomes_nothing(self):
        assert list(arrow_batches(b"")) == []

    def test_control_and_empty_batches_leave_no_rows(self):
        empty = assemble(b"", record_count=0)
        assert list(arrow_batches(MARKER + empty)) == []
        assert rows(empty + MARKER + GOLDEN + MARKER + empty) == GOLDEN_ROWS

    def test_packed_and_unpacked_batches_mix(self):
        batches = [build_batch(GOLDEN_RECORDS, now_ms=NOW, codec=codec) for codec in Codec]
        data = b"".join(stamp(b, base_offset=2 * i, leader_epoch=0) for i, b in enumerate(batches))
        expected = [
            row | {"offset": row["offset"] + 2 * i} for i in range(5) for row in GOLDEN_ROWS
        ]
        assert rows(data) == expected

    def test_a_wrong_sum_is_found_unless_told_not_to_look(self):
        damaged = bytearray(GOLDEN)
        damaged[17] ^= 1
        with pytest.raises(CorruptBatch, match="batch checksum is"):
            rows(damaged)
        assert rows(damaged, check=False) == GOLDEN_ROWS

    def test_a_body_over_the_limit_is_refused(self):
        batch = build_batch([Record(bytes(10_000))], now_ms=NOW, codec=Codec.ZSTD)
        with pytest.raises(CorruptBatch, match="more than 5000 bytes"):
            rows(batch, size_max=5000)

    def test_a_broken_record_is_refused(self):
        with pytest.raises(CorruptBatch):
            rows(GOLDEN + assemble(GOLDEN_BODY[:-1] + b"\x02"))

    def test_a_header_key_that_is_not_utf8_is_mended(self):
        body = bytes.fromhex("12 00 00 00 01 01 02 02ff 01")
        found = rows(assemble(body, record_count=1))
        assert found[0]["headers"] == [{"key": "\ufffd", "value": None}]

    def test_output_is_split_before_a_column_could_overflow(self, monkeypatch):
        monkeypatch.setattr(decoder, "_GROUP_SIZE_MAX", 2 * len(GOLDEN_BODY))
        assert [batch.num_rows for batch in arrow_batches(GOLDEN * 5)] == [4, 4, 2]

    @pytest.mark.parametrize("columns", [("offset",), ("value", "offset"), ("value",), ()])
    @pytest.mark.parametrize(
        ("start", "end"),
        [
            (None, None),
            (0, 12),
            (3, None),
            (None, 7),
            (4, 8),
            (5, 6),
            (7, 9),
            (6, 6),
            (8, 2),
            (12, 99),
        ],
    )
    def test_records_outside_the_bounds_are_left_out(self, start, end, columns):
        expected = range(12)[slice(start, end)]
        found = list(arrow_batches(numbered(3), columns=columns, start=start, end=end))
        assert sum(batch.num_rows for batch in found) == len(expected)
        for column in columns:
            values = [value for batch in found for value in batch.column(column).to_pylist()]
            assert values == [
                offset if column == "offset" else b"%d" % offset for offset in expected
            ]

    def test_bounds_make_no_more_arrow_batches(self):
        found = arrow_batches(numbered(3), columns=("offset",), start=3, end=9)
        assert [batch.num_rows for batch in found] == [6]

    def test_bounds_hold_for_each_batch_whatever_the_order_of_batches(self):
        first, second, third = (bytes(batch) for _, batch in split(numbered(3)))
        assert offsets(third + first + second, start=3, end=9) == [8, 3, 4, 5, 6, 7]
        assert offsets(second + first + third, start=3, end=9) == [4, 5, 6, 7, 3, 8]

    def test_bounds_find_their_place_in_a_batch_with_gaps(self):
        first, second = build_records([Record(b"a"), Record(b"b")])
        sparse = assemble(first + second, last_offset_delta=9, record_count=2)
        assert offsets(sparse, start=1, end=9) == [1]
        assert offsets(sparse, start=2, end=9) == []

    def test_batches_outside_the_bounds_are_not_unpacked(self):
        first, *others = (bytes(batch) for _, batch in split(numbered(3, codec=Codec.ZSTD)))
        damaged = b"".join((first[:61], bytes(len(first) - 61), *others))
        assert offsets(damaged, start=4, end=8, check=False) == [4, 5, 6, 7]
        with pytest.raises(CorruptBatch):
            offsets(damaged, start=3, end=8, check=False)

    def test_a_batch_is_wanted_or_not_by_its_header(self):
        assert offsets(numbered(3), is_wanted=lambda header: header.base_offset != 4) == [
            *range(4),
            *range(8, 12),
        ]

    def test_every_header_is_shown_once_and_in_order_also_outside_the_bounds(self):
        seen = []
        data = numbered(2) + stamp(MARKER, base_offset=8, leader_epoch=0)
        assert offsets(data, start=5, is_wanted=lambda h: seen.append(h.base_offset)) == []
        assert seen == [0, 4, 8]

    def test_a_batch_that_is_not_wanted_must_be_sound_too(self):
        damaged = bytearray(MARKER)
        damaged[-1] ^= 1
        with pytest.raises(CorruptBatch, match="batch checksum is"):
            offsets(damaged)

    def test_control_batches_can_be_asked_for(self):
        assert offsets(MARKER, is_wanted=lambda header: True) == [0, 1]

    def test_who_dated_a_record_can_be_asked_for(self):
        data = GOLDEN + assemble(GOLDEN_BODY, attributes=TIMESTAMP_TYPE_BIT) + GOLDEN
        (batch,) = arrow_batches(data, columns=("timestamp_type", "offset"))
        assert batch.column("timestamp_type").to_pylist() == [0, 0, 1, 1, 0, 0]
        assert batch.schema.field("timestamp_type").type == pa.int32()

    def test_without_columns_there_are_rows_with_nothing_in_them(self):
        (batch,) = arrow_batches(GOLDEN + MARKER + GOLDEN, columns=())
        assert (batch.num_rows, batch.num_columns) == (4, 0)
        assert batch.schema == column_schema(())

    def test_rows_are_counted_without_unpacking_records(self):
        packed = assemble(b"not zstd", attributes=Codec.ZSTD)
        assert [batch.num_rows for batch in arrow_batches(packed, columns=())] == [2]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_kind_of_buffer_is_read(self, kind):
        assert rows(kind(GOLDEN)) == GOLDEN_ROWS


def test_the_kernels_say_where_a_record_is_broken(monkeypatch):
    monkeypatch.setattr(decoder._DECODE, "choose", lambda records: decoder_vectorized.decode)
    broken = stamp(assemble(GOLDEN_BODY[:-1] + b"\x02"), base_offset=7, leader_epoch=0)
    with pytest.raises(CorruptBatch, match="batch at offset 7: malformed record at byte 17"):
        rows(GOLDEN + broken)


def test_what_arrow_cannot_count_is_refused_whatever_the_caller_allows(monkeypatch):
    monkeypatch.setattr(decoder, "_ARROW_SIZE_MAX", 5000)
    batch = build_batch([Record(bytes(10_000))], now_ms=NOW, codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch, match="more than 5000 bytes"):
        rows(batch, size_max=2**40)


@pytest.mark.parametrize("asked", [("offset", "offset"), ("offset", "colour")])
def test_columns_that_do_not_exist_are_refused_at_once(asked):
    with pytest.raises(RequestError, match="each at most once"):
        arrow_batches(GOLDEN, columns=asked)


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch):
    hide(monkeypatch, "pyarrow")
    with pytest.raises(RequestError, match=r"install millstream\[arrow\]"):
        arrow_batches(GOLDEN)


def test_without_numpy_the_plain_decoder_steps_in(monkeypatch):
    expected = rows(GOLDEN)
    hide(monkeypatch, "numpy")
    assert [row for batch in arrow_batches(GOLDEN) for row in batch.to_pylist()] == expected


def test_five_columns_come_unasked_and_one_more_when_asked():
    assert COLUMNS == ("offset", "timestamp", "key", "value", "headers")
    assert (*COLUMNS, "timestamp_type") == ALL_COLUMNS
