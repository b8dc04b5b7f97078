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

LAKE_TABLE_CONFIG = "millstream.lake.table"
"""Topic config with the address of the topic's table in a lake."""

LAKE_DELETIONS_CONFIG = "millstream.lake.deletions"
"""Topic config with the name of the topic that records deletions by key for that table."""

LAKE_REQUIRED_CONFIG = "millstream.lake.required"
LAKE_POSITIONS_CONFIG = "millstream.lake.positions"
"""Topic configs by which retention waits for that table, and how far it is."""
