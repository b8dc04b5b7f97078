"""A batch of records, with its typed columns; and what becomes of rows that cannot be read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millstream.client.partition import TopicPartition
from millstream.errors import BadRecord
from millstream.spark.formats.bad_records import BadRecords, OnBad, bad_records_from
from millstream.spark.formats.dead_letters import dead_letters
from millstream.spark.formats.typed_columns import ERROR_COLUMN, typed_fields
from millstream.spark.formats.value_format import Decoded, ValueFormat

__all__ = [
    "Applied",
    "BadRecords",
    "OnBad",
    "applied_fields",
    "apply_format",
    "bad_records_from",
]


class Applied(NamedTuple):
    """A batch with its typed columns."""

    records: pa.RecordBatch
    """The columns of the batch, the typed ones, and `_error` for `OnBad.NULL`."""
    dead_letters: pa.RecordBatch | None
    """What has to be written to the dead letter topic before the batch counts as read."""


def applied_fields(
    value_format: ValueFormat, on_bad: OnBad = OnBad.FAIL, *, prefix: str = ""
) -> list[pa.Field]:
    """Return the columns that `apply_format` adds."""
    fields = typed_fields(value_format, prefix=prefix)
    if on_bad is OnBad.NULL:
        fields.append(pa.field(ERROR_COLUMN, pa.string()))
    return fields


def apply_format(
    batch: pa.RecordBatch,
    value_format: ValueFormat,
    on_bad: OnBad = OnBad.FAIL,
    *,
    origin: TopicPartition,
    prefix: str = "",
) -> Applied:
    """Add the typed columns to records of one partition, as `records/columns.py` decodes them.

    Needs the columns `offset` and `value`; for dead letters all. With `OnBad.FAIL`, raises
    `BadRecord` for the first that cannot be read.
    """
    decoded = value_format.decode(batch.column("value"))
    if decoded.bad.size and on_bad is OnBad.FAIL:
        raise _bad_record(batch, decoded, origin)
    columns = [*batch.columns, *decoded.columns]
    if on_bad is OnBad.NULL:
        columns.append(_errors(decoded, batch.num_rows))
    fields = [*batch.schema, *applied_fields(value_format, on_bad, prefix=prefix)]
    records = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    if not decoded.bad.size or on_bad is OnBad.NULL:
        return Applied(records, None)
    is_kept = np.ones(batch.num_rows, np.bool_)
    is_kept[decoded.bad] = False
    letters = dead_letters(origin, batch.take(pa.array(decoded.bad)), decoded.reasons)
    return Applied(records.filter(pa.array(is_kept)), letters)


def _bad_record(batch: pa.RecordBatch, decoded: Decoded, origin: TopicPartition) -> BadRecord:
    row = int(decoded.bad[0])
    offset = batch.column("offset")[row].as_py()
    more = f", and {decoded.bad.size - 1} more in the batch" if decoded.bad.size > 1 else ""
    return BadRecord(
        f"topic {origin.topic!r}, partition {origin.partition}, offset {offset}:"
        f" {decoded.reasons[0].as_py()}{more}"
    )


def _errors(decoded: Decoded, rows: int) -> pa.StringArray:
    """Return a column that is null but for the bad rows."""
    places = np.zeros(rows, np.int64)
    is_null = np.ones(rows, np.bool_)
    places[decoded.bad] = np.arange(decoded.bad.size)
    is_null[decoded.bad] = False
    return decoded.reasons.take(pa.array(places, mask=is_null))
