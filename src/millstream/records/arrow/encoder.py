"""Columns to batches: how rows of Arrow become what a log stores.

    key        binary or string                          null, or no column: the record has none
    value      binary or string                          null, or no column: the record has none
    headers    list<struct<key: string, value: binary>>  null, or no column: no headers
    timestamp  int64                                     milliseconds since 1970; null, or no
                                                         column: the present, as the caller says

The large variants of all of these are taken too. With Numba many records are written by compiled
kernels; few records, and all without it, by `build_batch`. The bytes are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import structs

from millstream.errors import BatchTooLarge, InvalidBatch, RequestError
from millstream.records.batch import (
    BATCH_SIZE_MAX,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Bytes,
)
from millstream.records.build import build_batch
from millstream.records.compression import BODY_SIZE_MAX, Codec
from millstream.records.kernels.dispatch import KernelDispatch
from millstream.records.record import Record
from millstream.records.varint import encode_varlong

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from millstream.records.arrow.encoder_kernels import EncodeInput

    Rows: TypeAlias = NDArray[np.int64]

BATCH_BODY_MAX = BATCH_SIZE_MAX - HEADER_SIZE

_SEQUENCES = 2**31
"""Sequences are int32 on the wire; after the last one they start at 0 again."""

_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class RecordColumns:
    """The rows to write, column by column; what is not there is null in all rows.

    Hold on to it as long as rows of it are written: what the kernels need to know of the arrays is
    worked out once.
    """

    key: pa.Array | None = None
    value: pa.Array | None = None
    headers: pa.Array | None = None
    timestamp: pa.Array | None = None

    def __post_init__(self) -> None:
        sizes = {name: len(array) for name, array in self._arrays.items()}
        if len(set(sizes.values())) != 1:
            raise RequestError(f"columns have {sizes} rows, needed is one column, and all alike")
        for name, array in self._arrays.items():
            check_type(name, array.type)

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(next(iter(self._arrays.values())))

    @cached_property
    def source(self) -> EncodeInput:
        """The columns as the kernels see them. Needs Numba."""
        from millstream.records.arrow.encoder_vectorized import encode_input_of  # noqa: PLC0415 - slow to load.

        return encode_input_of(self)

    @property
    def _arrays(self) -> dict[str, pa.Array]:
        named = {
            "key": self.key,
            "value": self.value,
            "headers": self.headers,
            "timestamp": self.timestamp,
        }
        return {name: array for name, array in named.items() if array is not None}


class BuiltBatch(NamedTuple):
    """One whole batch, as `build_batch` makes it."""

    data: Bytes
    record_count: int


class EncodeSettings(NamedTuple):
    """What all batches have in common, and where their sequences begin."""

    now_ms: int
    size_max: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    codec: Codec

    @property
    def record_size_max(self) -> int:
        """How large a single record may be; packing makes it smaller, so more is allowed then."""
        return BATCH_BODY_MAX if self.codec == Codec.NONE else BODY_SIZE_MAX


def encode_batches(
    columns: RecordColumns,
    *,
    rows: Rows | None = None,
    now_ms: int,
    size_max: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    codec: Codec = Codec.NONE,
) -> Iterator[BuiltBatch]:
    """Write rows as batches: those numbered in `rows`, in that order, or all.

    A batch has as many records as fit into `size_max` bytes before they are packed; a larger
    record has one of its own. One that no batch can hold raises `BatchTooLarge` once the batches
    before it were given out. Rows without a timestamp get `now_ms`. Sequences count records, from
    `base_sequence` on. The bytes of a batch are the caller's to keep.
    """
    if not 1 <= size_max <= BATCH_BODY_MAX:
        raise RequestError(f"size_max is {size_max}, allowed is 1-{BATCH_BODY_MAX}")
    if not NO_SEQUENCE <= base_sequence < _SEQUENCES:
        raise RequestError(f"base sequence is {base_sequence}, allowed is -1-{_SEQUENCES - 1}")
    if now_ms not in _INT64:
        raise RequestError(f"now_ms is {now_ms}, allowed is what has 64 bits")
    if rows is not None:
        _check_rows(rows, columns.row_count)
    settings = EncodeSettings(
        now_ms, size_max, producer_id, producer_epoch, base_sequence, is_transactional, codec
    )
    encode = _ENCODE.choose(columns.row_count if rows is None else len(rows))
    return encode(columns, rows, settings)


def next_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence of the record after so many, counted from `base_sequence` on."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (base_sequence + record_count) % _SEQUENCES


def row_too_large(row: int, size: int, size_max: int) -> BatchTooLarge:
    """What is raised for a record that no batch can hold."""
    return BatchTooLarge(f"row {row} has {size} bytes as a record, limit is {size_max}")


def keyless_header(row: int) -> InvalidBatch:
    """What is raised for a header that Kafka has no bytes for."""
    return InvalidBatch(f"row {row} has a header without a key, allowed is any text, also empty")


def encode_python(
    columns: RecordColumns, rows: Rows | None, settings: EncodeSettings
) -> Iterator[BuiltBatch]:
    """Do in plain Python what `encode_vectors.encode` does with kernels."""
    sequence = settings.base_sequence
    for records in _cut(columns, rows, settings):
        data = build_batch(
            records,
            now_ms=settings.now_ms,
            codec=settings.codec,
            producer_id=settings.producer_id,
            producer_epoch=settings.producer_epoch,
            base_sequence=sequence,
            is_transactional=settings.is_transactional,
        )
        yield BuiltBatch(data, len(records))
        sequence = next_sequence(sequence, len(records))


def _check_rows(rows: Rows, row_count: int) -> None:
    if rows.dtype != "int64":
        raise RequestError(f"rows are {rows.dtype}, allowed is int64")
    if len(rows) and not 0 <= rows.min() <= rows.max() < row_count:
        raise RequestError(f"rows are {rows.min()}-{rows.max()}, allowed is 0-{row_count - 1}")


def _cut(
    columns: RecordColumns, rows: Rows | None, settings: EncodeSettings
) -> Iterator[list[Record]]:
    """Gather the wanted rows into lists that each become a batch."""
    gathered: list[Record] = []
    base = body_size = 0
    for row in range(columns.row_count) if rows is None else rows.tolist():
        record, timestamp = _record(columns, row), _timestamp(columns, row, settings.now_ms)
        is_keyless = any(key is None for key, _ in record.headers)
        is_near = timestamp - base in _INT64
        if gathered and (
            is_keyless
            or not is_near
            or body_size + _size(record, len(gathered), timestamp - base) > settings.size_max
        ):
            yield gathered
            gathered, body_size = [], 0
        if is_keyless:
            raise keyless_header(row)
        if not gathered:
            base = timestamp
        body_size += _size(record, len(gathered), timestamp - base)
        if body_size > settings.record_size_max:
            raise row_too_large(row, body_size, settings.record_size_max)
        gathered.append(structs.replace(record, timestamp_ms=timestamp))
    if gathered:
        yield gathered


def _record(columns: RecordColumns, row: int) -> Record:
    headers = None if columns.headers is None else columns.headers[row].as_py()
    return Record(
        value=_cell(columns.value, row),
        key=_cell(columns.key, row),
        headers=tuple((pair and pair["key"], pair and pair["value"]) for pair in headers or ()),
    )


def _cell(column: pa.Array | None, row: int) -> bytes | None:
    if column is None or (found := column[row].as_buffer()) is None:
        return None
    return bytes(found)


def _timestamp(columns: RecordColumns, row: int, now_ms: int) -> int:
    found = None if columns.timestamp is None else columns.timestamp[row].as_py()
    return now_ms if found is None else int(found)


def _size(record: Record, offset_delta: int, timestamp_delta: int) -> int:
    """How many bytes a record takes, its length included."""
    numbers = [timestamp_delta, offset_delta, len(record.headers)]
    fields = [record.key, record.value]
    for key, value in record.headers:
        fields += (key.encode(), value)
    numbers += (-1 if field is None else len(field) for field in fields)
    size = 1 + sum(len(encode_varlong(number)) for number in numbers)
    size += sum(len(field) for field in fields if field is not None)
    return len(encode_varlong(size)) + size


def check_type(name: str, kind: pa.DataType) -> None:
    """Raise `RequestError` unless the column of that name may have that type."""
    if not _is_allowed(name, kind):
        raise RequestError(f"column {name} is {kind}, allowed is {_ALLOWED[name]}")


def _is_allowed(name: str, kind: pa.DataType) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - an extra: the log itself does without.

    texts = (pa.string(), pa.large_string())
    blobs = (*texts, pa.binary(), pa.large_binary())
    if name == "timestamp":
        return bool(kind == pa.int64())
    if name != "headers":
        return kind in blobs
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    pair = kind.value_type
    return (
        pa.types.is_struct(pair)
        and [field.name for field in pair] == ["key", "value"]
        and pair[0].type in texts
        and pair[1].type in blobs
    )


def _compiled() -> Any:
    from millstream.records.arrow.encoder_vectorized import encode  # noqa: PLC0415 - slow to load.

    return encode


_ALLOWED = {
    "key": "binary or string",
    "value": "binary or string",
    "headers": "list<struct<key: string, value: binary>>",
    "timestamp": "int64",
}

_ENCODE = KernelDispatch(encode_python, _compiled)
