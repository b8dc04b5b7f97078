"""Why a value could not be read: numbers for compiled loops, words for people."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.formats.layout.schema_plan import SchemaNodes
from millstream.records.kernels.compiler import Int64s

# What a loop returns for a row.
SOUND: Final = 0
FULL: Final = 1
"""A level has no room; nothing is wrong with the row."""
EMPTY: Final = 2
NOT_JSON: Final = 3
CUT_SHORT: Final = 4
TRAILING: Final = 5
WRONG_TYPE: Final = 6
OUT_OF_RANGE: Final = 7
MISSING: Final = 8
TWICE: Final = 9
BAD_TEXT: Final = 10
BAD_TIME: Final = 11
TOO_DEEP: Final = 12
TOO_MANY: Final = 13
BAD_NUMBER: Final = 14
BAD_BRANCH: Final = 15
BAD_SYMBOL: Final = 16
BAD_LENGTH: Final = 17
BAD_FRAME: Final = 18
NULL_ITEM: Final = 19

ITEMS_MAX: Final = 1_000_000
"""Items of all lists and maps of one value. A value of 1 MiB could claim a million that take a
hundred times as much memory."""

SKIPPED_DEPTH_MAX: Final = 62
"""How deep what no field asks for may be nested: a bit of an int64 for each level."""

_WORDS = {
    EMPTY: "the value is empty",
    NOT_JSON: "the value is no JSON object",
    CUT_SHORT: "the value ends too early",
    TRAILING: "something follows the end of the record",
    WRONG_TYPE: "what is there is not of the declared type",
    OUT_OF_RANGE: "the number does not fit the declared type",
    MISSING: "a field that must be there is missing or null",
    TWICE: "a field is there twice",
    BAD_TEXT: "text is no valid UTF-8, or has an unknown escape",
    BAD_TIME: "a date or a time is not written as ISO 8601 says",
    TOO_DEEP: f"it is nested more than {SKIPPED_DEPTH_MAX} levels deep",
    TOO_MANY: f"there are more than {ITEMS_MAX:,} items in its lists and maps",
    BAD_NUMBER: "a number has more bytes than one can have",
    BAD_BRANCH: "a union has no such branch",
    BAD_SYMBOL: "an enum has no such symbol",
    BAD_LENGTH: "a length is negative or leads beyond the end",
    BAD_FRAME: "the value does not begin with a zero and a schema id",
    NULL_ITEM: "an item that must be there is null",
}


class DecodeFailures(NamedTuple):
    """What a compiled loop notes of bad rows, one entry per row."""

    codes: Int64s
    nodes: Int64s
    """Where in the schema it was; 0, the record, where that says nothing."""
    positions: Int64s
    """At which byte of the value."""

    @classmethod
    def none_yet(cls, rows: int) -> DecodeFailures:
        """Room for so many rows."""
        return cls(np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.int64))


def words_for(failures: DecodeFailures, rows: Int64s, nodes: SchemaNodes) -> pa.StringArray:
    """Return why each of these rows is bad."""
    if not rows.size:
        return pa.array([], pa.string())
    kinds = failures.codes[rows] * len(nodes.nodes) + failures.nodes[rows]
    distinct, indices = np.unique(kinds, return_inverse=True)
    words = pa.array([reason(*divmod(int(kind), len(nodes.nodes)), nodes) for kind in distinct])
    positions = pa.array(failures.positions[rows]).cast(pa.string())
    return pc.binary_join_element_wise(words.take(pa.array(indices)), positions, " at byte ")


def reason(code: int, node: int, nodes: SchemaNodes) -> str:
    """Say what is wrong, and with which field."""
    path = nodes.nodes[node].path
    where = f"field {path} ({nodes.nodes[node].type}): " if path else ""
    return where + _WORDS[code]
