"""Kernels that filter the records of many batches. Needs Numba.

`remaining_vectorized.py` calls them. They must keep the same records and write the same bytes as
`remaining.py`. The batches are known to be well-formed. The first loop decides which records are
removed and computes the size of those that remain, the second writes those.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from millstream.records.filter.keys.table_kernels import RemovedOffsets
from millstream.records.kernels.compiler import Int64s, Octets, kernel
from millstream.records.kernels.decode_kernels import (
    BASE_OFFSET,
    BASE_TIMESTAMP,
    END,
    RECORD_COUNT,
    START,
    read_field,
    read_varint,
    read_varlong,
)
from millstream.records.kernels.write_kernels import copy, number_size, write_number

# Columns of the statistics of a batch: number of remaining records, their size, the number of
# tombstones among them, their latest timestamp, and their size with shifted timestamp deltas
# (-1: a shifted delta does not fit into 64 bits).
KEPT: Final = 0
KEPT_SIZE: Final = 1
TOMBSTONES: Final = 2
MAX_TIMESTAMP: Final = 3
SHIFTED_SIZE: Final = 4
STATS_COLUMNS: Final = 5

# Columns of the plans for `write_records`: number of the batch, row of its first record, position
# in the target, and whether and by how much timestamp deltas are shifted.
NUMBER: Final = 0
FIRST_ROW: Final = 1
TARGET: Final = 2
IS_SHIFTED: Final = 3
SHIFTED_BY: Final = 4

_INT64_MIN: Final = -0x8000000000000000


class KernelRules(NamedTuple):
    """The rules as input of `select_records`.

    The arrays have an element per batch: whether its tombstones are removed, whether it gets a
    horizon if it keeps tombstones, and by how much its timestamp deltas change then.
    """

    removed: RemovedOffsets
    removes_tombstones: Int64s
    may_shift: Int64s
    shifts: Int64s


@kernel
def grown_size(delta: int, shift: int, others: int) -> int:
    """Return the size of a record with its timestamp delta shifted; -1 if the delta does not fit.

    `others` is the size of the fields after the delta.
    """
    shifted = delta + shift
    if (delta ^ shifted) & (shift ^ shifted) < 0:  # The sum overflowed 64 bits.
        return -1
    fields = 1 + number_size(shifted) + others
    return number_size(fields) + fields


@kernel
def select_records(
    source: Octets, batches: Int64s, rules: KernelRules, removed_flags: Octets, stats: Int64s
) -> None:
    """Flag the records that are removed, and fill in the statistics of each batch.

    `removed_flags` has a flag per record, which may be set already.
    """
    start_offset = rules.removed.start_offset
    deleted = rules.removed.deleted
    row = 0
    for number in range(batches.shape[0]):
        position = batches[number, START]
        body_end = batches[number, END]
        base_offset = batches[number, BASE_OFFSET]
        base_timestamp = batches[number, BASE_TIMESTAMP]
        removes_tombstones = rules.removes_tombstones[number] != 0
        may_shift = rules.may_shift[number] != 0
        shift = rules.shifts[number]
        kept = 0
        kept_size = 0
        tombstones = 0
        max_timestamp = _INT64_MIN
        shifted_size = 0
        at = np.searchsorted(deleted, base_offset)  # Offsets ascend, so `at` only moves forward.
        for _ in range(batches[number, RECORD_COUNT]):
            record = position
            size, start = read_varint(source, record, body_end)
            position = start + size
            delta, delta_end = read_varlong(source, start + 1, position)
            offset_delta, field = read_varint(source, delta_end, position)
            key_start, _size, field = read_field(source, field, position)
            value_size, field = read_varint(source, field, position)
            offset = base_offset + offset_delta
            is_tombstone = key_start >= 0 and value_size == -1
            while at < deleted.size and deleted[at] < offset:
                at += 1
            is_gone = offset < start_offset or (at < deleted.size and deleted[at] == offset)
            is_gone |= removed_flags[row] != 0 or (is_tombstone and removes_tombstones)
            removed_flags[row] = is_gone
            row += 1
            if is_gone:
                continue
            kept += 1
            kept_size += position - record
            tombstones += is_tombstone
            max_timestamp = max(max_timestamp, base_timestamp + delta)
            if may_shift and shifted_size >= 0:
                grown = grown_size(delta, shift, position - delta_end)
                shifted_size = shifted_size + grown if grown >= 0 else -1
        stats[number, KEPT] = kept
        stats[number, KEPT_SIZE] = kept_size
        stats[number, TOMBSTONES] = tombstones
        stats[number, MAX_TIMESTAMP] = max_timestamp
        stats[number, SHIFTED_SIZE] = shifted_size


@kernel
def write_records(
    source: Octets, batches: Int64s, removed_flags: Octets, plans: Int64s, target: Octets
) -> None:
    """Write the remaining records of the planned batches."""
    for index in range(plans.shape[0]):
        number = plans[index, NUMBER]
        row = plans[index, FIRST_ROW]
        out = plans[index, TARGET]
        is_shifted = plans[index, IS_SHIFTED] != 0
        shift = plans[index, SHIFTED_BY]
        position = batches[number, START]
        body_end = batches[number, END]
        run = position  # Start of the run of remaining records that was not copied yet.
        for _ in range(batches[number, RECORD_COUNT]):
            record = position
            size, start = read_varint(source, record, body_end)
            position = start + size
            if removed_flags[row]:
                if not is_shifted:
                    out = copy(source, run, record, target, out)
                run = position
            elif is_shifted:
                delta, delta_end = read_varlong(source, start + 1, position)
                out = write_number(
                    target, out, 1 + number_size(delta + shift) + position - delta_end
                )
                out = copy(source, start, start + 1, target, out)
                out = write_number(target, out, delta + shift)
                out = copy(source, delta_end, position, target, out)
            row += 1
        if not is_shifted:
            copy(source, run, position, target, out)
