"""The declared format of a topic's values, validated as far as a node can.

A node stores the declaration and returns it. It inspects records for it only if the topic says so
(`VALUE_CHECK`). Readers of the topic as a table, such as the Spark source, compile the schema and
reject what they do not support.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from millstream.errors import InvalidConfig

VALUE_FORMAT = "millstream.value.format"
VALUE_SCHEMA = "millstream.value.schema"
VALUE_CHECK = "millstream.value.check"

VALUE_SCHEMA_SIZE_MAX = 0x7FFF
"""Bytes of a schema in UTF-8: the longest string of Kafka's protocol, so a longer one could be
stored but never shown."""

VALUE_SCHEMA_ALLOWED = (
    "empty for raw and msgpack; for json a Spark schema, as JSON or DDL; for avro a record, as JSON"
)

_SHOWN_MAX = 60
"""Characters of a schema that an error shows."""


class TopicValueFormat(enum.Enum):
    """Format of the values of a topic's records."""

    RAW = "raw"
    """Bytes of unknown format."""
    JSON = "json"
    """One JSON object each."""
    AVRO = "avro"
    """One record in Avro's binary encoding each."""
    MSGPACK = "msgpack"
    """One MessagePack value each, which needs no schema."""


CHECKED_FORMATS = (TopicValueFormat.JSON, TopicValueFormat.AVRO)


class ValueCheckLevel(enum.Enum):
    """What is checked of the values of a record before it is appended."""

    NONE = "none"
    SCHEMA = "schema"
    """That it can be read as what the topic declares."""


def check_value_check(kind: TopicValueFormat, level: ValueCheckLevel) -> None:
    """Raise `InvalidConfig` if values of this format cannot be checked."""
    if level is ValueCheckLevel.SCHEMA and kind not in CHECKED_FORMATS:
        allowed = " or ".join(one.value for one in CHECKED_FORMATS)
        raise InvalidConfig(
            f"{VALUE_CHECK} is schema, which requires {VALUE_FORMAT} to be {allowed}, got"
            f" {kind.value}"
        )


def check_value_schema(kind: TopicValueFormat, schema: str) -> None:
    """Raise `InvalidConfig` unless `schema` is plausible for the format."""
    size = len(schema.encode())
    if size > VALUE_SCHEMA_SIZE_MAX:
        raise InvalidConfig(f"{VALUE_SCHEMA} has {size} bytes, limit is {VALUE_SCHEMA_SIZE_MAX}")
    if kind in (TopicValueFormat.RAW, TopicValueFormat.MSGPACK):
        if schema:
            raise _schema_error(kind, schema, f"{kind.value} values have no schema")
        return
    if not schema:
        raise _schema_error(kind, schema, f"{kind.value} values need a schema")
    if kind is TopicValueFormat.JSON and not schema.startswith(("{", "[", '"')):
        return  # A DDL string, which only readers of the topic can check.
    declared = _parsed(kind, schema)
    wanted = "struct" if kind is TopicValueFormat.JSON else "record"
    if not isinstance(declared, dict) or declared.get("type") != wanted:
        raise _schema_error(kind, schema, f'it is not a JSON object with "type": "{wanted}"')


def _parsed(kind: TopicValueFormat, schema: str) -> Any:
    try:
        return msgspec.json.decode(schema)
    except msgspec.DecodeError as error:
        raise _schema_error(kind, schema, f"it is not JSON: {error}") from None
    except RecursionError:
        raise _schema_error(kind, schema, "it is nested too deeply") from None


def _schema_error(kind: TopicValueFormat, schema: str, why: str) -> InvalidConfig:
    shown = schema if len(schema) <= _SHOWN_MAX else f"{schema[:_SHOWN_MAX]}..."
    return InvalidConfig(
        f"{VALUE_SCHEMA} must be {VALUE_SCHEMA_ALLOWED}, got {shown!r}; {VALUE_FORMAT} is"
        f" {kind.value}, and {why}"
    )
