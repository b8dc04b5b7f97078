"""Opening of batches: header checks and decompression.

The pure-Python reader and the kernels both use this module, so they refuse the same batches for
the same reasons before either reads a record.
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
    """A batch with its records decompressed."""

    header: BatchHeader
    records: Bytes
    """The encoded records, back to back, decompressed."""
    position: int
    """Position of the records in the data that was opened; -1 if they were compressed."""


def open_body(header: BatchHeader, batch: Bytes, *, size_max: int) -> Bytes:
    """Return the decompressed records of `batch`. The caller verifies the checksum."""
    if len(batch) != header.size:
        raise CorruptBatch(
            f"batch must have {header.size} bytes, as its header says, got {len(batch)}"
        )
    if header.last_offset > _OFFSET_MAX:
        raise CorruptBatch(f"last offset must be at most {_OFFSET_MAX}, got {header.last_offset}")
    records = _decompressed(header, memoryview(batch)[HEADER_SIZE:], size_max)
    if header.record_count * RECORD_SIZE_MIN > len(records):
        raise CorruptBatch(f"{header.record_count} records cannot fit into {len(records)} bytes")
    return records


def open_bodies(
    data: Bytes,
    *,
    check: bool,
    size_max: int,
    is_wanted: Callable[[BatchHeader], bool] | None = None,
    is_opened: Callable[[BatchHeader], bool] | None = None,
) -> Iterator[BatchBody]:
    """Open the batches in `data`; with `check`, verify the checksum of each first.

    Batches for which `is_wanted` returns false are left out; it is called once for each, in order.
    Of those for which `is_opened` returns false, only the header is returned. Neither kind is
    decompressed.
    """
    position = 0
    for header, batch in split(data):
        if check:
            check_batch(header, batch)
        if is_wanted is None or is_wanted(header):
            if is_opened is None or is_opened(header):
                is_compressed = header.codec != Codec.NONE
                records = open_body(header, batch, size_max=size_max)
                yield BatchBody(header, records, -1 if is_compressed else position + HEADER_SIZE)
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
    """Group bodies, in order, into lists of at most `size_max` bytes or of one larger body.

    A body for which `is_first` returns true begins a group; one for which `is_last` returns true
    ends one.
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


def _decompressed(header: BatchHeader, body: memoryview, size_max: int) -> Bytes:
    """Decompress a body, unless it is empty: compaction leaves headers without a body."""
    if header.codec == Codec.NONE and len(body) <= size_max:
        return body
    return decompress(header.codec, body, size_max=size_max) if body else body
