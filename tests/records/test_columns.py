"""Batch to columns: the public face, and what happens where an extra is missing."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from millstream.errors import CorruptBatch, RequestError
from millstream.records import columns
from millstream.records.batch import CONTROL_BIT, stamp
from millstream.records.build import build_batch
from millstream.records.columns import COLUMNS, arrow_batches, column_schema
from millstream.records.compression import Codec
from millstream.records.record import Record

from .samples import GOLDEN, GOLDEN_BODY, GOLDEN_RECORDS, NOW, assemble

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


@pytest.fixture(params=["kernels", "plain python"])
def either_decoder(request, monkeypatch):
    """Runs a test with and without Numba."""
    if request.param == "plain python":
        hide(monkeypatch, "numba")


def hide(monkeypatch, package):
    """Make `import package` fail, also inside modules that had been imported with it."""
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("millstream.records.vectors", "millstream.records.kernels"):
        monkeypatch.delitem(sys.modules, module, raising=False)


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
        with pytest.raises(CorruptBatch, match="batch sums to"):
            rows(damaged)
        assert rows(damaged, check=False) == GOLDEN_ROWS

    def test_a_body_over_the_limit_is_refused(self):
        batch = build_batch([Record(bytes(10_000))], now_ms=NOW, codec=Codec.ZSTD)
        with pytest.raises(CorruptBatch, match="over 5000 bytes"):
            rows(batch, size_max=5000)

    def test_a_broken_record_is_refused(self):
        with pytest.raises(CorruptBatch):
            rows(GOLDEN + assemble(GOLDEN_BODY[:-1] + b"\x02"))

    def test_a_header_key_that_is_not_utf8_is_mended(self):
        body = bytes.fromhex("12 00 00 00 01 01 02 02ff 01")
        found = rows(assemble(body, record_count=1))
        assert found[0]["headers"] == [{"key": "\ufffd", "value": None}]

    def test_output_is_split_before_a_column_could_overflow(self, monkeypatch):
        monkeypatch.setattr(columns, "_GROUP_SIZE_MAX", 2 * len(GOLDEN_BODY))
        assert [batch.num_rows for batch in arrow_batches(GOLDEN * 5)] == [4, 4, 2]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_kind_of_buffer_is_read(self, kind):
        assert rows(kind(GOLDEN)) == GOLDEN_ROWS


def test_the_kernels_say_where_a_record_is_broken():
    broken = stamp(assemble(GOLDEN_BODY[:-1] + b"\x02"), base_offset=7, leader_epoch=0)
    with pytest.raises(CorruptBatch, match="batch at offset 7: broken record at byte 17"):
        rows(GOLDEN + broken)


def test_what_arrow_cannot_count_is_refused_whatever_the_caller_allows(monkeypatch):
    monkeypatch.setattr(columns, "_ARROW_SIZE_MAX", 5000)
    batch = build_batch([Record(bytes(10_000))], now_ms=NOW, codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch, match="over 5000 bytes"):
        rows(batch, size_max=2**40)


@pytest.mark.parametrize("asked", [(), ("offset", "offset"), ("offset", "colour")])
def test_columns_that_do_not_exist_are_refused_at_once(asked):
    with pytest.raises(RequestError, match="allowed is each once of"):
        arrow_batches(GOLDEN, columns=asked)


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch):
    hide(monkeypatch, "pyarrow")
    with pytest.raises(RequestError, match=r"pip install millstream\[arrow\]"):
        arrow_batches(GOLDEN)


def test_without_numpy_the_plain_decoder_steps_in(monkeypatch):
    expected = rows(GOLDEN)
    hide(monkeypatch, "numpy")
    assert [row for batch in arrow_batches(GOLDEN) for row in batch.to_pylist()] == expected


def test_there_are_five_columns():
    assert COLUMNS == ("offset", "timestamp", "key", "value", "headers")
