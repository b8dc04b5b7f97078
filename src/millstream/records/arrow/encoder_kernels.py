"""Kernels that encode Arrow columns as records. Needs Numba; `encoder_vectorized.py` calls them.

They must produce the same batches as `encoder.py` with `build.py`. The first loop divides rows
into batches and computes their sizes, the second writes them; no byte is moved twice. `build.py`
shows the layout of a record. No loop holds the interpreter lock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from millstream.records.batch import HEADER_SIZE
from millstream.records.kernels.compiler import Int64s, Octets, kernel
from millstream.records.kernels.write_kernels import copy, number_size, write_number

# Columns of the table of batches that `plan_batches` fills in and `write_batches` reads: number of
# rows, bytes of the body, the first and the latest timestamp.
COUNT: Final = 0
BODY_SIZE: Final = 1
BASE_TIMESTAMP: Final = 2
MAX_TIMESTAMP: Final = 3
BATCH_COLUMNS: Final = 4

# Status of a row that `plan_batches` stopped at.
SOUND: Final = 0
TOO_LARGE: Final = 1
KEYLESS: Final = 2


class BinaryCells(NamedTuple):
    """Cells of one binary column: the start of each in `octets`, and its size, -1 for null."""

    octets: Octets
    starts: Int64s
    sizes: Int64s


class EncodeInput(NamedTuple):
    """All columns of the rows to write, including those that are null in all rows."""

    keys: BinaryCells
    values: BinaryCells
    header_starts: Int64s
    """By row, the index of its first header."""
    header_counts: Int64s
    header_keys: BinaryCells
    header_values: BinaryCells


class EncodeLimits(NamedTuple):
    """Size limits in bytes."""

    body_size: int
    """A body of more than one record."""
    record_size: int
    """A single record."""
    group_size: int
    """All batches that are planned at once; the last one may exceed it."""


class SelectedRows(NamedTuple):
    """The rows to write, in order, the timestamp of each, and an array for the size of each.

    The size of a record is the value of its length field, so it does not count that field.
    """

    rows: Int64s
    timestamps: Int64s
    sizes: Int64s


@kernel
def field_size(size: int) -> int:
    """Return the encoded size of a field, its length included."""
    return number_size(size) + max(size, 0)


@kernel
def headers_size(key_sizes: Int64s, value_sizes: Int64s, start: int, count: int) -> int:
    """Return the encoded size of headers, their count included; -1 if one has no key."""
    size = number_size(count)
    for number in range(start, start + count):
        if key_sizes[np.uint64(number)] < 0:
            return -1
        size += field_size(key_sizes[np.uint64(number)])
        size += field_size(value_sizes[np.uint64(number)])
    return size


# Arrays are taken out of their tuples before a loop: inside it, Numba would count a reference at
# each access, which costs ten times as much as the work of the loop.


@kernel
def plan_batches(
    source: EncodeInput, selected: SelectedRows, first: int, limits: EncodeLimits, batches: Int64s
) -> tuple[int, int, int]:
    """Divide selected rows into batches, beginning with row number `first` of the selection.

    Fills in `batches` and the sizes of the records. Returns the number of batches, the number of
    the row after them, and the status of that row. Ends when the table is full, the group is large
    enough, or a row cannot be written.
    """
    rows, timestamps, sizes = selected
    key_sizes = source.keys.sizes
    value_sizes = source.values.sizes
    header_starts = source.header_starts
    header_counts = source.header_counts
    header_key_sizes = source.header_keys.sizes
    header_value_sizes = source.header_values.sizes
    count = 0
    group_size = 0
    at = first
    while at < rows.size and count < batches.shape[0] and group_size < limits.group_size:
        batch_first = at
        base = timestamps[np.uint64(at)]
        latest = base
        body_size = 0
        status = SOUND
        while at < rows.size:
            row = np.uint64(rows[np.uint64(at)])
            timestamp = timestamps[np.uint64(at)]
            delta = timestamp - base
            if (timestamp ^ base) & (timestamp ^ delta) < 0:
                break  # The delta overflowed 64 bits: the row begins a batch of its own.
            headers_bytes = 1
            if header_counts[row] > 0:
                headers_bytes = headers_size(
                    header_key_sizes, header_value_sizes, header_starts[row], header_counts[row]
                )
            if headers_bytes < 0:
                status = KEYLESS
                break
            size = (
                1
                + number_size(delta)
                + number_size(at - batch_first)
                + field_size(key_sizes[row])
                + field_size(value_sizes[row])
                + headers_bytes
            )
            grown = body_size + number_size(size) + size
            if grown > limits.body_size and at > batch_first:
                break  # The batch is full. A single record may exceed the limit of a body.
            sizes[np.uint64(at)] = size
            if grown > limits.record_size:
                status = TOO_LARGE
                break
            latest = max(latest, timestamp)
            body_size = grown
            at += 1
        if at == batch_first:
            return count, at, status  # The first row of a batch cannot be written.
        batches[count, COUNT] = at - batch_first
        batches[count, BODY_SIZE] = body_size
        batches[count, BASE_TIMESTAMP] = base
        batches[count, MAX_TIMESTAMP] = latest
        count += 1
        group_size += body_size
    return count, at, SOUND


@kernel
def write_field(octets: Octets, start: int, size: int, target: Octets, position: int) -> int:
    """Write a field with its length; return the position after it."""
    position = write_number(target, position, size)
    return copy(octets, start, start + max(size, 0), target, position)


@kernel
def write_batches(
    source: EncodeInput, selected: SelectedRows, first: int, batches: Int64s, target: Octets
) -> None:
    """Write the records of planned batches, with space before each batch for its header.

    `first` is the number of their first row in the selection.
    """
    rows, timestamps, sizes = selected
    keys, key_starts, key_sizes = source.keys
    values, value_starts, value_sizes = source.values
    header_starts = source.header_starts
    header_counts = source.header_counts
    header_keys, header_key_starts, header_key_sizes = source.header_keys
    header_values, header_value_starts, header_value_sizes = source.header_values
    position = 0
    at = first
    for number in range(batches.shape[0]):
        position += HEADER_SIZE
        base = batches[number, BASE_TIMESTAMP]
        for delta in range(batches[number, COUNT]):
            row = np.uint64(rows[np.uint64(at)])
            position = write_number(target, position, sizes[np.uint64(at)])
            target[np.uint64(position)] = 0
            position = write_number(target, position + 1, timestamps[np.uint64(at)] - base)
            position = write_number(target, position, delta)
            position = write_field(keys, key_starts[row], key_sizes[row], target, position)
            position = write_field(values, value_starts[row], value_sizes[row], target, position)
            position = write_number(target, position, header_counts[row])
            header = header_starts[row]
            for nth in range(header, header + header_counts[row]):
                rank = np.uint64(nth)
                position = write_field(
                    header_keys,
                    header_key_starts[rank],
                    header_key_sizes[rank],
                    target,
                    position,
                )
                position = write_field(
                    header_values,
                    header_value_starts[rank],
                    header_value_sizes[rank],
                    target,
                    position,
                )
            at += 1
