"""Names that several parts share: for whoever does without Spark, or without a compiler."""

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
"""The columns that every topic has as a table."""

VALUE_FORMAT_CONFIG = "millstream.value.format"
VALUE_SCHEMA_CONFIG = "millstream.value.schema"
"""What a topic declares. A node keeps it and does not look into records."""
