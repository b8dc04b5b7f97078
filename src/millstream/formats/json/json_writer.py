"""Encoder of Arrow columns as JSON objects, with Arrow's own functions."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidRecord
from millstream.formats.layout.schema_plan import (
    DATE,
    DOUBLE,
    FLOAT,
    INSTANT,
    LIST,
    LOCAL_TIME,
    MAP,
    STRUCT,
    TEXT,
    SchemaNode,
    SchemaNodes,
)

_ESCAPES = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
} | {chr(code): f"\\u{code:04x}" for code in range(0x20) if chr(code) not in "\n\r\t"}
"""Characters that must be escaped in a string. The backslash comes first, because the other escapes
contain one.
"""

_ESCAPED = r'[\x00-\x1f"\\]'
_WORDS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def write_objects(nodes: SchemaNodes, columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """Return one object per row, without the fields that are null."""
    return _objects(nodes, nodes.nodes[0], columns).cast(pa.binary())


def _objects(nodes: SchemaNodes, struct: SchemaNode, columns: Sequence[pa.Array]) -> pa.StringArray:
    members = []
    for number, column in zip(struct.children, columns, strict=True):
        node = nodes.nodes[number]
        _check_present(node, column)
        name = f",{json.dumps(node.name, ensure_ascii=False)}:"
        # Joining a name to a null gives a null, so a field that is null is left out.
        members.append(_joined(name, _texts(nodes, node, column)).fill_null(""))
    # Not `null_handling="skip"`: with it, Arrow loses rows that are null in every column (26.0).
    return _joined("{", pc.ascii_ltrim(_joined(*members), ","), "}")


def _joined(*parts: str | pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _check_present(node: SchemaNode, column: pa.Array) -> None:
    if node.is_required and column.null_count:
        raise InvalidRecord(
            f"field {node.path} is required, but is null in {column.null_count} values"
        )


def _texts(nodes: SchemaNodes, node: SchemaNode, column: pa.Array) -> pa.StringArray:
    """Return each value as JSON text, or null if it is null."""
    if node.kind in (STRUCT, LIST, MAP):
        return _nested(nodes, node, column)
    if node.kind == TEXT:
        return _quoted(column)
    if node.kind in (FLOAT, DOUBLE):
        return _reals(column)
    if node.kind in (DATE, INSTANT, LOCAL_TIME):
        return _times(node, column)
    return column.cast(pa.string())


def _nested(nodes: SchemaNodes, node: SchemaNode, column: pa.Array) -> pa.StringArray:
    """Encode the values that are not null, and put the nulls back."""
    present = column.drop_null()
    write = _structs if node.kind == STRUCT else _lists
    texts = write(nodes, node, present)
    if len(present) == len(column):
        return texts
    is_valid = column.is_valid().to_numpy(zero_copy_only=False)
    return texts.take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))


def _structs(nodes: SchemaNodes, node: SchemaNode, column: pa.StructArray) -> pa.StringArray:
    return _objects(nodes, node, column.flatten())


def _lists(nodes: SchemaNodes, node: SchemaNode, column: pa.ListArray) -> pa.StringArray:
    """Encode lists and maps (lists of pairs). None is null, so their items are contiguous."""
    offsets = column.offsets.to_numpy()
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    if node.kind == LIST:
        texts = _items(nodes, node.children[0], column.values.slice(first, count))
    else:
        values = _items(nodes, node.children[1], column.items.slice(first, count))
        texts = _joined(_quoted(column.keys.slice(first, count)), ":", values)
    lists = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets - first), texts), ",")
    opening, closing = "[]" if node.kind == LIST else "{}"
    return _joined(opening, lists, closing)


def _items(nodes: SchemaNodes, number: int, items: pa.Array) -> pa.StringArray:
    node = nodes.nodes[number]
    _check_present(node, items)
    return _texts(nodes, node, items).fill_null("null")


def _quoted(column: pa.StringArray) -> pa.StringArray:
    needs_escapes = pc.any(pc.match_substring_regex(column, _ESCAPED)).as_py()
    for character, escape in _ESCAPES.items() if needs_escapes else ():
        column = pc.replace_substring(column, character, escape)
    return _joined('"', column, '"')


def _reals(column: pa.Array) -> pa.StringArray:
    texts = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return texts
    for text, word in _WORDS.items():
        texts = pc.if_else(pc.equal(texts, text), word, texts)
    return texts


def _times(node: SchemaNode, column: pa.TimestampArray) -> pa.StringArray:
    if node.kind == DATE:
        return _joined('"', column.cast(pa.string()), '"')
    texts = pc.strftime(column.cast(pa.timestamp("us")), "%Y-%m-%dT%H:%M:%S")
    return _joined('"', texts, 'Z"' if node.kind == INSTANT else '"')
