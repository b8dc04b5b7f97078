"""A schema as tables of numbers that kernels can read.

Every field, list, map and item type is a *node*; the record is node 0. A node belongs to a
*level*: level 0 has one entry per row, and each list or map opens a level of its own, which has
one entry per item.

    STRUCT<id: BIGINT, tags: ARRAY<STRING>>

    node  0 record      level 0        node  2 tags        level 0, opens level 1
    node  1 id          level 0        node  3 tags[]      level 1

The nodes of a level have consecutive numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.records.kernels.compiler import Int64s, Octets

STRUCT: Final = 0
LIST: Final = 1
MAP: Final = 2
NULL: Final = 3
BOOLEAN: Final = 4
INTEGER: Final = 5
FLOAT: Final = 6
DOUBLE: Final = 7
TEXT: Final = 8
BINARY: Final = 9
DATE: Final = 10
INSTANT: Final = 11
"""A point in time: microseconds since 1970 in UTC."""
LOCAL_TIME: Final = 12
"""A date and time of day without a time zone: microseconds since 1970."""
DECIMAL: Final = 13

DAY_MIN = -719_162
DAY_MAX = 2_932_896
"""The years 1 to 9999, which Spark supports, in days since 1970."""
DAY_MICROS = 86_400_000_000

NODES_MAX = 4096
"""Fields of a schema, including nested ones. Spark is slow long before this limit."""

DEPTH_MAX = 32
"""Nesting of fields."""


# Columns of the table that describes nodes.
KIND: Final = 0
IS_REQUIRED: Final = 1
LEVEL: Final = 2
OPENS: Final = 3
"""The level of the items of a list or map."""
LOW: Final = 4
"""The smallest value of an integer, date or time; the precision of a decimal."""
HIGH: Final = 5
"""The largest value of an integer, date or time; the scale of a decimal."""
CHILD_START: Final = 6
CHILD_END: Final = 7
NAME_START: Final = 8
NAME_END: Final = 9


class SchemaPlan(NamedTuple):
    """A schema as kernels read it."""

    table: Int64s
    """One row per node."""
    names: Octets
    """Names of all nodes; a node's name is between its `NAME_START` and `NAME_END`."""
    children: Int64s
    """Children of each struct, list and map, between its `CHILD_START` and `CHILD_END`."""
    level_starts: Int64s
    """The first node of each level, and at the end the number of nodes."""


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """A node as Python code reads it."""

    path: str
    """Path for messages: `address.city`, `tags[]`, `prices[key]`."""
    name: str
    type: pa.DataType
    kind: int
    is_required: bool
    level: int
    opens: int = 0
    """Level of the items of a list or map."""
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaNodes:
    """All nodes of a schema."""

    schema: pa.Schema
    nodes: tuple[SchemaNode, ...]
    plan: SchemaPlan

    @property
    def level_count(self) -> int:
        return len(self.plan.level_starts) - 1


def make_nodes(schema: pa.Schema) -> SchemaNodes:
    """Number the nodes of `schema`; raises `InvalidConfig` for a type that is not supported."""
    return _Numbering(schema).number()


class _Root(NamedTuple):
    """The top node of a level: the record, or the items, keys or values of a list or map."""

    field: pa.Field
    path: str
    depth: int


