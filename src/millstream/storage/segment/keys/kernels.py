"""Compiled kernels that gather, sort and write keys. Needs Numba; `builder.py` decides.

Keys are sorted by seven bytes at a time, from the first byte in which they differ. The seven bytes
of a key go into one number, and behind them, lowest, how many there were, or 8 if the key
continues. So a key sorts before the longer ones that begin with it. Keys with the same number are
equal, or continue, and are sorted again among themselves by what follows.

None of the loops holds the interpreter lock. All sorts are stable, so that the batches of a key
keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.records.batch import Bytes
from millstream.records.filter.keys.matcher_kernels import BatchRun, sound_runs
from millstream.records.kernels import decode_kernels
from millstream.records.kernels.batch_arrays import arrays_of_bodies
from millstream.records.kernels.compiler import Int32s, Int64s, Octets, kernel
from millstream.records.opened_batch import OpenedBatch
from millstream.storage.segment.keys.key_file import (
    BLOCK_ENTRIES,
    KEY_SIZE_MAX,
    KEY_SPARE,
    KeyedBatchPosition,
    KeySection,
)

_CHUNK: Final = 7
_GOES_ON: Final = 8
_SIGN: Final = -(2**63)
_DIGITS: Final = 8
_INSERTION_MAX: Final = 32
"""Up to this many, insertion sort is faster than radix sort."""
_NUMBER_SIZE_MAX: Final = 5
"""The most bytes that a batch number, or the size of several, takes."""


class KeyBytes(NamedTuple):
    """The first bytes of keys, concatenated in the order of the log."""

    octets: Octets
    sizes: Octets
    """Size of the complete key, or `KEY_SIZE_MAX + 1` if it is longer than that."""
    batches: Int32s
    """The batch of each key."""


class KeyRows(NamedTuple):
    """`KeyBytes`, with the end of each key. It begins with a 0, so it is one longer."""

    keys: KeyBytes
    ends: Int64s


class KeyChunks(NamedTuple):
    """Some bytes of keys as numbers, and the rows that they belong to."""

    numbers: Int64s
    rows: Int32s


class KeyEntryBuffers(NamedTuple):
    """Buffers for the content of a section."""

    octets: Octets
    restarts: NDArray[np.uint32]


class CompiledKeyGatherer:
    """Does with kernels what `PythonKeyGatherer` does without."""

    def __init__(self) -> None:
        self.count = 0
        self._spots: list[KeyedBatchPosition] = []
        self._keys: list[KeyBytes] = []

    def add(self, data: Bytes, group: Sequence[OpenedBatch]) -> None:
        source, batches = arrays_of_bodies(data, group)
        for run in sound_runs(source, batches):
            rows = run.offsets.size
            room = KeyBytes(
                np.empty(int(run.keys.ends[rows]), np.uint8),
                np.empty(rows, np.uint8),
                np.empty(rows, np.int32),
            )
            has_keys = np.zeros(len(run.batches), np.bool_)
            count, size = take_keys(source, run, len(self._spots), room, has_keys)
            self._keys.append(
                KeyBytes(room.octets[:size], room.sizes[:count], room.batches[:count])
            )
            keyed = (group[run.first + number] for number in has_keys.nonzero()[0].tolist())
            self._spots += [
                KeyedBatchPosition(opened.start, opened.header.base_offset) for opened in keyed
            ]
            self.count += count

    def section(self) -> KeySection:
        keys = KeyBytes(*(np.concatenate(parts) for parts in zip(*self._keys, strict=True)))
        self._keys.clear()
        ends = np.zeros(self.count + 1, np.int64)
        np.cumsum(np.minimum(keys.sizes, KEY_SIZE_MAX), dtype=np.int64, out=ends[1:])
        table, order = KeyRows(keys, ends), np.arange(self.count, dtype=np.int32)
        sort_keys(table, order)
        entries = KeyEntryBuffers(
            np.empty(keys.octets.size + self.count * (2 + 2 * _NUMBER_SIZE_MAX), np.uint8),
            np.empty(-(-self.count // BLOCK_ENTRIES), np.uint32),
        )
        count, size = write_entries(table, order, entries)
        restarts = entries.restarts[: -(-count // BLOCK_ENTRIES)].astype("<u4")
        return KeySection(self._spots, count, restarts.tobytes(), entries.octets[:size].tobytes())


@kernel
def take_keys(
    source: Octets, run: BatchRun, batch_count: int, keys: KeyBytes, has_keys: NDArray[np.bool_]
) -> tuple[int, int]:
    """Copy the first bytes of all keys, and record for each its size and its batch.

    Batches with keys are counted from `batch_count` on. Returns the number of keys, and the number
    of bytes copied.
    """
    row = 0
    count = 0
    used = 0
    for batch in range(run.batches.shape[0]):
        for _ in range(run.batches[batch, decode_kernels.RECORD_COUNT]):
            start = run.keys.starts[row]
            size: Any = np.int64(run.keys.ends[row + 1]) - np.int64(run.keys.ends[row])
            row += 1
            if start < 0:
                continue
            if not has_keys[batch]:
                has_keys[batch] = True
                batch_count += 1
            keys.sizes[count] = min(size, KEY_SIZE_MAX + 1)
            keys.batches[count] = batch_count - 1
            count += 1
            kept = min(size, KEY_SIZE_MAX)
            for index in range(kept):
                keys.octets[np.uint64(used + index)] = source[np.uint64(start + index)]
            used += kept
    return count, used


@kernel
def sort_keys(table: KeyRows, order: Int32s) -> None:
    """Sort the rows in `order`, which are all rows of the table, by their keys."""
    count = order.size
    chunks = KeyChunks(np.empty(count, np.int64), order)
    ballast = KeyChunks(np.empty(count, np.int64), np.empty(count, np.int32))
    # Ranges still to be sorted: first row, end, and how many leading bytes are equal in all
    # rows. They do not overlap, and each except the very first has two keys or more.
    todo = np.empty((count // 2 + 1, 3), np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2] = 0, count, common_size(table)
    pending = 1
    while pending > 0:
        pending -= 1
        low, high, depth = todo[pending, 0], todo[pending, 1], todo[pending, 2]
        is_sorted = True
        for log_directory in range(low, high):
            chunks.numbers[log_directory] = chunk_at(table, order[log_directory], depth)
            if (
                log_directory > low
                and chunks.numbers[log_directory - 1] > chunks.numbers[log_directory]
            ):
                is_sorted = False
        if not is_sorted:
            if high - low <= _INSERTION_MAX:
                sort_few(chunks, low, high)
            else:
                sort_many(chunks, ballast, low, high)
        first = low
        while first < high:
            end = first + 1
            while end < high and chunks.numbers[end] == chunks.numbers[first]:
                end += 1
            if end - first > 1 and chunks.numbers[first] & 0xFF == _GOES_ON:
                todo[pending, 0], todo[pending, 1], todo[pending, 2] = first, end, depth + _CHUNK
                pending += 1
            first = end


@kernel
def common_size(table: KeyRows) -> int:
    """Return the length of the common prefix of all keys."""
    size: Any = table.ends[1]
    for row in range(1, table.ends.size - 1):
        size = min(size, shared_size(table, 0, row))
    return int(size)


@kernel
def shared_size(table: KeyRows, left: int, right: int) -> int:
    """Return the length of the common prefix of two keys."""
    octets, ends = table.keys.octets, table.ends
    most = min(ends[left + 1] - ends[left], ends[right + 1] - ends[right])
    count = 0
    while count < most and (
        octets[np.uint64(ends[left] + count)] == octets[np.uint64(ends[right] + count)]
    ):
        count += 1
    return count


@kernel
def chunk_at(table: KeyRows, row: int, depth: int) -> int:
    """Return a number that sorts like a key from byte `depth` on, for as many bytes as fit.

    The highest bit is inverted, since a number with it set is less than one without.
    """
    start = table.ends[row] + depth
    left = table.ends[row + 1] - start
    value: Any = np.int64(0)
    for index in range(_CHUNK):
        value <<= 8
        if index < left:
            value |= np.int64(table.keys.octets[np.uint64(start + index)])
    return int(((value << 8) | min(left, _GOES_ON)) ^ _SIGN)


@kernel
def sort_few(chunks: KeyChunks, low: int, high: int) -> None:
    """Insertion sort."""
    numbers, rows = chunks.numbers, chunks.rows
    for current in range(low + 1, high):
        number, row = numbers[current], rows[current]
        log_directory = current
        while log_directory > low and numbers[log_directory - 1] > number:
            numbers[log_directory], rows[log_directory] = (
                numbers[log_directory - 1],
                rows[log_directory - 1],
            )
            log_directory -= 1
        numbers[log_directory], rows[log_directory] = number, row


@kernel
def sort_many(chunks: KeyChunks, ballast: KeyChunks, low: int, high: int) -> None:
    """Radix sort, lowest byte first; a byte that is the same in all is skipped."""
    numbers, rows = chunks.numbers, chunks.rows
    counts = np.zeros((_DIGITS, 256), np.int64)
    for log_directory in range(low, high):
        for digit in range(_DIGITS):
            counts[digit, digit_of(numbers[log_directory], digit)] += 1
    for digit in range(_DIGITS):
        if counts[digit, digit_of(numbers[low], digit)] == high - low:
            continue
        after = low
        for value in range(256):
            size = counts[digit, value]
            counts[digit, value] = after
            after += size
        for log_directory in range(low, high):
            value = digit_of(numbers[log_directory], digit)
            target = counts[digit, value]
            counts[digit, value] = target + 1
            ballast.numbers[target], ballast.rows[target] = (
                numbers[log_directory],
                rows[log_directory],
            )
        for log_directory in range(low, high):
            numbers[log_directory], rows[log_directory] = (
                ballast.numbers[log_directory],
                ballast.rows[log_directory],
            )


@kernel
def digit_of(number: int, digit: int) -> int:
    """Return one byte of a number from `chunk_at`, the lowest for digit 0."""
    return ((number ^ _SIGN) >> (8 * digit)) & 0xFF


@kernel
def write_entries(table: KeyRows, order: Int32s, entries: KeyEntryBuffers) -> tuple[int, int]:
    """Write an entry for each distinct key; return their number and their size in bytes."""
    octets, sizes, batches = table.keys
    count = 0
    used = 0
    before = 0  # Prefix shared with the key before, and then with the key after.
    end = 0
    while end < order.size:
        first = end
        row: Any = np.int64(order[first])
        start = table.ends[row]
        size = table.ends[row + 1] - start
        is_cut = size == KEY_SIZE_MAX and sizes[row] > size
        after = 0
        end += 1
        while end < order.size:
            following: Any = np.int64(order[end])
            after = shared_size(table, row, following)
            if after < size or table.ends[following + 1] - table.ends[following] > size:
                break
            is_cut = is_cut or (size == KEY_SIZE_MAX and sizes[following] > size)
            after = 0
            end += 1
        kept = min(size, max(before, after) + 1 + KEY_SPARE)
        is_cut = is_cut or kept < size
        if count % BLOCK_ENTRIES == 0:
            entries.restarts[count // BLOCK_ENTRIES] = used
            before = 0
        count += 1
        entries.octets[used] = before
        entries.octets[used + 1] = (kept - before) << 1 | (1 if is_cut else 0)
        used += 2
        for index in range(before, kept):
            entries.octets[np.uint64(used)] = octets[np.uint64(start + index)]
            used += 1
        if batches[row] == batches[order[end - 1]]:
            used = write_number(int(batches[row]) << 1, entries.octets, used)
        else:
            used = write_several(batches, order[first:end], entries.octets, used)
        before = after
    return count, used


@kernel
def write_several(batches: Int32s, rows: Int32s, target: Octets, used: int) -> int:
    """Write the batches of the keys of these rows; return the position after them."""
    first: Any = np.int64(batches[rows[0]])
    size: Any = number_size(first)
    for log_directory in range(1, rows.size):
        distance: Any = np.int64(batches[rows[log_directory]]) - np.int64(
            batches[rows[log_directory - 1]]
        )
        size += number_size(distance) if distance > 0 else 0
    used = write_number(size << 1 | 1, target, used)
    used = write_number(first, target, used)
    for log_directory in range(1, rows.size):
        distance = np.int64(batches[rows[log_directory]]) - np.int64(
            batches[rows[log_directory - 1]]
        )
        if distance > 0:
            used = write_number(distance, target, used)
    return used


@kernel
def number_size(number: int) -> int:
    """Return the size of an unsigned varint."""
    size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


@kernel
def write_number(number: int, target: Octets, used: int) -> int:
    """Write an unsigned varint; return the position after it."""
    while number >= 0x80:
        target[used] = number & 0x7F | 0x80
        number >>= 7
        used += 1
    target[used] = number
    return used + 1
