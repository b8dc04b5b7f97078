"""Zigzag varints: the numbers inside records."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.varint import encode_varint, encode_varlong, read_varint, read_varlong

# By hand: folded to 0, 1, 2, 127, 128, 300, then the ends of the range.
GOLDEN = {
    0: "00",
    -1: "01",
    1: "02",
    -64: "7f",
    64: "8001",
    150: "ac02",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
}
GOLDEN_LONG = {2**63 - 1: "feffffffffffffffff01", -(2**63): "ffffffffffffffffff01"}
KINDS = [
    pytest.param(encode_varint, read_varint, id="varint"),
    pytest.param(encode_varlong, read_varlong, id="varlong"),
]


@pytest.mark.parametrize(("encode", "read"), KINDS)
@pytest.mark.parametrize("number", GOLDEN)
def test_numbers_match_the_bytes_worked_out_by_hand(encode, read, number):
    golden = bytes.fromhex(GOLDEN[number])
    assert encode(number) == golden
    assert read(golden, 0) == (number, len(golden))


@pytest.mark.parametrize("number", GOLDEN_LONG)
def test_a_varlong_holds_all_of_64_bits(number):
    golden = bytes.fromhex(GOLDEN_LONG[number])
    assert encode_varlong(number) == golden
    assert read_varlong(golden, 0) == (number, 10)


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3), st.binary(max_size=3))
@example(1023, b"", b"")
@example(1024, b"", b"")
def test_a_varint_is_read_back_wherever_it_lies(number, before, after):
    encoded = encode_varint(number)
    end = len(before) + len(encoded)
    assert read_varint(before + encoded + after, len(before)) == (number, end)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_a_varlong_is_read_back_wherever_it_lies(number, before, after):
    encoded = encode_varlong(number)
    end = len(before) + len(encoded)
    assert read_varlong(before + encoded + after, len(before)) == (number, end)


@pytest.mark.parametrize(("encode", "read"), KINDS)
def test_every_cut_of_a_number_is_refused(encode, read):
    encoded = encode(-(2**31))
    for size in range(len(encoded)):
        with pytest.raises(CorruptBatch, match=f"truncated: the data ends at {size}"):
            read(encoded[:size], 0)


@pytest.mark.parametrize(
    ("read", "noise", "message"),
    [
        (read_varint, "ffffffff8f00", "has more than 5 bytes"),
        (read_varint, "ffffffff10", "does not fit into 32 bits"),
        (read_varlong, "ffffffffffffffffff8100", "has more than 10 bytes"),
        (read_varlong, "ffffffffffffffffff02", "does not fit into 64 bits"),
    ],
)
def test_a_number_that_is_too_long_is_refused(read, noise, message):
    with pytest.raises(CorruptBatch, match=message):
        read(bytes.fromhex(noise), 0)


@pytest.mark.parametrize(
    ("encode", "number"),
    [
        (encode_varint, 2**31),
        (encode_varint, -(2**31) - 1),
        (encode_varlong, 2**63),
        (encode_varlong, -(2**63) - 1),
    ],
)
def test_a_number_with_too_many_bits_is_not_written(encode, number):
    with pytest.raises(OverflowError, match=f"{number} does not fit into"):
        encode(number)


@pytest.mark.parametrize("read", [read_varint, read_varlong])
@given(noise=st.binary(max_size=12))
def test_noise_is_refused_or_read_but_never_crashes(read, noise):
    try:
        _, end = read(noise, 0)
    except CorruptBatch:
        return
    assert 0 < end <= len(noise)
