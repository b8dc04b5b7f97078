"""The columns that every topic has as a table, by name: for whoever does without Spark."""

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
