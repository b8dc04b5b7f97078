"""Conversion of rows to records of a topic."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, struct, to_json
from pyspark.sql.types import AtomicType, BinaryType, StringType

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.target import TopicTarget

_VALUE = "value"
_RECORD = frozenset({_VALUE, "key", "topic", "partition", "timestamp", "headers"})
"""Columns of rows that are already records."""


def as_records(rows: DataFrame, target: TopicTarget) -> DataFrame:
    """Return rows with the columns that the sink accepts."""
    if target.format == "raw" or (target.format is None and _are_records(rows, target)):
        if _VALUE not in rows.columns or not _RECORD.issuperset(rows.columns):
            raise InvalidPipeline(
                f"targets.{target.name} has format 'raw', so columns must be value and some of"
                f" {', '.join(sorted(_RECORD))}, got {', '.join(rows.columns)}"
            )
        return rows
    if target.format == "declared":
        return rows if target.key is None else rows.withColumn("key", _key(rows, target))
    value = to_json(struct([_column(name) for name in rows.columns])).alias(_VALUE)
    return rows.select(value) if target.key is None else rows.select(_key(rows, target), value)


def _are_records(rows: DataFrame, target: TopicTarget) -> bool:
    return (
        target.key is None
        and _VALUE in rows.columns
        and _RECORD.issuperset(rows.columns)
        and isinstance(rows.schema[_VALUE].dataType, BinaryType | StringType)
    )


def _key(rows: DataFrame, target: TopicTarget) -> Column:
    """Return the key column: bytes unchanged, other types as text."""
    assert target.key is not None
    types = {field.name: field.dataType for field in rows.schema}
    if target.key not in types:
        raise InvalidPipeline(
            f"targets.{target.name}.key must be one of the columns {', '.join(rows.columns)}, got"
            f" {target.key!r}"
        )
    kind = types[target.key]
    if not isinstance(kind, AtomicType):
        raise InvalidPipeline(
            f"targets.{target.name}.key must be a column of a simple type, such as a number or a"
            f" string, got {target.key!r} of type {kind.simpleString()}"
        )
    column = _column(target.key)
    return (column if isinstance(kind, BinaryType) else column.cast("string")).alias("key")


def _column(name: str) -> Column:
    """Return the column with exactly this name, which may have dots."""
    return col("`" + name.replace("`", "``") + "`")
