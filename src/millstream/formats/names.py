"""Names shared with code that needs neither Spark nor a compiler."""

from __future__ import annotations

COLUMN_NAMES = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
)
"""Columns that every topic has as a table."""

VALUE_FORMAT_CONFIG = "millstream.value.format"
VALUE_SCHEMA_CONFIG = "millstream.value.schema"
VALUE_CHECK_CONFIG = "millstream.value.check"
"""Topic configs that declare a format, and whether the node checks records against it."""
