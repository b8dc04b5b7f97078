"""Search for records without a key, by the kernel and by plain Python."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.arrow.decoder_vectorized import keyless_records as find_compiled
from millstream.records.batch import decode_header
from millstream.records.body import open_body
from millstream.records.build import build_batch
from millstream.records.compression import BODY_SIZE_MAX, Codec
from millstream.records.filter.keys import keyless
from millstream.records.filter.keys.keyless import (
    KERNEL_RECORDS_MIN,
    keyless_records,
    keyless_records_python,
)
from millstream.records.record import Record
from tests.records.samples import GOLDEN, GOLDEN_BODY, NOW, assemble, record_lists

KEYED, KEYLESS = Record(b"v", key=b"k"), Record(b"v")


def outcome(find, batch):
    """Return the result of a search for three: their indexes, or that it raised."""
    try:
        header = decode_header(batch)
        return find(header, open_body(header, batch, size_max=BODY_SIZE_MAX), 3)
    except CorruptBatch:
        return "refused"


def assert_same(batch):
    expected = outcome(keyless_records_python, batch)
    assert outcome(find_compiled, batch) == expected
    return expected


@pytest.fixture(params=["kernels", "plain python"])
def either_search(request, monkeypatch):
    """Run a test with and without Numba, even with a small batch."""
    monkeypatch.setattr(keyless, "KERNEL_RECORDS_MIN", 0)
    if request.param == "plain python":
        monkeypatch.setitem(sys.modules, "millstream.records.arrow.decoder_vectorized", None)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    ("records", "indexes"),
    [
        ([KEYED], []),
        ([KEYLESS], [0]),
        ([KEYED, KEYED, KEYLESS, KEYED, KEYLESS], [2, 4]),
        ([KEYED] * 5 + [KEYLESS], [5]),
        ([Record(b"v", key=b"")], []),
        ([Record(None, key=b"k"), Record(None)], [1]),
    ],
)
@pytest.mark.usefixtures("either_search")
def test_every_record_without_a_key_is_found(records, indexes, codec):
    assert keyless_records(build_batch(records, now_ms=NOW, codec=codec)) == indexes


@pytest.mark.usefixtures("either_search")
def test_no_more_are_returned_than_the_limit():
    assert keyless_records(build_batch([KEYLESS] * 5, now_ms=NOW), limit=2) == [0, 1]


@pytest.mark.parametrize("count", [KERNEL_RECORDS_MIN - 1, KERNEL_RECORDS_MIN, 5_000])
def test_large_batches_are_searched_like_small_ones(count):
    records = [KEYED] * count
    assert keyless_records(build_batch(records, now_ms=NOW)) == []
    records[count - 1] = KEYLESS
    assert keyless_records(build_batch(records, now_ms=NOW)) == [count - 1]


@settings(deadline=None, max_examples=200)
@given(record_lists, st.sampled_from(Codec))
def test_kernel_and_plain_python_agree_on_every_batch(records, codec):
    batch = build_batch(records, now_ms=NOW, codec=codec)
    expected = [n for n, record in enumerate(records) if record.key is None]
    assert assert_same(batch) == expected[:3]


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(GOLDEN_BODY) - 1), st.integers(1, 255), st.integers(0, 4))
def test_kernel_and_plain_python_refuse_the_same(position, flip, count):
    body = bytearray(GOLDEN_BODY)
    body[position] ^= flip
    assert_same(assemble(bytes(body), record_count=count, last_offset_delta=max(0, count - 1)))


def test_what_lies_behind_the_first_keyless_record_is_checked_too():
    broken = assemble(GOLDEN_BODY[:-1] + b"\x01")
    assert assert_same(broken) == "refused"
    assert keyless_records(GOLDEN) == [1]


@pytest.mark.usefixtures("either_search")
def test_a_batch_that_unpacks_to_more_than_allowed_is_refused():
    bomb = build_batch([Record(bytes(10_000_000), key=b"k")], now_ms=NOW, codec=Codec.ZSTD)
    assert len(bomb) < 10_000
    with pytest.raises(CorruptBatch, match="decompresses to more than 100000 bytes"):
        keyless_records(bomb, size_max=100_000)
    assert keyless_records(bomb) == []


@pytest.mark.usefixtures("either_search")
def test_a_batch_without_records_has_none_without_a_key():
    assert keyless_records(assemble(b"", record_count=0, last_offset_delta=4)) == []
