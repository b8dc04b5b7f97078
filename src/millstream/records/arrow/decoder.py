"""Decoder from batches to Arrow columns.

    offset          int64
    timestamp       int64                                     milliseconds since 1970
    key             binary                                    null if the record has none
    value           binary                                    null if the record has none
    headers         list<struct<key: string, value: binary>>  empty if the record has none
    timestamp_type  int32                                     0: the producer's, 1: the log's

Needs `pyarrow`. With Numba, compiled kernels decode large numbers of records; the plain-Python
reader decodes small ones, and all of them without Numba. The columns are the same. Only the
requested columns are decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import RequestError
from millstream.records.batch import BatchHeader, Bytes
from millstream.records.body import BatchBody, group_bodies, open_bodies
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.iterate import records_of
from millstream.records.kernels.dispatch import KernelDispatch
from millstream.records.record import StoredRecord

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("offset", "timestamp", "key", "value", "headers")
"""The default columns: the record itself."""

ALL_COLUMNS = (*COLUMNS, "timestamp_type")

_GROUP_SIZE_MAX = 16 * 1024 * 1024
"""Bytes of bodies per Arrow batch: enough to make its overhead negligible, few enough to hold."""

_ARROW_SIZE_MAX = 2**31 - 1
"""Arrow's binary type counts bytes in an int32, so no body may be larger."""

_OFFSETS = range(-(2**63), 2**63)


class _Bounds(NamedTuple):
    """The requested range of offsets: from `start` up to, not including, `end`."""

    start: int
    end: int

    def overlaps(self, header: BatchHeader) -> bool:
        """Whether the batch may have offsets in the range."""
        return header.base_offset < self.end and header.last_offset >= self.start

    def cuts(self, header: BatchHeader) -> bool:
        """Whether the batch may have offsets outside the range."""
        return self.cuts_front(header) or self.cuts_back(header)

    def cuts_front(self, header: BatchHeader) -> bool:
        """Whether the batch may have offsets before the range."""
        return header.base_offset < self.start

    def cuts_back(self, header: BatchHeader) -> bool:
        """Whether the batch may have offsets after the range."""
        return header.last_offset >= self.end


def is_data(header: BatchHeader) -> bool:
    """Whether a batch holds records of applications, not a marker."""
    return not header.is_control


def arrow_batches(
    data: Bytes,
    *,
    columns: Sequence[str] = COLUMNS,
    check: bool = True,
    size_max: int = BODY_SIZE_MAX,
    is_wanted: Callable[[BatchHeader], bool] = is_data,
    start: int | None = None,
    end: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode the batches in `data` into the requested columns, without the control batches.

    `check` verifies the checksum of each batch. No batch may decompress to more than `size_max`
    bytes. Yields Arrow batches up to the first corrupt batch, then raises `CorruptBatch`.

    `is_wanted` decides by the header which batches are decoded. It is called once for each batch in
    `data`, in order, so it may keep state; a caller that passes one must refuse control batches
    itself. Records before `start`, and from `end` on, are left out; batches without others are not
    decompressed.

    Without columns, the Arrow batches have rows but no columns. Records are then counted by their
    headers and not decoded, except in a batch that extends beyond `start` or `end`.
    """
    schema = column_schema(columns)
    bounds = _Bounds(
        _OFFSETS.start if start is None else start, _OFFSETS.stop if end is None else end
    )

    def is_in_range(header: BatchHeader) -> bool:
        return is_wanted(header) and bounds.overlaps(header)

    bodies = open_bodies(
        data,
        check=check,
        size_max=min(size_max, _ARROW_SIZE_MAX),
        is_wanted=is_in_range,
        is_opened=None if columns else bounds.cuts,
    )
    return _decoded(data, bodies, bounds, schema)


def column_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of what `arrow_batches` yields for `columns`."""
    unknown = [column for column in columns if column not in ALL_COLUMNS]
    if unknown or len(set(columns)) < len(columns):
        raise RequestError(
            f"columns must be from {list(ALL_COLUMNS)}, each at most once, got {list(columns)}"
        )
    arrow = _arrow()
    types = _types(arrow)
    return arrow.schema([(column, types[column]) for column in columns])


def _decoded(
    data: Bytes, bodies: Iterable[BatchBody], bounds: _Bounds, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    groups = group_bodies(
        bodies, size_max=_GROUP_SIZE_MAX, is_first=bounds.cuts_front, is_last=bounds.cuts_back
    )
    for group in groups:
        # A batch with offsets before the range begins a group, and one with offsets after it ends
        # a group. So rows to drop can only be at the front of the first and the back of the last.
        rows = sum(body.header.record_count for body in group)
        first, stop = 0, rows
        if bounds.cuts_front(group[0].header):
            first = _rows_before(data, group[0], bounds.start)
        if bounds.cuts_back(group[-1].header):
            stop += _rows_before(data, group[-1], bounds.end) - group[-1].header.record_count
        arrays = _decode(data, group, schema.names) if schema.names else []
        if first < stop:
            yield _batch(
                [array.slice(first, stop - first) for array in arrays], stop - first, schema
            )


def _batch(arrays: list[pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    arrow = _arrow()
    if arrays:
        return arrow.RecordBatch.from_arrays(arrays, schema=schema)
    empty = arrow.StructArray.from_buffers(arrow.struct([]), rows, [None], children=[])
    return arrow.RecordBatch.from_struct_array(empty)


def _rows_before(data: Bytes, body: BatchBody, offset: int) -> int:
    """Count the records of a batch before an offset; offsets in a batch ascend."""
    (offsets,) = _decode(data, [body], ["offset"])
    return bisect_left(range(len(offsets)), offset, key=lambda row: offsets[row].as_py())


def _arrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra: the log itself does without.
    except ImportError as error:
        raise RequestError("Arrow columns need pyarrow: install millstream[arrow]") from error
    return pa


def _decode(data: Bytes, group: Sequence[BatchBody], columns: Sequence[str]) -> list[pa.Array]:
    records = sum(body.header.record_count for body in group)
    return _DECODE.choose(records)(data, group, columns)


def decode_python(_: Bytes, group: Sequence[BatchBody], columns: Sequence[str]) -> list[pa.Array]:
    """Reference in plain Python for `decoder_vectorized.decode`."""
    arrow = _arrow()
    types = _types(arrow)
    records = [
        (body.header, record) for body in group for record in records_of(body.header, body.records)
    ]
    return [
        arrow.array([_FIELDS[column](header, record) for header, record in records], types[column])
        for column in columns
    ]


def _types(arrow: Any) -> dict[str, pa.DataType]:
    header = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    return {
        "offset": arrow.int64(),
        "timestamp": arrow.int64(),
        "key": arrow.binary(),
        "value": arrow.binary(),
        "headers": arrow.list_(header),
        "timestamp_type": arrow.int32(),
    }


_FIELDS: dict[str, Callable[[BatchHeader, StoredRecord], Any]] = {
    "offset": lambda _, record: record.offset,
    "timestamp": lambda _, record: record.timestamp_ms,
    "key": lambda _, record: record.key,
    "value": lambda _, record: record.value,
    "headers": lambda _, record: [{"key": key, "value": value} for key, value in record.headers],
    "timestamp_type": lambda header, _: int(header.is_log_append_time),
}


def _compiled() -> Any:
    from millstream.records.arrow.decoder_vectorized import decode  # noqa: PLC0415 - an extra, and slow to load.

    return decode


_DECODE = KernelDispatch(decode_python, _compiled)
