"""Reasons why a value cannot be decoded: codes for kernels, messages for people."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.formats.layout.schema_plan import SchemaNodes
from millstream.records.kernels.compiler import Int64s

# The result of a kernel for a row.
SOUND: Final = 0
LEVEL_FULL: Final = 1
"""A level has no room for another entry. The row is not bad."""
EMPTY: Final = 2
NOT_JSON: Final = 3
TRUNCATED: Final = 4
TRAILING: Final = 5
WRONG_TYPE: Final = 6
OUT_OF_RANGE: Final = 7
MISSING: Final = 8
DUPLICATE: Final = 9
BAD_TEXT: Final = 10
BAD_TIME: Final = 11
TOO_DEEP: Final = 12
TOO_MANY: Final = 13
BAD_NUMBER: Final = 14
BAD_BRANCH: Final = 15
BAD_SYMBOL: Final = 16
BAD_LENGTH: Final = 17
BAD_FRAME: Final = 18

ITEMS_MAX: Final = 1_000_000
"""Items in all lists and maps of one value. Without a limit, a value of 1 MiB could claim a million
items that take a hundred times as much memory.
"""

SKIPPED_DEPTH_MAX: Final = 62
"""Nesting of values that are skipped: one bit of an int64 per level."""

_MESSAGES = {
    EMPTY: "the value is empty",
    NOT_JSON: "the value is not a valid JSON object",
    TRUNCATED: "the value is truncated",
    TRAILING: "there is data after the end of the record",
    WRONG_TYPE: "the value is not of the declared type",
    OUT_OF_RANGE: "the number does not fit the declared type",
    MISSING: "a required field is missing or null",
    DUPLICATE: "the field occurs twice",
    BAD_TEXT: "the text is not valid UTF-8 or has an invalid escape",
    BAD_TIME: "the date or time is not in ISO 8601 format",
    TOO_DEEP: f"the value is nested more than {SKIPPED_DEPTH_MAX} levels deep",
    TOO_MANY: f"the value has more than {ITEMS_MAX:,} items in its lists and maps",
    BAD_NUMBER: "the number has too many bytes",
    BAD_BRANCH: "the union has no such branch",
    BAD_SYMBOL: "the enum has no such symbol",
    BAD_LENGTH: "the length is negative or exceeds the value",
    BAD_FRAME: "the value does not start with a zero byte and a schema id",
}


class DecodeFailures(NamedTuple):
    """Failures of a batch, one entry per row."""

    codes: Int64s
    nodes: Int64s
    """Node of the schema; 0, the record, if the failure belongs to no field."""
    positions: Int64s
    """Byte of the value."""

    @classmethod
    def empty(cls, rows: int) -> DecodeFailures:
        return cls(np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64))


def describe_failures(failures: DecodeFailures, rows: Int64s, nodes: SchemaNodes) -> pa.StringArray:
    """Return the message for each of these bad rows."""
    if not rows.size:
        return pa.array([], pa.string())
    kinds = failures.codes[rows] * len(nodes.nodes) + failures.nodes[rows]
    distinct, indices = np.unique(kinds, return_inverse=True)
    words = pa.array([describe(*divmod(int(kind), len(nodes.nodes)), nodes) for kind in distinct])
    positions = pa.array(failures.positions[rows]).cast(pa.string())
    return pc.binary_join_element_wise(words.take(pa.array(indices)), positions, " at byte ")


def describe(code: int, node: int, nodes: SchemaNodes) -> str:
    """Return the message for a code, with the field."""
    path = nodes.nodes[node].path
    prefix = f"field {path} ({nodes.nodes[node].type}): " if path else ""
    return prefix + _MESSAGES[code]
