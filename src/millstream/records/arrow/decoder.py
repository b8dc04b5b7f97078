"""Batch to columns: what analytics reads, as Arrow.

    offset          int64
    timestamp       int64                                     milliseconds since 1970
    key             binary                                    null where the record has none
    value           binary                                    null where the record has none
    headers         list<struct<key: string, value: binary>>  empty where the record has none
    timestamp_type  int32                                     0: the producer's, 1: the log's

Needs `pyarrow`. With Numba many records are decoded by compiled kernels; few records, and all
without it, by the plain-Python reader. The columns are the same. What is not asked for is not
decoded.
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
"""What comes back unless asked otherwise: the record itself."""

ALL_COLUMNS = (*COLUMNS, "timestamp_type")

_GROUP_SIZE_MAX = 16 * 1024 * 1024
"""Bodies decoded into one Arrow batch: enough to make its overhead vanish, little to hold."""

_ARROW_SIZE_MAX = 2**31 - 1
"""Arrow's binary type counts bytes in an int32, so no body may be larger."""

_OFFSETS = range(-(2**63), 2**63)


class _Bounds(NamedTuple):
    """Which offsets are wanted: from `start` to before `end`."""

    start: int
    end: int

    def touch(self, header: BatchHeader) -> bool:
        """Whether the batch may hold some of them."""
        return header.base_offset < self.end and header.last_offset >= self.start

    def cut(self, header: BatchHeader) -> bool:
        """Whether the batch may hold others too."""
        return self.cut_front(header) or self.cut_back(header)

    def cut_front(self, header: BatchHeader) -> bool:
        """Whether the batch may hold offsets before them."""
        return header.base_offset < self.start

    def cut_back(self, header: BatchHeader) -> bool:
        """Whether the batch may hold offsets after them."""
        return header.last_offset >= self.end


def is_data(header: BatchHeader) -> bool:
    """Whether a batch has records of applications, and no marker."""
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
    """Decode the batches in `data` into the asked columns, without the control batches.

    `check` verifies each batch's sum. No batch may unpack to over `size_max` bytes. Arrow batches
    come out as far as the data is sound, then `CorruptBatch` says what is wrong.

    `is_wanted` decides by the header which batches are decoded. It is asked once for each in
    `data`, in order, so it may remember what it saw; who gives one has to refuse control batches
    too. Records before `start`, and from `end` on, are left out, and batches that hold no others
    are not unpacked.

    Without columns, what comes out has rows and nothing in them. Records are then counted by what
    the headers say and not looked at, save where a batch reaches beyond `start` or `end`.
    """
    schema = column_schema(columns)
    bounds = _Bounds(
        _OFFSETS.start if start is None else start, _OFFSETS.stop if end is None else end
    )

    def is_touched(header: BatchHeader) -> bool:
        return is_wanted(header) and bounds.touch(header)

    bodies = open_bodies(
        data,
        check=check,
        size_max=min(size_max, _ARROW_SIZE_MAX),
        is_wanted=is_touched,
        is_opened=None if columns else bounds.cut,
    )
    return _decoded(data, bodies, bounds, schema)


def column_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of what `arrow_batches` gives for `columns`."""
    unknown = [column for column in columns if column not in ALL_COLUMNS]
    if unknown or len(set(columns)) < len(columns):
        raise RequestError(
            f"columns are {list(columns)}, allowed is each once of {list(ALL_COLUMNS)}"
        )
    arrow = _arrow()
    types = _types(arrow)
    return arrow.schema([(column, types[column]) for column in columns])


def _decoded(
    data: Bytes, bodies: Iterable[BatchBody], bounds: _Bounds, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    groups = group_bodies(
        bodies, size_max=_GROUP_SIZE_MAX, is_first=bounds.cut_front, is_last=bounds.cut_back
    )
    for group in groups:
        # Only the first of a group can reach beyond the start, and only the last beyond the end.
        rows = sum(body.header.record_count for body in group)
        first, stop = 0, rows
        if bounds.cut_front(group[0].header):
            first = _rows_before(data, group[0], bounds.start)
        if bounds.cut_back(group[-1].header):
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
    nothing = arrow.StructArray.from_buffers(arrow.struct([]), rows, [None], children=[])
    return arrow.RecordBatch.from_struct_array(nothing)


def _rows_before(data: Bytes, body: BatchBody, offset: int) -> int:
    """Count the records of a batch that come before an offset; offsets rise in it."""
    (offsets,) = _decode(data, [body], ["offset"])
    return bisect_left(range(len(offsets)), offset, key=lambda row: offsets[row].as_py())


def _arrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra: the log itself does without.
    except ImportError as error:
        raise RequestError("columns need pyarrow: pip install millstream[arrow]") from error
    return pa


def _decode(data: Bytes, group: Sequence[BatchBody], columns: Sequence[str]) -> list[pa.Array]:
    records = sum(body.header.record_count for body in group)
    return _DECODE.choose(records)(data, group, columns)


def decode_python(_: Bytes, group: Sequence[BatchBody], columns: Sequence[str]) -> list[pa.Array]:
    """Do in plain Python what `vectors.decode` does with kernels."""
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
