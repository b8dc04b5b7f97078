"""Opened batches as arrays, which is how kernels take them. Needs Numba.

All bodies of a group lie in one source: the data itself where nothing was packed, else a buffer
into which they were unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from millstream.errors import CorruptBatch
from millstream.records.batch import Bytes
from millstream.records.body import BatchBody
from millstream.records.kernels import decode_kernels
from millstream.records.kernels.compiler import Int64s, Octets
from millstream.records.kernels.decode_kernels import BinaryFields, DecodedColumns
from millstream.records.opened_batch import OpenedBatch

_NO_FIELDS = BinaryFields.empty(0)
_NOTHING = DecodedColumns(np.empty(0, np.int64), np.empty(0, np.int64), *(_NO_FIELDS,) * 3)


def arrays_of_bodies(
    data: Bytes, group: Sequence[OpenedBatch | BatchBody]
) -> tuple[Octets, Int64s]:
    """Lay all bodies into one source, and describe them to a kernel."""
    if all(opened.position >= 0 for opened in group):
        buffer, starts = data, [opened.position for opened in group]
    else:
        buffer = b"".join(opened.records for opened in group)
        starts = list(accumulate((len(opened.records) for opened in group), initial=0))
    source = np.frombuffer(buffer, np.uint8)
    source.setflags(write=False)  # One type for the compiler, whether `data` may change or not.
    rows = [_row(opened, start) for opened, start in zip(group, starts, strict=False)]
    return source, np.array(rows, np.int64)


def exclude_broken_batches(source: Octets, batches: Int64s) -> dict[int, CorruptBatch]:
    """Find the batches whose records cannot be read, by number, and take their records away.

    Who goes on with `batches` then finds nothing in these, and need not check the others.
    """
    broken = {}
    first = 0
    while first < len(batches):
        number, position = decode_kernels.decode_records(source, batches[first:], _NOTHING)
        if number == decode_kernels.SOUND:
            break
        row = batches[first + number]
        broken[first + number] = CorruptBatch(
            f"batch at offset {row[decode_kernels.BASE_OFFSET]}: broken record at byte"
            f" {position - row[decode_kernels.START]} of its body"
        )
        row[decode_kernels.RECORD_COUNT] = 0
        first += number + 1
    return broken


def _row(opened: OpenedBatch | BatchBody, start: int) -> tuple[int, ...]:
    header = opened.header
    return (
        start,
        start + len(opened.records),
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.is_log_append_time,
        header.record_count,
    )
