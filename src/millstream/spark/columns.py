"""Columns of a topic as a Spark table.

topic          STRING
partition      INT
offset         BIGINT
timestamp      TIMESTAMP                                 of the record
timestampType  INT                                       0 set by the producer, 1 by the broker
key            BINARY                                    null if the record has none
value          BINARY                                    null if the record has none
headers        ARRAY<STRUCT<key: STRING, value: BINARY>> only with includeHeaders
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.errors import InvalidConfig
from millstream.formats.names import COLUMN_NAMES

HEADERS = "headers"

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

_TYPES = (
    StringType(),
    IntegerType(),
    LongType(),
    TimestampType(),
    IntegerType(),
    BinaryType(),
    BinaryType(),
    ArrayType(_HEADER),
)

TABLE = StructType([StructField(*column) for column in zip(COLUMN_NAMES, _TYPES, strict=True)])

TABLE_NAMES = frozenset(COLUMN_NAMES)

_TABLE_LOWER = frozenset(name.lower() for name in COLUMN_NAMES)


def is_table_name(name: str) -> bool:
    """Whether every topic has this column. Case does not matter, as in Spark."""
    return name.lower() in _TABLE_LOWER


def spelled(name: str, known: Collection[str]) -> str | None:
    """Return the one of the `known` columns that a name means, or `None`.

    Case does not matter, as in Spark, unless there is a column of exactly this name.
    """
    if name in known:
        return name
    return next((each for each in known if each.lower() == name.lower()), None)


def table_schema(
    *, include_headers: bool, columns: Sequence[str] | None, typed: StructType
) -> StructType:
    """Return the columns of a topic, or those named in `columns`."""
    if columns is None:
        stored = [field for field in TABLE if include_headers or field.name != HEADERS]
        return StructType([*stored, *typed])
    known = {field.name: field for field in (*TABLE, *typed)}
    names = {name: spelled(name, known) for name in columns}
    if unknown := [name for name, meant in names.items() if meant is None]:
        raise InvalidConfig(f"columns must be some of {list(known)}, got {unknown}")
    return StructType([known[meant] for meant in names.values() if meant is not None])


def check_schema(schema: StructType, known: StructType) -> None:
    """Raise `InvalidConfig` unless each column of `schema` is one of `known`, with its type."""
    types = {field.name: field.dataType for field in known}
    for field in schema:
        if (allowed := types.get(spelled(field.name, types) or "")) is None:
            raise InvalidConfig(
                f"column {field.name!r} does not exist, the columns are {list(types)}"
            )
        if field.dataType.simpleString() != allowed.simpleString():
            raise InvalidConfig(
                f"column {field.name} must be of type {allowed.simpleString()}, got"
                f" {field.dataType.simpleString()}"
            )
