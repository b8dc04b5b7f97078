"""Groups of batches to Arrow, through the kernels. Needs Numba; `columns.py` decides on it.

A binary column of Arrow is three buffers:

    validity   one bit per row, 0 for null               (none where there are no nulls)
    offsets    rows + 1 int32; row i has the bytes offsets[i] to offsets[i + 1]
    data       the bytes of all rows, one right after the other
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
    """Return the asked columns of all records in `group`, whose bodies were opened in `data`."""
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
    made = {
        "offset": lambda: _numbers(pa.int64(), table.offsets),
        "timestamp": lambda: _numbers(pa.int64(), table.timestamps),
        "key": lambda: _binary(source, table.keys),
        "value": lambda: _binary(source, table.values),
        "headers": lambda: _headers(source, table.headers),
        "timestamp_type": lambda: _numbers(pa.int32(), _timestamp_types(batches)),
    }
    return [made[column]() for column in columns]


def first_keyless(header: BatchHeader, body: Bytes) -> int | None:
    """Return the index of the first record without a key, once all records were checked."""
    source, batches = arrays_of_bodies(body, [BatchBody(header, body, 0)])
    nothing = BinaryFields.empty(0)
    keys = BinaryFields.empty(header.record_count)
    none = np.empty(0, np.int64)
    number, position = decode_kernels.decode_records(
        source, batches, DecodedColumns(none, none, keys, nothing, nothing)
    )
    if number != decode_kernels.SOUND:
        raise _broken(header, position)
    keyless = keys.starts < 0
    return int(keyless.argmax()) if keyless.any() else None


def _broken(header: BatchHeader, position: int) -> CorruptBatch:
    return CorruptBatch(
        f"batch at offset {header.base_offset}: broken record at byte {position} of its body"
    )


def _timestamp_types(batches: Int64s) -> Int32s:
    """1 for each record that is dated by the log, 0 for each that its producer dated."""
    types = batches[:, decode_kernels.IS_FIXED].astype(np.int32)
    return np.repeat(types, batches[:, decode_kernels.RECORD_COUNT])


def _numbers(kind: pa.DataType, numbers: Int32s | Int64s) -> pa.Array:
    """Wrap numbers. `pa.array` would do so too, but load pandas first, a quarter of a second."""
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
    """Read bytes as UTF-8; what is not is mended, as `iterate.py` does."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        mended = [key.decode(errors="replace") for key in keys.to_pylist()]
        return pa.array(mended, pa.string())
