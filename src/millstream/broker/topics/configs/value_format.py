"""What a topic declares its values to be, checked as far as a node can.

A node stores the declaration and hands it out; it never looks into a record for it. Whoever reads
the topic as a table, such as the Spark source, compiles the schema and refuses what it cannot do.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from millstream.errors import InvalidConfig

VALUE_FORMAT = "millstream.value.format"
VALUE_SCHEMA = "millstream.value.schema"

VALUE_SCHEMA_SIZE_MAX = 0x7FFF
"""Bytes of a schema, as UTF-8: no string of Kafka's protocol is longer, so a longer one could be
stored but never shown."""

VALUE_SCHEMA_ALLOWED = (
    "empty for raw; for json a Spark schema, as JSON or DDL; for avro a record, as JSON"
)

_SHOWN_MAX = 60
"""Characters of a schema that an error repeats."""


class TopicValueFormat(enum.Enum):
    """What the values of a topic's records are."""

    RAW = "raw"
    """Bytes, of which nothing is known."""
    JSON = "json"
    """Each is one JSON object."""
    AVRO = "avro"
    """Each is one record in Avro's binary encoding."""


def check_value_schema(kind: TopicValueFormat, schema: str) -> None:
    """Raise `InvalidConfig` unless `schema` can be one of that format."""
    size = len(schema.encode())
    if size > VALUE_SCHEMA_SIZE_MAX:
        raise InvalidConfig(f"{VALUE_SCHEMA} has {size} bytes, limit is {VALUE_SCHEMA_SIZE_MAX}")
    if kind is TopicValueFormat.RAW:
        if schema:
            raise _schema_error(kind, schema, "raw values have none")
        return
    if not schema:
        raise _schema_error(kind, schema, f"{kind.value} values need one")
    if kind is TopicValueFormat.JSON and not schema.startswith(("{", "[", '"')):
        return  # A DDL string, which only who reads the topic can judge.
    declared = _parsed(kind, schema)
    wanted = "struct" if kind is TopicValueFormat.JSON else "record"
    if not isinstance(declared, dict) or declared.get("type") != wanted:
        raise _schema_error(kind, schema, f'it is no JSON object with "type": "{wanted}"')


def _parsed(kind: TopicValueFormat, schema: str) -> Any:
    try:
        return msgspec.json.decode(schema)
    except msgspec.DecodeError as error:
        raise _schema_error(kind, schema, f"it is no JSON: {error}") from None
    except RecursionError:
        raise _schema_error(kind, schema, "it is nested too deeply") from None


def _schema_error(kind: TopicValueFormat, schema: str, why: str) -> InvalidConfig:
    shown = schema if len(schema) <= _SHOWN_MAX else f"{schema[:_SHOWN_MAX]}..."
    return InvalidConfig(
        f"{VALUE_SCHEMA} is {shown!r}, allowed is {VALUE_SCHEMA_ALLOWED}; {VALUE_FORMAT} is"
        f" {kind.value}, and {why}"
    )
