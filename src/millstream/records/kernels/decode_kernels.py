"""Kernels that decode the records of many batches. Needs Numba; `decoder_vectorized.py` calls them.

They must accept and refuse the same bytes as `iterate.py`. The first loop checks every number and
every length and writes down where fields start; the others only move bytes between positions that
the first has checked. None holds the interpreter lock.

A position of -1 means "malformed". The readers below pass it on, so that a record needs one test
at its end instead of one after each field. All numbers are int64, since Numba converts a mix of
signed and unsigned integers to floats.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from millstream.records.kernels.compiler import Int32s, Int64s, Octets, kernel

# Columns of the table that describes batches to the kernels, one row per batch: start and end of
# the body in the source, then fields of the header. With log-append time, `IS_FIXED` is 1 and
# `FIXED_TIMESTAMP` is the timestamp of every record.
START: Final = 0
END: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET_DELTA: Final = 3
BASE_TIMESTAMP: Final = 4
FIXED_TIMESTAMP: Final = 5
IS_FIXED: Final = 6
RECORD_COUNT: Final = 7

SOUND: Final = -1
"""Returned by a kernel instead of the number of the first malformed batch."""

_UINT32_MAX: Final = 0xFFFFFFFF
_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


class BinaryFields(NamedTuple):
    """Positions and sizes of the fields of one binary column in the source.

    `starts` has a position per row, -1 for null. `ends` has the cumulative size of all rows so far,
    which Arrow calls offsets; it begins with a 0, so it has one more element.
    """

    starts: Int64s
    ends: Int32s

    @classmethod
    def empty(cls, rows: int, *, wanted: bool = True) -> BinaryFields:
        """Return arrays for `rows` fields, or for none if the column is not wanted."""
        size = rows if wanted else 0
        return cls(np.empty(size, np.int64), np.zeros(size + 1, np.int32))


class DecodedColumns(NamedTuple):
    """Output of `decode_records`; an array of size 0 is not filled in."""

    offsets: Int64s
    timestamps: Int64s
    keys: BinaryFields
    values: BinaryFields
    headers: BinaryFields
    """The headers of a record as one field: the position of the first, and their number as size."""


@kernel
def read_varint(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Read a 32-bit number; return it and the position after it."""
    folded = 0
    for shift in range(0, 35, 7):
        if position < 0 or position >= end:
            return 0, -1
        byte: Any = np.int64(source[np.uint64(position)])
        position += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Five bytes hold 35 bits, so the number may still be too large.
            return (folded >> 1) ^ -(folded & 1), position if folded <= _UINT32_MAX else -1
    return 0, -1


