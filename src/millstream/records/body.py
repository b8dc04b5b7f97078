"""Opening batches: from a batch as it lies to the bytes of its records.

What the pure-Python reader and the kernels both rest on, so that they refuse the same batches for
the same reasons before either looks at a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from millstream.errors import CorruptBatch
from millstream.records.batch import HEADER_SIZE, BatchHeader, Bytes, check_batch, split
from millstream.records.compression import Codec, decompress

RECORD_SIZE_MIN = 7
"""Length, attributes, two deltas, two lengths and a count: one byte each."""

_OFFSET_MAX = 2**63 - 1


class BatchBody(NamedTuple):
    """A batch, opened."""

    header: BatchHeader
    records: Bytes
    """The records one after the other, unpacked."""
    position: int
    """Where the records start in the data that was opened; -1 where they had to be unpacked."""


def open_body(header: BatchHeader, batch: Bytes, *, size_max: int) -> Bytes:
    """Return the unpacked records of `batch`, whose sum is the caller's to check."""
    if len(batch) != header.size:
        raise CorruptBatch(f"batch claims {header.size} bytes, found {len(batch)}")
    if header.last_offset > _OFFSET_MAX:
        raise CorruptBatch(f"batch ends at offset {header.last_offset}, limit is {_OFFSET_MAX}")
    records = _unpack(header, memoryview(batch)[HEADER_SIZE:], size_max)
    if header.record_count * RECORD_SIZE_MIN > len(records):
        raise CorruptBatch(f"batch claims {header.record_count} records in {len(records)} bytes")
    return records


def open_bodies(
    data: Bytes,
    *,
    check: bool,
    size_max: int,
    is_wanted: Callable[[BatchHeader], bool] | None = None,
    is_opened: Callable[[BatchHeader], bool] | None = None,
) -> Iterator[BatchBody]:
    """Open the batches in `data`, with each one's sum verified first if `check`.

    Those that `is_wanted` says no to are left out; it is asked once for each, in order. Of those
    that `is_opened` says no to, only the header comes back. Neither kind is unpacked.
    """
    position = 0
    for header, batch in split(data):
        if check:
            check_batch(header, batch)
        if is_wanted is None or is_wanted(header):
            if is_opened is None or is_opened(header):
                is_packed = header.codec != Codec.NONE
                records = open_body(header, batch, size_max=size_max)
                yield BatchBody(header, records, -1 if is_packed else position + HEADER_SIZE)
            else:
                yield BatchBody(header, b"", -1)
        position += len(batch)


def group_bodies(
    bodies: Iterable[BatchBody],
    *,
    size_max: int,
    is_first: Callable[[BatchHeader], bool] | None = None,
    is_last: Callable[[BatchHeader], bool] | None = None,
) -> Iterator[list[BatchBody]]:
    """Gather bodies in order into groups of at most `size_max` bytes, or of one larger body.

    Those that `is_first` says yes to begin a group, and those that `is_last` says yes to end one.
    """
    group: list[BatchBody] = []
    size = 0
    for body in bodies:
        begins = is_first is not None and is_first(body.header)
        if group and (begins or size + len(body.records) > size_max):
            yield group
            group, size = [], 0
        group.append(body)
        size += len(body.records)
        if is_last is not None and is_last(body.header):
            yield group
            group, size = [], 0
    if group:
        yield group


def _unpack(header: BatchHeader, packed: memoryview, size_max: int) -> Bytes:
    """Unpack, save where there is nothing: compaction leaves headers without a body."""
    if header.codec == Codec.NONE and len(packed) <= size_max:
        return packed
    return decompress(header.codec, packed, size_max=size_max) if packed else packed
