"""Typed columns for a batch of records, and the handling of bad records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import BadRecord
from millstream.formats.bad_records import BadRecords, OnBadRecord, bad_records_from
from millstream.formats.dead_letters import dead_letters
from millstream.formats.typed_columns import ERROR_COLUMN, typed_fields
from millstream.formats.value_format import TypedColumns, ValueFormat
from millstream.records.topic_partition import TopicPartition

__all__ = [
    "TypedBatch",
    "BadRecords",
    "OnBadRecord",
    "applied_fields",
    "apply_format",
    "bad_records_from",
]


class TypedBatch(NamedTuple):
    """A batch with its typed columns."""

    records: pa.RecordBatch
    """Columns of the batch, the typed columns, and `_error` for `OnBadRecord.NULL`."""
    dead_letters: pa.RecordBatch | None
    """Records to write to the dead letter topic before the batch counts as read."""


def applied_fields(
    value_format: ValueFormat, on_bad: OnBadRecord = OnBadRecord.FAIL, *, prefix: str = ""
) -> list[pa.Field]:
    """Return the columns that `apply_format` adds."""
    fields = typed_fields(value_format, prefix=prefix)
    if on_bad is OnBadRecord.NULL:
        fields.append(pa.field(ERROR_COLUMN, pa.string()))
    return fields


def apply_format(
    batch: pa.RecordBatch,
    value_format: ValueFormat,
    on_bad: OnBadRecord = OnBadRecord.FAIL,
    *,
    origin: TopicPartition,
    prefix: str = "",
) -> TypedBatch:
    """Add typed columns to records of one partition, decoded by `records/arrow/decoder.py`.

    Needs the columns `offset` and `value`; all columns for dead letters. With `OnBadRecord.FAIL`,
    raises `BadRecord` for the first bad record.
    """
    decoded = value_format.decode(batch.column("value"))
    if decoded.bad.size and on_bad is OnBadRecord.FAIL:
        raise _bad_record(batch, decoded, origin)
    columns = [*batch.columns, *decoded.columns]
    if on_bad is OnBadRecord.NULL:
        columns.append(_errors(decoded, batch.num_rows))
    fields = [*batch.schema, *applied_fields(value_format, on_bad, prefix=prefix)]
    records = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    if not decoded.bad.size or on_bad is OnBadRecord.NULL:
        return TypedBatch(records, None)
    is_kept = np.ones(batch.num_rows, np.bool_)
    is_kept[decoded.bad] = False
    letters = dead_letters(origin, batch.take(pa.array(decoded.bad)), decoded.reasons)
    return TypedBatch(records.filter(pa.array(is_kept)), letters)


def _bad_record(batch: pa.RecordBatch, decoded: TypedColumns, origin: TopicPartition) -> BadRecord:
    row = int(decoded.bad[0])
    offset = batch.column("offset")[row].as_py()
    more = f", and {decoded.bad.size - 1} more in the batch" if decoded.bad.size > 1 else ""
    return BadRecord(
        f"topic {origin.topic!r}, partition {origin.partition}, offset {offset}:"
        f" {decoded.reasons[0].as_py()}{more}"
    )


def _errors(decoded: TypedColumns, rows: int) -> pa.StringArray:
    """Return the column `_error`: the reason in each bad row, null in all others."""
    places = np.zeros(rows, np.int64)
    is_null = np.ones(rows, np.bool_)
    places[decoded.bad] = np.arange(decoded.bad.size)
    is_null[decoded.bad] = False
    return decoded.reasons.take(pa.array(places, mask=is_null))