@kernel
def read_varlong(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Read a 64-bit number; return it and the position after it."""
    folded = 0
    for shift in range(0, 70, 7):
        if position < 0 or position >= end:
            return 0, -1
        byte: Any = np.int64(source[np.uint64(position)])
        position += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Ten bytes hold 70 bits, of which the tenth may add only one. `folded` is signed, so
            # the mask makes its shift to the right a logical one.
            broken = shift == 63 and byte > 1
            return ((folded >> 1) & _INT64_MAX) ^ -(folded & 1), -1 if broken else position
    return 0, -1


@kernel
def read_field(source: Octets, position: int, end: int) -> tuple[int, int, int]:
    """Read the length of a field; return its start (-1 for null), its size, and its end."""
    size, start = read_varint(source, position, end)
    if start < 0 or size < -1 or size > end - start:
        return -1, 0, -1
    if size == -1:
        return -1, 0, start
    return start, size, start + size


@kernel
def skip_headers(source: Octets, position: int, end: int, count: int) -> int:
    """Check `count` headers, and return the position after them."""
    # A header has at least two bytes: without this limit, a corrupt count would loop for long.
    if position < 0 or count < 0 or count > (end - position) // 2:
        return -1
    for _ in range(count):
        key_start, _size, position = read_field(source, position, end)
        if key_start < 0:
            return -1
        _start, _size, position = read_field(source, position, end)
    return position


@kernel
def note_field(starts: Int64s, ends: Int32s, row: int, start: int, end: int) -> None:
    """Store one field, if its column is wanted."""
    if starts.size:
        starts[np.uint64(row)] = start
        ends[np.uint64(row + 1)] = end


@kernel
def decode_records(source: Octets, batches: Int64s, table: DecodedColumns) -> tuple[int, int]:
    """Check every record of every batch, and store the positions of its fields.

    Returns the number of the first malformed batch and the position of its first malformed record,
    or `SOUND` twice.
    """
    # Arrays are taken out of their tuples before the loop: inside it, Numba would count a
    # reference at each access, which costs more than decoding a field.
    offsets = table.offsets
    timestamps = table.timestamps
    key_starts, key_ends = table.keys
    value_starts, value_ends = table.values
    header_starts, header_ends = table.headers
    row = 0
    key_end = 0
    value_end = 0
    header_end = 0
    for number in range(batches.shape[0]):
        position = batches[number, START]
        body_end = batches[number, END]
        base_offset = batches[number, BASE_OFFSET]
        last_offset_delta = batches[number, LAST_OFFSET_DELTA]
        base_timestamp = batches[number, BASE_TIMESTAMP]
        is_fixed = batches[number, IS_FIXED] != 0
        last_delta = -1
        for _ in range(batches[number, RECORD_COUNT]):
            record = position
            size, start = read_varint(source, record, body_end)
            if start < 0 or size < 0 or size > body_end - start:
                return number, record
            end = start + size
            # From here on `at` turns to -1 at the first malformed field and stays so; then
            # `skip_headers` returns -1 too, which is not `end`.
            timestamp_delta, at = read_varlong(source, start + 1, end)
            offset_delta, at = read_varint(source, at, end)
            key_start, key_size, at = read_field(source, at, end)
            value_start, value_size, at = read_field(source, at, end)
            header_count, header_start = read_varint(source, at, end)
            position = skip_headers(source, header_start, end, header_count)
            if position != end:
                return number, record
            if offset_delta <= last_delta or offset_delta > last_offset_delta:
                return number, record
            last_delta = offset_delta
            timestamp = base_timestamp + timestamp_delta
            if is_fixed:
                timestamp = batches[number, FIXED_TIMESTAMP]
            elif (base_timestamp ^ timestamp) & (timestamp_delta ^ timestamp) < 0:
                return number, record  # The sum overflowed: its sign differs from both addends'.
            if offsets.size:
                offsets[np.uint64(row)] = base_offset + offset_delta
            if timestamps.size:
                timestamps[np.uint64(row)] = timestamp
            key_end += key_size
            value_end += value_size
            header_end += header_count
            note_field(key_starts, key_ends, row, key_start, key_end)
            note_field(value_starts, value_ends, row, value_start, value_end)
            note_field(header_starts, header_ends, row, header_start, header_end)
            row += 1
        if position != body_end:
            return number, position
    return SOUND, SOUND


@kernel
def decode_headers(
    source: Octets, headers: BinaryFields, keys: BinaryFields, values: BinaryFields
) -> None:
    """Store the fields of the headers that `decode_records` has found and checked."""
    starts, ends = headers
    key_starts, key_ends = keys
    value_starts, value_ends = values
    key_end = 0
    value_end = 0
    for row in range(starts.size):
        position = starts[row]
        for number in range(ends[row], ends[row + 1]):
            key_start, key_size, position = read_field(source, position, source.size)
            value_start, value_size, position = read_field(source, position, source.size)
            key_end += key_size
            value_end += value_size
            note_field(key_starts, key_ends, number, key_start, key_end)
            note_field(value_starts, value_ends, number, value_start, value_end)


@kernel
def gather(source: Octets, fields: BinaryFields, target: Octets) -> None:
    """Copy fields that are scattered over `source` to `target`, back to back."""
    # Unsigned indices need no test for negative ones, so the compiler sees a block copy: twelve
    # times as fast.
    starts, ends = fields
    for row in range(starts.size):
        first = ends[row]
        distance = starts[row] - first
        for index in range(first, ends[row + 1]):
            target[np.uint64(index)] = source[np.uint64(index + distance)]
