"""A schema as tables of numbers, which a compiled loop can follow.

Every field, list and map, and what is in them, is a *node*; the record itself is node 0. A node
lives on a *level*: level 0 has one entry for each row, and each list or map opens a level of its
own, which has one entry for each item.

    STRUCT<id: BIGINT, tags: ARRAY<STRING>>

    node  0 record      level 0        node  2 tags        level 0, opens level 1
    node  1 id          level 0        node  3 tags[]      level 1

Nodes of one level are numbered one after the other.
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
"""A moment, in microseconds since 1970 in UTC."""
LOCAL_TIME: Final = 12
"""What a clock on the wall shows, without a zone; microseconds too."""
DECIMAL: Final = 13

DAY_MIN = -719_162
DAY_MAX = 2_932_896
"""The years 1 to 9999, which is what Spark knows, in days since 1970."""
DAY_MICROS = 86_400_000_000

NODES_MAX = 4096
"""Fields of a schema, those inside others included. Spark itself gets slow long before."""

DEPTH_MAX = 32
"""Fields inside fields."""


# Columns of the table that describes nodes.
KIND: Final = 0
IS_REQUIRED: Final = 1
LEVEL: Final = 2
OPENS: Final = 3
"""The level of what is in a list or a map."""
LOW: Final = 4
"""The least value of an integer, a date or a time; the precision of a decimal."""
HIGH: Final = 5
"""The largest value of such; the scale of a decimal."""
CHILD_START: Final = 6
CHILD_END: Final = 7
NAME_START: Final = 8
NAME_END: Final = 9


class SchemaPlan(NamedTuple):
    """A schema as a compiled loop reads it."""

    table: Int64s
    """One row per node."""
    names: Octets
    """The names of all nodes, `NAME_START` to `NAME_END`."""
    children: Int64s
    """The nodes in each struct, list and map, `CHILD_START` to `CHILD_END`."""
    level_starts: Int64s
    """The first node of each level, and the number of nodes."""


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """One node, as those see it who are no compiled loop."""

    path: str
    """How a message names it: `address.city`, `tags[]`, `prices[key]`."""
    name: str
    type: pa.DataType
    kind: int
    is_required: bool
    level: int
    opens: int = 0
    """The level of what is in it, for a list or a map."""
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaNodes:
    """All nodes of a schema."""

    schema: pa.Schema
    nodes: tuple[SchemaNode, ...]
    plan: SchemaPlan

    @property
    def level_count(self) -> int:
        """How many levels there are."""
        return len(self.plan.level_starts) - 1


def make_nodes(schema: pa.Schema) -> SchemaNodes:
    """Number everything in `schema`; raises `InvalidConfig` with the field that cannot be read."""
    return _Numbering(schema).number()


class _Root(NamedTuple):
    """What a level has one of for each entry, and all that is in it on the same level."""

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
        for level, fields in enumerate(self._levels):  # Lists and maps add to it on the way.
            starts.append(len(self._nodes))
            roots.append(tuple(self._add(root, level) for root in fields))
        starts.append(len(self._nodes))
        nodes = tuple(
            replace(node, children=roots[node.opens]) if node.opens else node
            for node in self._nodes
        )
        return SchemaNodes(self._schema, nodes, _plan(nodes, starts))

    def _add(self, root: _Root, level: int) -> int:
        """Number a field, and what is in it on the same level."""
        field, path, depth = root
        if depth > DEPTH_MAX:
            raise InvalidConfig(f"field {path!r} is {depth} levels deep, limit is {DEPTH_MAX}")
        if len(self._nodes) >= NODES_MAX:
            raise InvalidConfig(f"schema has over {NODES_MAX} fields, which is the limit")
        kind = _kind(field.type, path)
        number = len(self._nodes)
        node = SchemaNode(path, field.name, field.type, kind, not field.nullable, level)
        self._nodes.append(node)
        if kind == STRUCT:
            children = self._add_children(field.type, path, depth, level)
            self._nodes[number] = replace(node, children=children)
        elif kind in (LIST, MAP):
            self._nodes[number] = replace(node, opens=len(self._levels))
            inside = (
                [_Root(field.type.value_field, f"{path}[]", depth + 1)]
                if kind == LIST
                else [
                    _Root(field.type.key_field, f"{path}[key]", depth + 1),
                    _Root(field.type.item_field, f"{path}[]", depth + 1),
                ]
            )
            self._levels.append(inside)
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
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidConfig(f"field {twice[0]!r} of {path or 'the record'!r} is there twice")


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
    raise InvalidConfig(f"field {path!r} is of type {kind}, which typed columns cannot have")


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
