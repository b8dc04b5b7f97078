"""Encoder from Arrow columns to batches.

    key        binary or string                          null, or no column: the record has none
    value      binary or string                          null, or no column: the record has none
    headers    list<struct<key: string, value: binary>>  null, or no column: no headers
    timestamp  int64                                     milliseconds since 1970; null, or no
                                                         column: the caller's `now_ms`

The large variants of these types are accepted too. With Numba, compiled kernels write large
numbers of records; `build_batch` writes small ones, and all of them without Numba. The bytes are
the same.
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
    """The rows to write, as columns; a missing column is null in all rows.

    Keep the object as long as its rows are being written: the arrays are prepared for the kernels
    once, at first use.
    """

    key: pa.Array | None = None
    value: pa.Array | None = None
    headers: pa.Array | None = None
    timestamp: pa.Array | None = None

    def __post_init__(self) -> None:
        sizes = {name: len(array) for name, array in self._arrays.items()}
        if len(set(sizes.values())) != 1:
            raise RequestError(
                f"there must be at least one column, all with the same number of rows, got {sizes}"
            )
        for name, array in self._arrays.items():
            check_type(name, array.type)

    @property
    def row_count(self) -> int:
        return len(next(iter(self._arrays.values())))

    @cached_property
    def source(self) -> EncodeInput:
        """The columns as input of the kernels. Needs Numba."""
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
    """A complete batch, as `build_batch` returns it, and its number of records."""

    data: Bytes
    record_count: int


class EncodeSettings(NamedTuple):
    """Settings that all batches share, and the sequence of the first record."""

    now_ms: int
    size_max: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    codec: Codec

    @property
    def record_size_max(self) -> int:
        """Largest single record. Compression makes it smaller, so the limit is higher then."""
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
    """Write rows as batches: those whose numbers are in `rows`, in that order, or all.

    A batch has as many records as fit into `size_max` bytes before compression; a larger record
    gets a batch of its own. A record that no batch can hold raises `BatchTooLarge`, after the
    batches before it were yielded. Rows without a timestamp get `now_ms`. Sequences count records,
    from `base_sequence` on. The caller may keep the bytes of a batch.
    """
    if not 1 <= size_max <= BATCH_BODY_MAX:
        raise RequestError(f"size_max must be between 1 and {BATCH_BODY_MAX}, got {size_max}")
    if not NO_SEQUENCE <= base_sequence < _SEQUENCES:
        raise RequestError(
            f"base_sequence must be between -1 and {_SEQUENCES - 1}, got {base_sequence}"
        )
    if now_ms not in _INT64:
        raise RequestError(f"now_ms must fit into 64 bits, got {now_ms}")
    if rows is not None:
        _check_rows(rows, columns.row_count)
    settings = EncodeSettings(
        now_ms, size_max, producer_id, producer_epoch, base_sequence, is_transactional, codec
    )
    encode = _ENCODE.choose(columns.row_count if rows is None else len(rows))
    return encode(columns, rows, settings)


def next_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence that follows `record_count` records from `base_sequence` on."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (base_sequence + record_count) % _SEQUENCES


def row_too_large(row: int, size: int, size_max: int) -> BatchTooLarge:
    """Return the error for a record that no batch can hold."""
    return BatchTooLarge(f"a record must have at most {size_max} bytes, got {size} in row {row}")


def keyless_header(row: int) -> InvalidBatch:
    """Return the error for a header without a key, which Kafka's format cannot express."""
    return InvalidBatch(f"a header must have a key, which may be empty, got none in row {row}")


def encode_python(
    columns: RecordColumns, rows: Rows | None, settings: EncodeSettings
) -> Iterator[BuiltBatch]:
    """Reference in plain Python for `encoder_vectorized.encode`."""
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
        raise RequestError(f"rows must be int64, got {rows.dtype}")
    if len(rows) and not 0 <= rows.min() <= rows.max() < row_count:
        raise RequestError(
            f"rows must be between 0 and {row_count - 1}, got {rows.min()} to {rows.max()}"
        )


def _cut(
    columns: RecordColumns, rows: Rows | None, settings: EncodeSettings
) -> Iterator[list[Record]]:
    """Group the selected rows into lists of records; each list becomes a batch."""
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
    if column is None or (cell := column[row].as_buffer()) is None:
        return None
    return bytes(cell)


def _timestamp(columns: RecordColumns, row: int, now_ms: int) -> int:
    cell = None if columns.timestamp is None else columns.timestamp[row].as_py()
    return now_ms if cell is None else int(cell)


def _size(record: Record, offset_delta: int, timestamp_delta: int) -> int:
    """Return the encoded size of a record, its length field included."""
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
        raise RequestError(f"column {name} must be {_ALLOWED[name]}, got {kind}")


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
