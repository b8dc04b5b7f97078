"""Decoder from groups of batches to Arrow, with kernels. Needs Numba; `decoder.py` calls it.

A binary column of Arrow is three buffers:

    validity   one bit per row, 0 for null               (absent if there are no nulls)
    offsets    rows + 1 int32; row i has the bytes offsets[i] to offsets[i + 1]
    data       the bytes of all rows, back to back
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, Bytes
from millstream.records.body import BatchBody
from millstream.records.kernels import decode_kernels
from millstream.records.kernels.batch_arrays import arrays_of_bodies
from millstream.records.kernels.compiler import Int32s, Int64s, Octets
from millstream.records.kernels.decode_kernels import BinaryFields, DecodedColumns


def decode(data: Bytes, group: Sequence[BatchBody], columns: Sequence[str]) -> list[pa.Array]:
    """Return the requested columns of all records in `group`, opened in `data`."""
    source, batches = arrays_of_bodies(data, group)
    rows = sum(body.header.record_count for body in group)
    table = DecodedColumns(
        np.empty(rows if "offset" in columns else 0, np.int64),
        np.empty(rows if "timestamp" in columns else 0, np.int64),
        *(BinaryFields.empty(rows, wanted=name in columns) for name in ("key", "value", "headers")),
    )
    number, position = decode_kernels.decode_records(source, batches, table)
    if number != decode_kernels.SOUND:
        raise _broken(group[number].header, position - int(batches[number, decode_kernels.START]))
    makers = {
        "offset": lambda: _numbers(pa.int64(), table.offsets),
        "timestamp": lambda: _numbers(pa.int64(), table.timestamps),
        "key": lambda: _binary(source, table.keys),
        "value": lambda: _binary(source, table.values),
        "headers": lambda: _headers(source, table.headers),
        "timestamp_type": lambda: _numbers(pa.int32(), _timestamp_types(batches)),
    }
    return [makers[column]() for column in columns]


def keyless_records(header: BatchHeader, body: Bytes, limit: int) -> list[int]:
    """Check all records, and return the indexes of the first `limit` ones without a key."""
    source, batches = arrays_of_bodies(body, [BatchBody(header, body, 0)])
    nothing = BinaryFields.empty(0)
    keys = BinaryFields.empty(header.record_count)
    none = np.empty(0, np.int64)
    number, position = decode_kernels.decode_records(
        source, batches, DecodedColumns(none, none, keys, nothing, nothing)
    )
    if number != decode_kernels.SOUND:
        raise _broken(header, position)
    indexes: list[int] = np.flatnonzero(keys.starts < 0)[:limit].tolist()
    return indexes


def _broken(header: BatchHeader, position: int) -> CorruptBatch:
    return CorruptBatch(
        f"batch at offset {header.base_offset}: malformed record at byte {position} of its body"
    )


def _timestamp_types(batches: Int64s) -> Int32s:
    """Return 1 for each record with a timestamp of the log, 0 for each with one of its producer."""
    types = batches[:, decode_kernels.IS_FIXED].astype(np.int32)
    return np.repeat(types, batches[:, decode_kernels.RECORD_COUNT])


def _numbers(kind: pa.DataType, numbers: Int32s | Int64s) -> pa.Array:
    """Wrap numbers in an Arrow array.

    `pa.array` would do so too, but loads pandas first, which takes a quarter of a second.
    """
    return pa.Array.from_buffers(kind, numbers.size, [None, pa.py_buffer(numbers)])


def _binary(source: Octets, fields: BinaryFields) -> pa.Array:
    rows = fields.starts.size
    target = np.empty(int(fields.ends[rows]), np.uint8)
    decode_kernels.gather(source, fields, target)
    buffers = [_validity(fields.starts), pa.py_buffer(fields.ends), pa.py_buffer(target)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _validity(starts: Int64s) -> pa.Buffer | None:
    valid = starts >= 0
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _headers(source: Octets, records: BinaryFields) -> pa.Array:
    count = int(records.ends[-1])
    keys, values = BinaryFields.empty(count), BinaryFields.empty(count)
    decode_kernels.decode_headers(source, records, keys, values)
    pairs = pa.StructArray.from_arrays(
        [_text(_binary(source, keys)), _binary(source, values)], names=["key", "value"]
    )
    return pa.ListArray.from_arrays(_numbers(pa.int32(), records.ends), pairs)


def _text(keys: pa.Array) -> pa.Array:
    """Decode UTF-8; replace bad bytes, as `iterate.py` does."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        replaced = [key.decode(errors="replace") for key in keys.to_pylist()]
        return pa.array(replaced, pa.string())
