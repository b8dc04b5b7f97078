"""Kernels that write numbers and bytes, for all loops that encode records. Needs Numba."""

from __future__ import annotations

import numpy as np

from millstream.records.kernels.compiler import Octets, kernel


@kernel
def number_size(number: int) -> int:
    """Return the encoded size of a number as a varint or varlong."""
    folded = np.uint64(number << 1) ^ np.uint64(number >> 63)
    size = 1
    while folded >= np.uint64(0x80):
        folded >>= np.uint64(7)
        size += 1
    return size


@kernel
def write_number(target: Octets, position: int, number: int) -> int:
    """Write a varint or varlong; return the position after it."""
    folded = np.uint64(number << 1) ^ np.uint64(number >> 63)
    while folded >= np.uint64(0x80):
        target[np.uint64(position)] = np.uint8(folded & np.uint64(0x7F) | np.uint64(0x80))
        folded >>= np.uint64(7)
        position += 1
    target[np.uint64(position)] = np.uint8(folded)
    return position + 1


@kernel
def copy(source: Octets, start: int, end: int, target: Octets, position: int) -> int:
    """Copy bytes; return the position after them."""
    distance = position - start
    for index in range(start, end):  # Unsigned indices let the compiler make one block copy of it.
        target[np.uint64(index + distance)] = source[np.uint64(index)]
    return position + end - start
