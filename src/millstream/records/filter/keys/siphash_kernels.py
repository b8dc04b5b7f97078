"""SipHash-1-3, compiled. Needs Numba; must agree with `siphash.py`, which says what it is for.

Hashes and blocks are uint64, everything else is int64. The two are never mixed, since Numba would
convert them to floats.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from millstream.records.filter.keys.siphash import START
from millstream.records.kernels.compiler import Octets, kernel

Block: TypeAlias = Any
"""A uint64; the type checker does not know Numba's types."""

State: TypeAlias = tuple[Block, Block, Block, Block]

_V0: Final = np.uint64(START[0])
_V1: Final = np.uint64(START[1])
_V2: Final = np.uint64(START[2])
_V3: Final = np.uint64(START[3])
_ALL_BITS: Final = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def _rotate(number: Block, bits: int) -> Block:
    return number << np.uint64(bits) | number >> np.uint64(64 - bits)


@kernel
def _round(v0: Block, v1: Block, v2: Block, v3: Block) -> State:
    v0 = v0 + v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = v2 + v3
    v3 = _rotate(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotate(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@kernel
def load_block(source: Octets, start: int, size: int, number: int) -> Block:
    """Return block `number` of a key of `size` bytes, lowest byte first; the last is padded."""
    at = start + 8 * number
    left = min(size - 8 * number, 8)
    block = np.uint64(0)
    if left == 0:
        return block
    # If the source goes on after the key, read eight bytes in any case, which the compiler turns
    # into one load, and mask out those after the key.
    if at + 8 <= source.size:
        for index in range(8):
            block |= np.uint64(source[np.uint64(at + index)]) << np.uint64(8 * index)
        return block & _ALL_BITS >> np.uint64(64 - 8 * left)
    for index in range(left):
        block |= np.uint64(source[np.uint64(at + index)]) << np.uint64(8 * index)
    return block


@kernel
def begin(low: Block, high: Block) -> State:
    """Return the state before the first block, for the two halves of a key."""
    return _V0 ^ low, _V1 ^ high, _V2 ^ low, _V3 ^ high


@kernel
def take(v0: Block, v1: Block, v2: Block, v3: Block, block: Block) -> State:
    """Process one block."""
    v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ block)
    return v0 ^ block, v1, v2, v3


@kernel
def finish(v0: Block, v1: Block, v2: Block, v3: Block, last: Block) -> Block:
    """Process the last block, and return the hash."""
    v0, v1, v2, v3 = take(v0, v1, v2, v3, last)
    v2 ^= np.uint64(0xFF)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel
def hash_key(source: Octets, start: int, size: int, low: Block, high: Block) -> Block:
    """Hash `size` bytes from `start` on."""
    v0, v1, v2, v3 = begin(low, high)
    for number in range(size >> 3):
        v0, v1, v2, v3 = take(v0, v1, v2, v3, load_block(source, start, size, number))
    tail = load_block(source, start, size, size >> 3)
    return finish(v0, v1, v2, v3, tail | np.uint64(size & 0xFF) << np.uint64(56))
