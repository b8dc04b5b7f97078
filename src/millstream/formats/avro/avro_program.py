"""An Avro schema compiled to a program that kernels execute, one row of numbers per step.

    record {id: long, tags: union {null, array<string>}}

    0  RECORD  node 0
    1  LONG    node 1
    2  UNION   node 2   branch 0 is null: go to 7
    3  ITEMS   node 2   start of a list
    4  NEXT    node 2   next item, or go to 7
    5  STRING  node 3
    6  JUMP             go to 4
    7  END

Reading and writing execute the same program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from millstream.formats.avro.avro_schema import AvroType
from millstream.formats.layout.schema_plan import DECIMAL, HIGH, LOW, SchemaNodes
from millstream.records.kernels.compiler import Int64s

# Columns of a program.
OPERATION: Final = 0
NODE: Final = 1
ARGUMENT: Final = 2
"""The null branch of a union, whether a loop is over a map, a size, a factor, or a count."""
TARGET: Final = 3
"""The next step, for steps that jump."""
LIMIT_LOW: Final = 4
LIMIT_HIGH: Final = 5
"""The limits of a number, both inclusive; for a decimal, two halves of its exclusive limit."""

END: Final = 0
UNION: Final = 1
RECORD: Final = 2
ITEMS: Final = 3
NEXT: Final = 4
JUMP: Final = 5
BOOLEAN: Final = 6
INT: Final = 7
LONG: Final = 8
FLOAT: Final = 9
DOUBLE: Final = 10
BYTES: Final = 11
STRING: Final = 12
FIXED: Final = 13
ENUM: Final = 14
DECIMAL_BYTES: Final = 15
DECIMAL_FIXED: Final = 16
NULL: Final = 17
SWITCH: Final = 18
"""A union of written schemas: as many jumps follow as it has branches, its argument."""

_PRIMITIVES = {
    "null": NULL,
    "boolean": BOOLEAN,
    "int": INT,
    "long": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "bytes": BYTES,
    "string": STRING,
    "fixed": FIXED,
    "enum": ENUM,
}


class AvroProgram(NamedTuple):
    steps: Int64s
    symbols: Mapping[int, Sequence[str]]
    """Symbols of enums, by node."""


def compile_program(record: AvroType, nodes: SchemaNodes) -> AvroProgram:
    """Return the program for one record."""
    compiler = _Compiler(nodes)
    compiler.value(record, 0)
    compiler.add(END, 0)
    return AvroProgram(np.array(compiler.rows, np.int64), compiler.symbols)


class _Compiler:
    def __init__(self, nodes: SchemaNodes) -> None:
        self._nodes = nodes
        self.rows: list[list[int]] = []
        self.symbols: dict[int, Sequence[str]] = {}

    def add(self, operation: int, node: int, argument: int = 0) -> list[int]:
        """Append a step and return it, because its jump target is often known only later."""
        row = [operation, node, argument, 0, 0, 0]
        self.rows.append(row)
        return row

    def value(self, kind: AvroType, node: int) -> None:
        """Append the steps for a value of type `kind` at a node."""
        if kind.null_branch is None:
            self._non_null(kind, node)
            return
        union = self.add(UNION, node, kind.null_branch)
        self._non_null(kind, node)
        union[TARGET] = len(self.rows)

    def _non_null(self, kind: AvroType, node: int) -> None:
        children = self._nodes.nodes[node].children
        if kind.kind == "record":
            self.add(RECORD, node)
            for (_, field_type), child in zip(kind.fields, children, strict=True):
                self.value(field_type, child)
        elif kind.branches:
            self._union(kind, node)
        elif kind.items is not None:
            self.add(ITEMS, node)
            start = len(self.rows)
            next_item = self.add(NEXT, node, int(kind.kind == "map"))
            self.value(kind.items, children[-1])
            self.add(JUMP, node)[TARGET] = start
            next_item[TARGET] = len(self.rows)
        elif self._nodes.nodes[node].kind == DECIMAL:
            self._decimal(kind, node)
        else:
            if kind.symbols:
                self.symbols[node] = kind.symbols
            argument = kind.size or len(kind.symbols) or kind.factor
            row = self.add(_PRIMITIVES[kind.kind], node, argument)
            low, high = (int(self._nodes.plan.table[node, limit]) for limit in (LOW, HIGH))
            # In the unit that is written: milliseconds for some columns of microseconds.
            row[LIMIT_LOW], row[LIMIT_HIGH] = -(-low // kind.factor), high // kind.factor

    def _union(self, kind: AvroType, node: int) -> None:
        """Append the steps of each branch, which end with a jump behind all of them."""
        children = self._nodes.nodes[node].children
        self.add(SWITCH, node, len(kind.branches))
        entries = [self.add(JUMP, node) for _ in kind.branches]
        exits = []
        for entry, branch, child in zip(entries, kind.branches, children, strict=True):
            entry[TARGET] = len(self.rows)
            self.value(branch, child)
            exits.append(self.add(JUMP, node))
        for leave in exits:
            leave[TARGET] = len(self.rows)

    def _decimal(self, kind: AvroType, node: int) -> None:
        row = self.add(DECIMAL_FIXED if kind.kind == "fixed" else DECIMAL_BYTES, node, kind.size)
        limit = 10 ** int(self._nodes.nodes[node].type.precision)
        row[LIMIT_LOW] = int(np.uint64(limit & 0xFFFF_FFFF_FFFF_FFFF).astype(np.int64))
        row[LIMIT_HIGH] = limit >> 64
