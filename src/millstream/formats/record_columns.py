"""Records decoded to Arrow as rows of a table, for every reader of topics as tables."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.records.topic_partition import TopicPartition

_STORED = {
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "key": "key",
    "value": "value",
    "headers": "headers",
}
"""Columns that come from the records, with their names in `records/arrow/decoder.py`."""


def stored_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of the records that must be decoded for these columns of the table."""
    return [_STORED[name] for name in names if name in _STORED]


def make_table(
    decoded: pa.RecordBatch, partition: TopicPartition, schema: pa.Schema
) -> pa.RecordBatch:
    """Return decoded records as rows of the table."""
    arrays = [_column(decoded, partition, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(decoded: pa.RecordBatch, partition: TopicPartition, field: pa.Field) -> pa.Array:
    if field.name == "topic":
        return pa.repeat(pa.scalar(partition.topic, field.type), decoded.num_rows)
    if field.name == "partition":
        return pa.repeat(pa.scalar(partition.partition, field.type), decoded.num_rows)
    column = decoded.column(_STORED.get(field.name, field.name))
    if field.name == "timestamp":
        return _timestamps(column, field.type)
    return column if column.type == field.type else column.cast(field.type)


def _timestamps(milliseconds: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return timestamps in microseconds, as tables have them; null if they do not fit."""
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to import, and only timestamps need it.

    try:
        return pc.multiply_checked(milliseconds, 1000).cast(kind)
    except pa.ArrowInvalid:
        limit = (2**63 - 1) // 1000
        is_within = pc.and_(
            pc.less_equal(milliseconds, limit), pc.greater_equal(milliseconds, -limit)
        )
        kept = pc.if_else(is_within, milliseconds, pa.scalar(None, pa.int64()))
        return pc.multiply(kept, 1000).cast(kind)
