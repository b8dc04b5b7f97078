"""How parts of the table are made of decoded records, in Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.records.topic_partition import TopicPartition

_STORED = {
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "key": "key",
    "value": "value",
    "headers": "headers",
}
"""Which columns come from the records, and what `records.columns` calls them."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return what Spark wants Arrow batches of this schema to look like, to the last detail."""
    return to_arrow_schema(schema, timezone="UTC")


def stored_columns(names: Sequence[str]) -> list[str]:
    """Return what has to be decoded of the records for the columns of these names."""
    return [_STORED[name] for name in names if name in _STORED]


def make_table(decoded: pa.RecordBatch, where: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    """Return decoded records as a part of the table."""
    arrays = [_column(decoded, where, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(decoded: pa.RecordBatch, where: TopicPartition, field: pa.Field) -> pa.Array:
    if field.name == "topic":
        return pa.repeat(pa.scalar(where.topic, field.type), decoded.num_rows)
    if field.name == "partition":
        return pa.repeat(pa.scalar(where.partition, field.type), decoded.num_rows)
    found = decoded.column(_STORED.get(field.name, field.name))
    if field.name == "timestamp":
        return _moments(found, field.type)
    return found if found.type == field.type else found.cast(field.type)


def _moments(milliseconds: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return moments of Spark, which counts in microseconds; what is beyond it becomes null."""
    import pyarrow.compute as pc  # noqa: PLC0415 - slow to load, and needed for times alone.

    try:
        return pc.multiply_checked(milliseconds, 1000).cast(kind)
    except pa.ArrowInvalid:
        limit = (2**63 - 1) // 1000
        is_within = pc.and_(
            pc.less_equal(milliseconds, limit), pc.greater_equal(milliseconds, -limit)
        )
        kept = pc.if_else(is_within, milliseconds, pa.scalar(None, pa.int64()))
        return pc.multiply(kept, 1000).cast(kind)
