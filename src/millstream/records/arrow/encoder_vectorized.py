"""Encoder from Arrow columns to batches, with kernels. Needs Numba; `encoder.py` calls it.

Batches are planned and written in groups of a few MB, so that the cost of a kernel call is
negligible. Each group is written to one buffer, so that an uncompressed batch is never copied:

    +------------------+---------+------------------+---------+---- - -
    | space for header | records | space for header | records |
    +------------------+---------+------------------+---------+---- - -
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millstream.errors import BatchTooLarge, InvalidBatch, RequestError
from millstream.records.arrow import encoder_kernels
from millstream.records.arrow.encoder import (
    BuiltBatch,
    EncodeSettings,
    RecordColumns,
    keyless_header,
    next_sequence,
    row_too_large,
)
from millstream.records.arrow.encoder_kernels import (
    BinaryCells,
    EncodeInput,
    EncodeLimits,
    SelectedRows,
)
from millstream.records.batch import (
    BATCH_SIZE_MAX,
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    seal,
    seal_in_place,
)
from millstream.records.compression import Codec, compress
from millstream.records.kernels.compiler import Int64s
from millstream.records.varint import encode_varlong

_T = TypeVar("_T", bound=np.generic)

_GROUP_SIZE_MAX = 4 * 1024 * 1024
_GROUP_BATCHES_MAX = 1024

_NO_OCTETS = np.empty(0, np.uint8)
_NO_OCTETS.setflags(write=False)

_LARGE = (pa.large_binary(), pa.large_string())


def encode(
    columns: RecordColumns, rows: Int64s | None, settings: EncodeSettings
) -> Iterator[BuiltBatch]:
    """Write the selected rows as batches; see `encode_batches`."""
    sequence = settings.base_sequence
    for batches, buffer in _groups(columns, rows, settings):
        end = 0
        for count, body_size, base_timestamp, max_timestamp in batches.tolist():
            start, end = end, end + HEADER_SIZE + body_size
            header = BatchHeader(
                base_offset=0,
                length=0,
                leader_epoch=NO_LEADER_EPOCH,
                magic=MAGIC,
                crc=0,
                attributes=settings.codec | (settings.is_transactional * TRANSACTIONAL_BIT),
                last_offset_delta=count - 1,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                producer_id=settings.producer_id,
                producer_epoch=settings.producer_epoch,
                base_sequence=sequence,
                record_count=count,
            )
            yield BuiltBatch(_sealed(header, buffer[start:end]), count)
            sequence = next_sequence(sequence, count)


def encode_input_of(columns: RecordColumns) -> EncodeInput:
    """Convert columns to the input of the kernels, without a copy of their bytes."""
    rows = columns.row_count
    return EncodeInput(
        cells_of(columns.key, rows), cells_of(columns.value, rows), *_headers(columns.headers, rows)
    )


def _groups(
    columns: RecordColumns, rows: Int64s | None, settings: EncodeSettings
) -> Iterator[tuple[Int64s, memoryview]]:
    """Yield tables of batches, each with the buffer that holds them, headers still missing."""
    selected = _selected_rows(columns, rows, settings.now_ms)
    limits = EncodeLimits(settings.size_max, settings.record_size_max, _GROUP_SIZE_MAX)
    table = np.empty((_GROUP_BATCHES_MAX, encoder_kernels.BATCH_COLUMNS), np.int64)
    at = 0
    while at < selected.rows.size:
        first = at
        count, at, status = encoder_kernels.plan_batches(
            columns.source, selected, first, limits, table
        )
        if not count:
            raise _refused(status, int(selected.rows[at]), int(selected.sizes[at]), settings)
        batches = table[:count]
        size = int(batches[:, encoder_kernels.BODY_SIZE].sum()) + count * HEADER_SIZE
        target = np.empty(size, np.uint8)
        encoder_kernels.write_batches(columns.source, selected, first, batches, target)
        yield batches, target.data


def _selected_rows(columns: RecordColumns, rows: Int64s | None, now_ms: int) -> SelectedRows:
    numbers = np.arange(columns.row_count) if rows is None else rows
    timestamps = np.full(numbers.size, now_ms)
    if columns.timestamp is not None and numbers.size:
        given = _numbers(columns.timestamp)[numbers]
        if columns.timestamp.null_count:
            is_given = ~_nulls(columns.timestamp)[numbers]
            timestamps[is_given] = given[is_given]
        else:
            timestamps = given
    return SelectedRows(_read_only(numbers), timestamps, np.empty(numbers.size, np.int64))


def _refused(status: int, row: int, size: int, settings: EncodeSettings) -> RequestError:
    if status == encoder_kernels.KEYLESS:
        return keyless_header(row)
    return row_too_large(row, len(encode_varlong(size)) + size, settings.record_size_max)


def _sealed(header: BatchHeader, batch: memoryview) -> Bytes:
    """Finish a batch whose body follows the space for its header."""
    try:
        if header.codec == Codec.NONE:
            seal_in_place(header, batch)
            return batch
        compressed = seal(header, compress(Codec(header.codec), batch[HEADER_SIZE:]))
    except struct.error as error:
        raise InvalidBatch(f"a field of a record cannot be encoded: {error}") from error
    if len(compressed) > BATCH_SIZE_MAX:
        raise BatchTooLarge(
            f"batch must have at most {BATCH_SIZE_MAX} bytes, got {len(compressed)}"
        )
    return compressed


def cells_of(array: pa.Array | None, rows: int) -> BinaryCells:
    """Convert a binary or text column to input of a kernel; a missing one is null in all rows."""
    if array is None or not rows:
        return BinaryCells(_NO_OCTETS, np.zeros(rows, np.int64), np.full(rows, -1))
    _, _, data = array.buffers()
    octets = _NO_OCTETS if data is None else _read_only(np.frombuffer(data, np.uint8))
    starts, sizes = _spans(array)
    if array.null_count:
        sizes[_nulls(array)] = -1
    return BinaryCells(octets, starts, sizes)


def _headers(array: pa.Array | None, rows: int) -> tuple[Int64s, Int64s, BinaryCells, BinaryCells]:
    """Return the starts and the counts of headers, and the cells of their keys and values."""
    if array is None or not rows:
        return (
            np.zeros(rows, np.int64),
            np.zeros(rows, np.int64),
            cells_of(None, 0),
            cells_of(None, 0),
        )
    starts, counts = _spans(array)
    if array.null_count:
        counts[_nulls(array)] = 0
    pairs = array.values
    keys, values = (cells_of(pairs.field(number), len(pairs)) for number in range(2))
    if pairs.null_count:
        keys.sizes[_nulls(pairs)] = -1  # A header that is null has no key either.
    return starts, counts, keys, values


def _spans(array: pa.Array) -> tuple[Int64s, Int64s]:
    """Return start and size of each row of a list, text or binary array, in its values buffer."""
    is_large = array.type in _LARGE or pa.types.is_large_list(array.type)
    kind: type[np.int32 | np.int64] = np.int64 if is_large else np.int32
    offsets = np.frombuffer(
        array.buffers()[1],
        kind,
        count=len(array) + 1,
        offset=array.offset * np.dtype(kind).itemsize,
    ).astype(np.int64)
    return offsets[:-1], np.diff(offsets)


def _numbers(array: pa.Array) -> Int64s:
    return np.frombuffer(array.buffers()[1], np.int64, count=len(array), offset=array.offset * 8)


def _nulls(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the null rows."""
    return cast("NDArray[np.bool_]", array.is_null().to_numpy(zero_copy_only=False))


def _read_only(array: NDArray[_T]) -> NDArray[_T]:
    """Return a read-only view: Numba compiles separate code for writable arrays."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view
