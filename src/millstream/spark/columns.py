"""The columns of a topic as a Spark table.

topic          STRING
partition      INT
offset         BIGINT
timestamp      TIMESTAMP                                 of the record
timestampType  INT                                       0 set by the producer, 1 by the broker
key            BINARY                                    null where the record has none
value          BINARY                                    null where the record has none
headers        ARRAY<STRUCT<key: STRING, value: BINARY>> only with includeHeaders
"""

from __future__ import annotations

from collections.abc import Sequence

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

TABLE = StructType([StructField(*one) for one in zip(COLUMN_NAMES, _TYPES, strict=True)])

TABLE_NAMES = frozenset(COLUMN_NAMES)


def table_schema(
    *, include_headers: bool, columns: Sequence[str] | None, typed: StructType
) -> StructType:
    """Return the columns of a topic, or those of them that were asked for."""
    if columns is None:
        usual = [one for one in TABLE if include_headers or one.name != HEADERS]
        return StructType([*usual, *typed])
    known = {field.name: field for field in (*TABLE, *typed)}
    if unknown := [name for name in columns if name not in known]:
        raise InvalidConfig(f"columns has {unknown}, allowed are {list(known)}")
    return StructType([known[name] for name in columns])


def check_schema(schema: StructType, known: StructType) -> None:
    """Raise `InvalidConfig` unless each column of `schema` is one of `known`, with its type."""
    types = {field.name: field.dataType for field in known}
    for field in schema:
        if (allowed := types.get(field.name)) is None:
            raise InvalidConfig(f"column {field.name!r} is unknown, there are {list(types)}")
        if field.dataType.simpleString() != allowed.simpleString():
            raise InvalidConfig(
                f"column {field.name} was asked for as {field.dataType.simpleString()}, it is"
                f" {allowed.simpleString()}"
            )
