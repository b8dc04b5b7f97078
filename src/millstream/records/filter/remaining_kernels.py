"""Compiled loops that sift the records of many batches at once. Needs Numba.

The twin of `rest.py`: both keep the same records and write the same bytes. `sift_vectors.py` calls
them, with batches that it knows to be sound: the first loop decides which records go and adds up
what is left, the second writes that.
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

# Columns of what it finds: how many records are left, in how many bytes, how many of them are
# tombstones, which is the latest timestamp, and how many bytes they would have with their deltas
# shifted (-1: a delta would have more than 64 bits).
KEPT: Final = 0
KEPT_SIZE: Final = 1
TOMBSTONES: Final = 2
MAX_TIMESTAMP: Final = 3
SHIFTED_SIZE: Final = 4
FOUND_COLUMNS: Final = 5

# Columns of what `write_records` is told: which batch, which is the first of its records, where the
# result goes, and whether and by how much deltas are shifted.
NUMBER: Final = 0
FIRST_ROW: Final = 1
TARGET: Final = 2
IS_SHIFTED: Final = 3
SHIFTED_BY: Final = 4

_INT64_MIN: Final = -0x8000000000000000


class KernelRules(NamedTuple):
    """What `select_records` has to know of the rules.

    The arrays have a place per batch: whether its tombstones go, whether it gets a horizon if it
    has some that stay, and by how much its timestamp deltas change then.
    """

    named: RemovedOffsets
    tombstones_go: Int64s
    may_shift: Int64s
    shifts: Int64s


@kernel
def grown_size(delta: int, shift: int, others: int) -> int:
    """How many bytes a record has with another timestamp delta; -1 where that does not fit.

    `others` is the size of the fields behind the delta.
    """
    shifted = delta + shift
    if (delta ^ shifted) & (shift ^ shifted) < 0:  # The sum has more than 64 bits.
        return -1
    fields = 1 + number_size(shifted) + others
    return number_size(fields) + fields


@kernel
def select_records(
    source: Octets, batches: Int64s, asked: KernelRules, goes: Octets, found: Int64s
) -> None:
    """Note which records go, and what is left of each batch.

    `goes` has a flag per record, which may be set already.
    """
    start_offset = asked.named.start_offset
    deleted = asked.named.deleted
    row = 0
    for number in range(batches.shape[0]):
        position = batches[number, START]
        body_end = batches[number, END]
        base_offset = batches[number, BASE_OFFSET]
        base_timestamp = batches[number, BASE_TIMESTAMP]
        tombstones_go = asked.tombstones_go[number] != 0
        may_shift = asked.may_shift[number] != 0
        shift = asked.shifts[number]
        kept = 0
        kept_size = 0
        tombstones = 0
        max_timestamp = _INT64_MIN
        shifted_size = 0
        at = np.searchsorted(deleted, base_offset)
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
            is_gone |= goes[row] != 0 or (is_tombstone and tombstones_go)
            goes[row] = is_gone
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
        found[number, KEPT] = kept
        found[number, KEPT_SIZE] = kept_size
        found[number, TOMBSTONES] = tombstones
        found[number, MAX_TIMESTAMP] = max_timestamp
        found[number, SHIFTED_SIZE] = shifted_size


@kernel
def write_records(
    source: Octets, batches: Int64s, goes: Octets, told: Int64s, target: Octets
) -> None:
    """Write what is left of some batches."""
    for line in range(told.shape[0]):
        number = told[line, NUMBER]
        row = told[line, FIRST_ROW]
        out = told[line, TARGET]
        is_shifted = told[line, IS_SHIFTED] != 0
        shift = told[line, SHIFTED_BY]
        position = batches[number, START]
        body_end = batches[number, END]
        run = position  # Where the records start that stay and were not written yet.
        for _ in range(batches[number, RECORD_COUNT]):
            record = position
            size, start = read_varint(source, record, body_end)
            position = start + size
            if goes[row]:
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
