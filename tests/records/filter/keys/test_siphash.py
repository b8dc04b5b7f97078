"""SipHash: the hash function of Python, but with a key of the caller."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.records.filter.keys.siphash import siphash
from millstream.records.filter.keys.siphash_kernels import hash_key

uint64s = st.integers(0, 2**64 - 1)

# Results of `hash` with PYTHONHASHSEED=0, which sets the key to zero.
PYTHONS = {
    b"a": 0x407448D2B89B1813,
    b"hello": 0xE2E77B41CB4E1F9E,
    b"12345678": 0x3489982430560A87,
    b"123456789": 0x0FBC0F0007965FCF,
    bytes(range(63)): 0x385D3E39E5F37359,
    bytes(300): 0x3C878AA3E3C65480,
}


def compiled(data: bytes, low: int, high: int) -> int:
    """Hash with the kernel, from the middle of some source."""
    source = np.frombuffer(b"\xff" * 3 + data + b"\xff" * (len(data) % 11), np.uint8)
    source.setflags(write=False)
    return int(hash_key(source, 3, len(data), np.uint64(low), np.uint64(high)))


@pytest.mark.parametrize("data", PYTHONS)
def test_hashes_are_those_that_python_gives(data):
    assert siphash(data, (0, 0)) == PYTHONS[data]
    assert compiled(data, 0, 0) == PYTHONS[data]


@given(st.binary(max_size=40), uint64s, uint64s)
def test_kernel_and_plain_python_agree(data, low, high):
    assert compiled(data, low, high) == siphash(data, (low, high))


def test_both_halves_of_the_key_and_the_length_matter():
    hashes = {
        siphash(data, key)
        for data in (b"", b"\0", b"\0" * 8, b"\0" * 256)
        for key in ((0, 0), (1, 0), (0, 1), (2**63, 0))
    }
    assert len(hashes) == 16
