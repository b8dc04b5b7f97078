"""Partitioner with kernels. Needs Numba; `partitioner.py` calls it.

All numbers are int64, as in `decode_kernels.py`; the hash is reduced to 32 bits after each step
that exceeds them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from millstream.records.arrow.encoder_vectorized import cells_of
from millstream.records.arrow.partitioner import RowsByPartition
from millstream.records.kernels.compiler import Int32s, Int64s, Octets, kernel

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_UINT32: Final = 0xFFFFFFFF
_INT31: Final = 0x7FFFFFFF


def partitions(keys: pa.Array, count: int) -> Int32s:
    """Return the partition of each key; see `partitions_of`."""
    octets, starts, sizes = cells_of(keys, len(keys))
    assigned = np.empty(len(keys), np.int32)
    find_partitions(octets, starts, sizes, count, assigned)
    return assigned


def rows(partitions: Int32s, count: int) -> RowsByPartition:
    """Group row numbers by partition; see `rows_by_partition`."""
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(partitions, minlength=count), out=bounds[1:])
    ordered = np.empty(len(partitions), np.int64)
    group_rows(np.ascontiguousarray(partitions, np.int32), bounds[:-1].copy(), ordered)
    return RowsByPartition(ordered, bounds)


@kernel
def word_at(octets: Octets, start: int, size: int) -> int:
    """Read up to four bytes, lowest first."""
    word = 0
    for number in range(size):
        byte: Any = np.int64(octets[np.uint64(start + number)])
        word |= byte << 8 * number
    return word


@kernel
def hash_of(octets: Octets, start: int, size: int) -> int:
    """Compute `murmur2` of a key in `octets`."""
    hashed = _SEED ^ size
    words_end = start + (size & ~3)
    for at in range(start, words_end, 4):
        word = word_at(octets, at, 4) * _FACTOR & _UINT32
        word = (word ^ word >> 24) * _FACTOR & _UINT32
        hashed = (hashed * _FACTOR & _UINT32) ^ word
    if words_end < start + size:
        hashed = (hashed ^ word_at(octets, words_end, size & 3)) * _FACTOR & _UINT32
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _UINT32
    return hashed ^ hashed >> 15


@kernel
def find_partitions(
    octets: Octets, starts: Int64s, sizes: Int64s, count: int, assigned: Int32s
) -> None:
    """Fill in the partition of each key, -1 for null."""
    for row in range(assigned.size):
        partition = -1
        if sizes[row] >= 0:
            partition = (hash_of(octets, starts[row], sizes[row]) & _INT31) % count
        assigned[row] = partition


@kernel
def group_rows(partitions: Int32s, next_rows: Int64s, ordered: Int64s) -> None:
    """Write the number of each row to the next free index of its partition."""
    for row in range(partitions.size):
        partition = np.uint64(partitions[row])
        ordered[np.uint64(next_rows[partition])] = row
        next_rows[partition] += 1
