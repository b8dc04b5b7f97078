"""Compiled loops that write Arrow columns as records. Needs Numba; `encode_vectors.py` calls them.

The twin of what `encoding.py` does with `build.py`: both make the same batches. The first loop cuts
rows into batches and adds up how large they are, the second writes them; no byte is moved twice. A
record's layout is drawn in `build.py`. No loop holds the interpreter lock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from millstream.records.batch import HEADER_SIZE
from millstream.records.kernels.compiler import Int64s, Octets, kernel
from millstream.records.kernels.write_kernels import copy, number_size, write_number

# Columns of the table of batches that one loop fills in and the other reads: how many rows, how
# many bytes they take, the first and the latest timestamp.
COUNT: Final = 0
BODY_SIZE: Final = 1
BASE_TIMESTAMP: Final = 2
MAX_TIMESTAMP: Final = 3
BATCH_COLUMNS: Final = 4

# What `plan_batches` finds wrong with a row.
SOUND: Final = 0
TOO_LARGE: Final = 1
KEYLESS: Final = 2


class BinaryCells(NamedTuple):
    """The cells of one binary column: where each starts in `octets`, and its size, -1 for null."""

    octets: Octets
    starts: Int64s
    sizes: Int64s


class EncodeInput(NamedTuple):
    """All columns of the rows that are to be written, also those that are null in all rows."""

    keys: BinaryCells
    values: BinaryCells
    header_starts: Int64s
    """By row, the number of its first header."""
    header_counts: Int64s
    header_keys: BinaryCells
    header_values: BinaryCells


class EncodeLimits(NamedTuple):
    """How large things may get, in bytes."""

    body_size: int
    """A body of more than one record."""
    record_size: int
    """A single record."""
    group_size: int
    """All batches that are planned at once; the last one may reach beyond."""


class SelectedRows(NamedTuple):
    """Which rows are written, in order, the timestamp of each, and room for the size of each.

    The size of a record is what its length says: it does not count the length itself.
    """

    rows: Int64s
    timestamps: Int64s
    sizes: Int64s


@kernel
def field_size(size: int) -> int:
    """How many bytes a field takes, its length included."""
    return number_size(size) + max(size, 0)


@kernel
def headers_size(key_sizes: Int64s, value_sizes: Int64s, start: int, count: int) -> int:
    """How many bytes some headers take, their count included; -1 where one has no key."""
    size = number_size(count)
    for number in range(start, start + count):
        if key_sizes[np.uint64(number)] < 0:
            return -1
        size += field_size(key_sizes[np.uint64(number)])
        size += field_size(value_sizes[np.uint64(number)])
    return size


# Arrays are taken out of their tuples before a loop begins: inside, each taking would be counted as
# one more reference to the array, which costs ten times as much as what the loop does.


@kernel
def plan_batches(
    source: EncodeInput, wanted: SelectedRows, first: int, limits: EncodeLimits, batches: Int64s
) -> tuple[int, int, int]:
    """Cut wanted rows into batches, from the number `first` on.

    Fills in `batches` and the sizes of the records. Returns how many batches there are, the number
    of the row after them, and what is wrong with that row. Ends where the table is full, the group
    is large enough, or a row cannot be written.
    """
    rows, timestamps, sizes = wanted
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
                break  # Too far from the first of the batch for 64 bits.
            rest = 1
            if header_counts[row] > 0:
                rest = headers_size(
                    header_key_sizes, header_value_sizes, header_starts[row], header_counts[row]
                )
            if rest < 0:
                status = KEYLESS
                break
            size = (
                1
                + number_size(delta)
                + number_size(at - batch_first)
                + field_size(key_sizes[row])
                + field_size(value_sizes[row])
                + rest
            )
            grown = body_size + number_size(size) + size
            if grown > limits.body_size and at > batch_first:
                break
            sizes[np.uint64(at)] = size
            if grown > limits.record_size:
                status = TOO_LARGE
                break
            latest = max(latest, timestamp)
            body_size = grown
            at += 1
        if at == batch_first:
            return count, at, status
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
    source: EncodeInput, wanted: SelectedRows, first: int, batches: Int64s, target: Octets
) -> None:
    """Write the records of planned batches, with room before each batch for its header.

    `first` is the number of the first wanted row in them.
    """
    rows, timestamps, sizes = wanted
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
                which = np.uint64(nth)
                position = write_field(
                    header_keys,
                    header_key_starts[which],
                    header_key_sizes[which],
                    target,
                    position,
                )
                position = write_field(
                    header_values,
                    header_value_starts[which],
                    header_value_sizes[which],
                    target,
                    position,
                )
            at += 1
