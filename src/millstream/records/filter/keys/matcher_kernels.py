"""Kernels that search the keys of many batches. Needs Numba; `matcher.py` calls them.

`decode_kernels.decode_records` checks every record, so one place decides which batches are
well-formed; the loops here only read the positions that it stored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.records.batch import HEADER_SIZE, Bytes
from millstream.records.filter.keys.matcher import KeyMatcher, MatchedRecords
from millstream.records.kernels import decode_kernels
from millstream.records.kernels.batch_arrays import arrays_of_bodies
from millstream.records.kernels.compiler import Int64s, Octets, kernel
from millstream.records.kernels.decode_kernels import BinaryFields, DecodedColumns, read_varint
from millstream.records.opened_batch import OpenedBatch


class BatchRun(NamedTuple):
    """Adjacent well-formed batches, and the offsets and keys of their records."""

    first: int
    """Number of the first batch."""
    batches: Int64s
    offsets: Int64s
    keys: BinaryFields


class KeyPatterns(NamedTuple):
    """A `KeyMatcher` as input of the kernel."""

    octets: Octets
    ends: Int64s
    """Where each pattern ends; begins with a 0, so it has one more element."""
    keys: Int64s
    prefixes: Int64s
    parents: Int64s


def find(
    data: Bytes, group: Sequence[OpenedBatch], matcher: KeyMatcher, start: int
) -> MatchedRecords:
    """Return the records from offset `start` on that `matcher` matches."""
    source, batches = arrays_of_bodies(data, group)
    patterns = _patterns(matcher)
    offsets, size = array("q"), 0
    for run in sound_runs(source, batches):
        limits = np.empty(run.offsets.size, np.int64)
        find_limits(source, run.keys, patterns, limits)
        is_hit = (run.offsets >= start) & (run.offsets < limits)
        if is_hit.any():
            offsets.frombytes(run.offsets[is_hit].tobytes())
            run_batches = group[run.first : run.first + len(run.batches)]
            stored = np.array(
                [opened.header.size - HEADER_SIZE for opened in run_batches], np.int64
            )
            size += int(stored_size(source, run.batches, stored, is_hit))
    return MatchedRecords(offsets, size)


def sound_runs(source: Octets, batches: Int64s) -> Iterator[BatchRun]:
    """Yield runs of batches, without those that have malformed records."""
    first, count = 0, len(batches)
    nothing, none = BinaryFields.empty(0), np.empty(0, np.int64)
    while first < count:
        rows = int(batches[first:, decode_kernels.RECORD_COUNT].sum())
        offsets, keys = np.empty(rows, np.int64), BinaryFields.empty(rows)
        table = DecodedColumns(offsets, none, keys, nothing, nothing)
        broken, _ = decode_kernels.decode_records(source, batches[first:], table)
        end = count if broken == decode_kernels.SOUND else first + broken
        rows_kept = int(batches[first:end, decode_kernels.RECORD_COUNT].sum())
        if rows_kept:
            kept = BinaryFields(keys.starts[:rows_kept], keys.ends[: rows_kept + 1])
            yield BatchRun(first, batches[first:end], offsets[:rows_kept], kept)
        first = end + 1


def _patterns(matcher: KeyMatcher) -> KeyPatterns:
    sizes = [len(pattern) for pattern in matcher.patterns]
    return KeyPatterns(
        np.frombuffer(b"".join(matcher.patterns), np.uint8),
        np.cumsum([0, *sizes], dtype=np.int64),
        np.array(matcher.keys, np.int64),
        np.array(matcher.prefixes, np.int64),
        np.array(matcher.parents, np.int64),
    )


@kernel
def find_limits(source: Octets, keys: BinaryFields, patterns: KeyPatterns, limits: Int64s) -> None:
    """Fill in for every record the offset before which its key matches; 0 if it does not."""
    for row in range(limits.size):
        start = keys.starts[row]
        size: Any = np.int64(keys.ends[row + 1]) - np.int64(keys.ends[row])
        limits[row] = 0 if start < 0 else limit_of(source, start, size, patterns)


@kernel
def limit_of(source: Octets, start: int, size: int, patterns: KeyPatterns) -> int:
    """Compute `KeyMatcher.before` for a key in `source`."""
    # Binary search for the last pattern that is not greater than the key; `common` is the length
    # of the prefix that the two share.
    low, high, common = 0, patterns.keys.size, 0
    while low < high:
        middle = (low + high) // 2
        shared = shared_size(source, start, size, patterns, middle)
        first = patterns.ends[middle]
        pattern_size = patterns.ends[middle + 1] - first
        is_after = shared < pattern_size and (
            shared == size
            or patterns.octets[np.uint64(first + shared)] > source[np.uint64(start + shared)]
        )
        if is_after:
            high = middle
        else:
            low, common = middle + 1, shared
    number = low - 1
    if number < 0:
        return 0
    limit = 0
    if common == size and patterns.ends[number + 1] - patterns.ends[number] == size:
        limit = patterns.keys[number]
    # The first prefix pattern among this one and its ancestors that the key starts with has the
    # greatest limit of all that it starts with.
    while number >= 0:
        is_prefix = patterns.ends[number + 1] - patterns.ends[number] <= common
        if is_prefix and patterns.prefixes[number] > 0:
            return int(max(limit, patterns.prefixes[number]))
        number = patterns.parents[number]
    return int(limit)


@kernel
def shared_size(source: Octets, start: int, size: int, patterns: KeyPatterns, number: int) -> int:
    """Return the length of the common prefix of a key and a pattern."""
    first = patterns.ends[number]
    most = min(size, patterns.ends[number + 1] - first)
    count = 0
    while count < most and (
        source[np.uint64(start + count)] == patterns.octets[np.uint64(first + count)]
    ):
        count += 1
    return count


@kernel
def stored_size(source: Octets, batches: Int64s, stored: Int64s, is_hit: NDArray[np.bool_]) -> int:
    """Return the size of the matched records, scaled to the size of their bodies in the log."""
    total = 0
    row = 0
    for number in range(batches.shape[0]):
        start = batches[number, decode_kernels.START]
        end = batches[number, decode_kernels.END]
        position = start
        hit = 0
        for _ in range(batches[number, decode_kernels.RECORD_COUNT]):
            size, at = read_varint(source, position, end)
            if is_hit[row]:
                hit += at + size - position
            position = at + size
            row += 1
        if hit > 0:
            total += hit * stored[number] // (end - start)
    return total
