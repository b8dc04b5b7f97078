"""Batch to columns: what analytics reads, as Arrow.

    offset     int64
    timestamp  int64                                     milliseconds since 1970
    key        binary                                    null where the record has none
    value      binary                                    null where the record has none
    headers    list<struct<key: string, value: binary>>  empty where the record has none

Needs `pyarrow`. With Numba the records are decoded by compiled kernels, without it by the
plain-Python reader; the columns are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.errors import RequestError
from millstream.records.batch import Bytes
from millstream.records.bodies import Body, grouped, open_bodies
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.iterate import records_of
from millstream.records.record import StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

    Decode: TypeAlias = Callable[[Bytes, Sequence[Body], Sequence[str]], list[pa.Array]]

COLUMNS = ("offset", "timestamp", "key", "value", "headers")

_GROUP_SIZE_MAX = 16 * 1024 * 1024
"""Bodies decoded into one Arrow batch: enough to make its overhead vanish, little to hold."""

_ARROW_SIZE_MAX = 2**31 - 1
"""Arrow's binary type counts bytes in an int32, so no body may be larger."""


def arrow_batches(
    data: Bytes,
    *,
    columns: Sequence[str] = COLUMNS,
    check: bool = True,
    size_max: int = BODY_SIZE_MAX,
) -> Iterator[pa.RecordBatch]:
    """Decode the batches in `data` into the asked columns, without the control batches.

    `check` verifies each batch's sum. No batch may unpack to over `size_max` bytes. Arrow batches
    come out as far as the data is sound, then `CorruptBatch` says what is wrong.
    """
    schema = column_schema(columns)
    bodies = open_bodies(data, check=check, size_max=min(size_max, _ARROW_SIZE_MAX))
    kept = (body for body in bodies if not body.header.is_control)
    return _decoded(data, grouped(kept, size_max=_GROUP_SIZE_MAX), schema)


def column_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of what `arrow_batches` gives for `columns`."""
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise RequestError(f"columns are {list(columns)}, allowed is each once of {list(COLUMNS)}")
    arrow = _arrow()
    types = _types(arrow)
    return arrow.schema([(column, types[column]) for column in columns])


def _decoded(
    data: Bytes, groups: Iterator[list[Body]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    arrow, decode = _arrow(), _decoder()
    for group in groups:
        decoded = arrow.RecordBatch.from_arrays(decode(data, group, schema.names), schema=schema)
        if decoded.num_rows:
            yield decoded


def _arrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra: the log itself does without.
    except ImportError as error:
        raise RequestError("columns need pyarrow: pip install millstream[arrow]") from error
    return pa


def _decoder() -> Decode:
    """Find the compiled decoder, or the plain one where Numba is missing."""
    try:
        from millstream.records.vectors import decode  # noqa: PLC0415 - an extra, and slow to load.
    except ImportError:
        return decode_plainly
    return decode


def decode_plainly(_: Bytes, group: Sequence[Body], columns: Sequence[str]) -> list[pa.Array]:
    """Do in plain Python what `vectors.decode` does with kernels."""
    arrow = _arrow()
    types = _types(arrow)
    records = [record for body in group for record in records_of(body.header, body.records)]
    return [
        arrow.array([_FIELDS[column](record) for record in records], types[column])
        for column in columns
    ]


def _types(arrow: Any) -> dict[str, pa.DataType]:
    header = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    types = (arrow.int64(), arrow.int64(), arrow.binary(), arrow.binary(), arrow.list_(header))
    return dict(zip(COLUMNS, types, strict=True))


_FIELDS: dict[str, Callable[[StoredRecord], Any]] = {
    "offset": lambda record: record.offset,
    "timestamp": lambda record: record.timestamp_ms,
    "key": lambda record: record.key,
    "value": lambda record: record.value,
    "headers": lambda record: [{"key": key, "value": value} for key, value in record.headers],
}
