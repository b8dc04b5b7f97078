"""What holds for every message in every version."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.codec.message import decode, encode, encode_parts
from tests.protocols.kafka.samples import CASES, every_message, sample

SEEDS = range(5)


@every_message
def test_a_value_survives_its_bytes_whole_or_in_parts(kind, version):
    for seed in SEEDS:
        value = sample(kind, version, seed)
        data = encode(value, version)
        assert decode(kind, data, version) == value
        assert b"".join(encode_parts(value, version)) == data


@every_message
def test_every_cut_is_refused(kind, version):
    data = memoryview(encode(sample(kind, version, 0), version))
    for size in range(len(data)):
        with pytest.raises(MalformedRequest, match=r"\d"):
            decode(kind, data[:size], version)


@every_message
def test_trailing_bytes_are_refused_or_passed_over_as_asked(kind, version):
    value = sample(kind, version, 0)
    data = encode(value, version)
    for trailing in (b"\x00", b"\x01", b"\xff" * 9):
        with pytest.raises(MalformedRequest, match=f"there are {len(data) + len(trailing)} bytes"):
            decode(kind, data + trailing, version)
        assert decode(kind, data + trailing, version, is_exact=False) == value


@every_message
def test_noise_is_refused_or_is_a_message(kind, version):
    """One byte in the middle is another: either the values differ, or it is refused."""
    rng = random.Random(version)
    data = bytearray(encode(sample(kind, version, 1), version))
    for _ in range(40 if data else 0):
        position = rng.randrange(len(data))
        kept, data[position] = data[position], rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        _check(kind, bytes(data), version)
        data[position] = kept


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(CASES), st.binary(max_size=200))
def test_any_bytes_are_refused_or_are_a_message(case, data):
    kind, version = case
    _check(kind, data, version)


def _check(kind, data, version):
    try:
        value = decode(kind, data, version)
    except MalformedRequest:
        return
    again = encode(value, version)
    # Compared as bytes, for the sake of floats that do not equal themselves.
    assert encode(decode(kind, again, version), version) == again
