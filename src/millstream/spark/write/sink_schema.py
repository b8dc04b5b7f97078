"""Which columns a sink takes, checked when a write is planned and before anything is written.

value       BINARY or STRING                           needed
key         BINARY or STRING
topic       STRING                                     needed where the option topic is not set
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


def check_sink(schema: StructType, options: WriteOptions, *, is_typed: bool = False) -> None:
    """Raise `InvalidConfig` unless rows of this schema can be written.

    Where values are typed, they are made of all columns that have no other place in a record.
    """
    for field in schema:
        allowed = SINK_TYPES.get(field.name)
        if allowed is None and is_typed:
            continue
        if allowed is None:
            raise InvalidConfig(
                f"column {field.name!r} has no place in a record, allowed are {list(SINK_TYPES)};"
                " to_json(struct(...)) makes one value of several columns, as does a topic that"
                " declares a schema, or the option valueFormat"
            )
        if (found := field.dataType.simpleString()) not in allowed:
            raise InvalidConfig(
                f"column {field.name} is {found}, allowed is {' or '.join(allowed)}"
            )
    names = schema.fieldNames()
    if "value" not in names and not is_typed:
        raise InvalidConfig(f"columns are {names}, needed is value")
    if "topic" not in names and options.topic is None:
        raise InvalidConfig(f"columns are {names}, needed is topic, or the option topic")