class _Numbering:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._nodes: list[SchemaNode] = []
        record = pa.field("", pa.struct(list(schema)), nullable=False)
        self._levels = [[_Root(record, "", 0)]]

    def number(self) -> SchemaNodes:
        starts, roots = [], []
        for level, fields in enumerate(
            self._levels
        ):  # `_add` appends a level for each list and map.
            starts.append(len(self._nodes))
            roots.append(tuple(self._add(root, level) for root in fields))
        starts.append(len(self._nodes))
        nodes = tuple(
            replace(node, children=roots[node.opens]) if node.opens else node
            for node in self._nodes
        )
        return SchemaNodes(self._schema, nodes, _plan(nodes, starts))

    def _add(self, root: _Root, level: int) -> int:
        """Number a field, and the fields inside it on the same level."""
        field, path, depth = root
        if depth > DEPTH_MAX:
            raise InvalidConfig(
                f"field {path!r} must be at most {DEPTH_MAX} levels deep, got {depth}"
            )
        if len(self._nodes) >= NODES_MAX:
            raise InvalidConfig(
                f"schema must have at most {NODES_MAX} fields, including nested ones"
            )
        kind = _kind(field.type, path)
        number = len(self._nodes)
        node = SchemaNode(path, field.name, field.type, kind, not field.nullable, level)
        self._nodes.append(node)
        if kind == STRUCT:
            children = self._add_children(field.type, path, depth, level)
            self._nodes[number] = replace(node, children=children)
        elif kind in (LIST, MAP):
            self._nodes[number] = replace(node, opens=len(self._levels))
            contents = (
                [_Root(field.type.value_field, f"{path}[]", depth + 1)]
                if kind == LIST
                else [
                    _Root(field.type.key_field, f"{path}[key]", depth + 1),
                    _Root(field.type.item_field, f"{path}[]", depth + 1),
                ]
            )
            self._levels.append(contents)
        return number

    def _add_children(
        self, struct: pa.StructType, path: str, depth: int, level: int
    ) -> tuple[int, ...]:
        _check_names(struct, path)
        prefix = f"{path}." if path else ""
        return tuple(
            self._add(_Root(child, prefix + child.name, depth + 1), level) for child in struct
        )


def _check_names(struct: pa.StructType, path: str) -> None:
    counts = Counter(child.name for child in struct)
    if duplicates := [name for name, count in counts.items() if count > 1]:
        raise InvalidConfig(f"field {duplicates[0]!r} occurs twice in {path or 'the record'}")


_KINDS = {
    pa.null(): NULL,
    pa.bool_(): BOOLEAN,
    pa.int8(): INTEGER,
    pa.int16(): INTEGER,
    pa.int32(): INTEGER,
    pa.int64(): INTEGER,
    pa.float32(): FLOAT,
    pa.float64(): DOUBLE,
    pa.string(): TEXT,
    pa.binary(): BINARY,
    pa.date32(): DATE,
    pa.timestamp("us", tz="UTC"): INSTANT,
    pa.timestamp("us"): LOCAL_TIME,
}


def _kind(kind: pa.DataType, path: str) -> int:
    if pa.types.is_struct(kind):
        return STRUCT
    if pa.types.is_map(kind):
        return MAP
    if pa.types.is_list(kind):
        return LIST
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return DECIMAL
    if kind in _KINDS:
        return _KINDS[kind]
    raise InvalidConfig(f"field {path!r} is of type {kind}, which typed columns do not support")


def _plan(nodes: Sequence[SchemaNode], level_starts: Sequence[int]) -> SchemaPlan:
    rows, names, children = [], bytearray(), list[int]()
    for node in nodes:
        child_start, name_start = len(children), len(names)
        children += node.children
        names += node.name.encode()
        rows.append(
            (
                node.kind,
                node.is_required,
                node.level,
                node.opens,
                *_limits(node),
                child_start,
                len(children),
                name_start,
                len(names),
            )
        )
    return SchemaPlan(
        table=np.array(rows, np.int64),
        names=np.frombuffer(bytes(names), np.uint8),
        children=np.array(children, np.int64),
        level_starts=np.array(level_starts, np.int64),
    )


def _limits(node: SchemaNode) -> tuple[int, int]:
    if node.kind == INTEGER:
        bits = node.type.bit_width - 1
        return -(2**bits), 2**bits - 1
    if node.kind == DECIMAL:
        return node.type.precision, node.type.scale
    if node.kind == DATE:
        return DAY_MIN, DAY_MAX
    if node.kind in (INSTANT, LOCAL_TIME):
        return DAY_MIN * DAY_MICROS, (DAY_MAX + 1) * DAY_MICROS - 1
    return 0, 0
