"""SipHash-1-3: a keyed hash, which cannot be predicted without the seed.

Keys come from outside, and a hash table with predictable slots can be made slow on purpose. Python
itself hashes with the same function, but not with a seed of the caller. `siphash_kernels.py` has
the compiled version. See Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.

The input is read in blocks of eight bytes, lowest first. The last block has the remaining zero to
seven bytes, and the length in its highest byte.
"""

from __future__ import annotations

import struct

_MASK = 0xFFFF_FFFF_FFFF_FFFF

# "somepseudorandomlygeneratedbytes", as the paper has it.
START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def siphash(data: bytes, key: tuple[int, int]) -> int:
    """Return a 64-bit hash of `data`; the key is two 64-bit numbers."""
    v0, v1, v2, v3 = (start ^ key[number & 1] for number, start in enumerate(START))
    blocks_end = len(data) & ~7
    last = int.from_bytes(data[blocks_end:], "little") | (len(data) & 0xFF) << 56
    for (block,) in (*struct.iter_unpack("<Q", data[:blocks_end]), (last,)):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ block)
        v0 ^= block
    v2 ^= 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = v0 + v1 & _MASK
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3 & _MASK
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3 & _MASK
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1 & _MASK
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _rotate(number: int, bits: int) -> int:
    return (number << bits | number >> 64 - bits) & _MASK
