"""Opened batches as arrays, the input of kernels. Needs Numba.

All bodies of a group are in one source array: the data itself if nothing was compressed, otherwise
a buffer with the decompressed bodies.
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
    """Return one source array for all bodies, and the table that describes them to a kernel."""
    if all(opened.position >= 0 for opened in group):
        buffer, starts = data, [opened.position for opened in group]
    else:
        buffer = b"".join(opened.records for opened in group)
        starts = list(accumulate((len(opened.records) for opened in group), initial=0))
    source = np.frombuffer(buffer, np.uint8)
    # Read-only and writable arrays are two types to Numba: without this it would compile twice.
    source.setflags(write=False)
    rows = [_row(opened, start) for opened, start in zip(group, starts, strict=False)]
    return source, np.array(rows, np.int64)


def exclude_broken_batches(source: Octets, batches: Int64s) -> dict[int, CorruptBatch]:
    """Return the errors of malformed batches, by number, and set their record counts to 0.

    A caller that continues with `batches` then finds no records in them, and need not check the
    others.
    """
    broken = {}
    first = 0
    while first < len(batches):
        number, position = decode_kernels.decode_records(source, batches[first:], _NOTHING)
        if number == decode_kernels.SOUND:
            break
        row = batches[first + number]
        broken[first + number] = CorruptBatch(
            f"batch at offset {row[decode_kernels.BASE_OFFSET]}: malformed record at byte"
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
