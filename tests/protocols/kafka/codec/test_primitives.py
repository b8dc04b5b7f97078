"""Unsigned varints: sizes, counts and tags of flexible versions."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.codec.primitives import encode_uvarint, read_uvarint

# By hand: seven bits at a time, lowest first.
GOLDEN = {
    0: "00",
    127: "7f",
    128: "8001",
    300: "ac02",
    2**14 - 1: "ff7f",
    2**14: "808001",
    2**32 - 1: "ffffffff0f",
}


@pytest.mark.parametrize("number", GOLDEN)
def test_numbers_match_the_bytes_worked_out_by_hand(number):
    data = bytes.fromhex(GOLDEN[number])
    assert encode_uvarint(number) == data
    assert read_uvarint(data, 0) == (number, len(data))


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3), st.binary(max_size=3))
@example(1023, b"", b"")
@example(1024, b"", b"")
def test_a_number_is_read_back_wherever_it_lies(number, before, after):
    encoded = encode_uvarint(number)
    end = len(before) + len(encoded)
    assert read_uvarint(before + encoded + after, len(before)) == (number, end)


@pytest.mark.parametrize("data", ["8000", "808000", "8080808000"])
def test_needless_zeros_are_read_as_kafka_reads_them(data):
    assert read_uvarint(bytes.fromhex(data), 0) == (0, len(data) // 2)


def test_a_number_of_more_than_32_bits_is_refused():
    with pytest.raises(MalformedRequest, match="is 4294967296, limit is 4294967295"):
        read_uvarint(bytes.fromhex("8080808010"), 0)


def test_a_number_that_goes_on_after_five_bytes_is_refused():
    with pytest.raises(MalformedRequest, match="number at byte 1 is longer than 5 bytes"):
        read_uvarint(bytes.fromhex("00 808080808001"), 1)


@pytest.mark.parametrize("size", range(5))
def test_a_number_that_is_cut_short_ends_the_data(size):
    with pytest.raises(IndexError):
        read_uvarint(bytes.fromhex("ffffffff0f")[:size], 0)


@pytest.mark.parametrize("number", [-1, -1024, 2**32])
def test_a_number_that_does_not_fit_is_not_written(number):
    with pytest.raises(ValueError, match=str(number)):
        encode_uvarint(number)
