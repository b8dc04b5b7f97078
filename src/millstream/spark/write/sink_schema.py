"""Columns that a sink accepts, checked at planning time before anything is written.

value       BINARY or STRING                           required
key         BINARY or STRING
topic       STRING                                     required if the option topic is not set
partition   INT
timestamp   TIMESTAMP, or BIGINT in milliseconds
headers     ARRAY<STRUCT<key: STRING, value: BINARY>>
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql.types import StructType

from millstream.errors import InvalidConfig
from millstream.spark.options import WriteOptions

_BYTES = ("binary", "string")

SINK_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "value": _BYTES,
        "key": _BYTES,
        "topic": ("string",),
        "partition": ("int",),
        "timestamp": ("timestamp", "bigint"),
        "headers": ("array<struct<key:string,value:binary>>",),
    }
)


def part_of(name: str, *, is_typed: bool) -> str:
    """Return the part of a record that a column is, or the column itself.

    Case does not matter, as in Spark; but in typed rows `Key` may be a field of the value.
    """
    return name if is_typed or name.lower() not in SINK_TYPES else name.lower()


def check_sink(schema: StructType, options: WriteOptions, *, is_typed: bool = False) -> None:
    """Raise `InvalidConfig` unless rows of this schema can be written.

    If values are typed, they are encoded from all columns that are not another part of a record.
    """
    for field in schema:
        allowed = SINK_TYPES.get(part_of(field.name, is_typed=is_typed))
        if allowed is None and is_typed:
            continue
        if allowed is None:
            raise InvalidConfig(
                f"column {field.name!r} is not a part of a record, which has {list(SINK_TYPES)}; to"
                " write several columns as one value, use to_json(struct(...)), a topic that"
                " declares a schema, or the option valueFormat"
            )
        if (kind := field.dataType.simpleString()) not in allowed:
            raise InvalidConfig(
                f"column {field.name} must be of type {' or '.join(allowed)}, got {kind}"
            )
    names = [part_of(name, is_typed=is_typed) for name in schema.fieldNames()]
    if "value" not in names and not is_typed:
        raise InvalidConfig(f"columns must include value, got {names}")
    if "topic" not in names and options.topic is None:
        raise InvalidConfig(
            f"columns must include topic, or the option topic must be set, got {names}"
        )
