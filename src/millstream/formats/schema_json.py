"""Spark's JSON form of a schema (`StructType.json()`), read without Spark.

    {"type": "struct", "fields": [
        {"name": "id", "type": "long", "nullable": false, "metadata": {}},
        {"name": "tags", "type": {"type": "array", "elementType": "string", "containsNull": true},
         "nullable": true, "metadata": {"comment": "free text"}}]}

User-defined types are refused: Spark would import the Python class that they name, and the text
may come from the configuration of a topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.column_types import (
    TIMESTAMP,
    TIMESTAMP_NTZ,
    decimal_type,
    list_type,
    map_type,
)

_TYPES: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "decimal": decimal_type(10, 0),
    "double": pa.float64(),
    "float": pa.float32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,3})\s*,\s*(-?\d{1,3})\s*\)")
_COLLATED = re.compile(r"string\s+collate\s+\w+")

_METADATA_KEY = b"SPARK::metadata::json"
"""Where Spark looks for the metadata of a column, such as its comment, in an Arrow field."""
_COLLATIONS = "__COLLATIONS"
"""Metadata that belongs to the type of a column. Arrow's strings have no collation."""


class _Field(msgspec.Struct):
    name: str
    type: str | _List | _Map | _Record
    nullable: bool = True
    metadata: dict[str, Any] | None = None


class _List(msgspec.Struct, tag_field="type", tag="array", rename="camel"):
    element_type: str | _List | _Map | _Record
    contains_null: bool


class _Map(msgspec.Struct, tag_field="type", tag="map", rename="camel"):
    key_type: str | _List | _Map | _Record
    value_type: str | _List | _Map | _Record
    value_contains_null: bool


class _Record(msgspec.Struct, tag_field="type", tag="struct"):
    fields: list[_Field]


def parse_schema_json(text: str) -> pa.Schema:
    """Return the schema in `text`; raises `InvalidConfig` that names the part that is wrong."""
    try:
        record = msgspec.json.decode(text, type=_Record)
        return pa.schema([_field(field) for field in record.fields])
    except RecursionError:
        raise InvalidConfig("schema is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidConfig(f"schema is not in the form of StructType.json(): {error}") from None


def _field(field: _Field) -> pa.Field:
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != _COLLATIONS}
    return pa.field(
        field.name,
        _type(field.type),
        nullable=field.nullable,
        metadata={_METADATA_KEY: json.dumps(metadata).encode()} if metadata else None,
    )


def _type(declared: str | _List | _Map | _Record) -> pa.DataType:
    if isinstance(declared, _Record):
        return pa.struct([_field(field) for field in declared.fields])
    if isinstance(declared, _List):
        return list_type(_type(declared.element_type), nullable=declared.contains_null)
    if isinstance(declared, _Map):
        key, value = _type(declared.key_type), _type(declared.value_type)
        return map_type(key, value, nullable=declared.value_contains_null)
    if declared in _TYPES:
        return _TYPES[declared]
    if match := _DECIMAL.fullmatch(declared):
        return decimal_type(int(match[1]), int(match[2]))
    if _COLLATED.fullmatch(declared):
        return pa.string()
    raise InvalidConfig(f"schema has a type that a column cannot have: {declared!r}")
