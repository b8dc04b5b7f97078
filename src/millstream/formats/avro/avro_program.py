"""An Avro schema as a program: rows of numbers that compiled loops carry out, one after the other.

record {id: long, tags: union {null, array<string>}}

0  RECORD  node 0
1  LONG    node 1
2  UNION   node 2   null is branch 0, and then on to 7
3  ITEMS   node 2   a list begins
4  NEXT    node 2   another item, or on to 7
5  STRING  node 3
6  JUMP             on to 4
7  END
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
"""The null branch of a union, whether a loop is over a map, a size, a factor, a count."""
TARGET: Final = 3
"""Where to go on, for what can jump."""
LIMIT_LOW: Final = 4
LIMIT_HIGH: Final = 5
"""What a decimal has to be below, in two halves; what a number is at least and at most."""

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
    """What reads and writes one record."""

    steps: Int64s
    symbols: Mapping[int, Sequence[str]]
    """The words of enums, by node."""


def compile_program(record: AvroType, nodes: SchemaNodes) -> AvroProgram:
    """Return the program that reads and writes one record."""
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
        """Add a row, and return it: where it jumps to is often known only later."""
        row = [operation, node, argument, 0, 0, 0]
        self.rows.append(row)
        return row

    def value(self, kind: AvroType, node: int) -> None:
        """Add what reads a value of some kind into a node."""
        if kind.null_branch is None:
            self._inside(kind, node)
            return
        union = self.add(UNION, node, kind.null_branch)
        self._inside(kind, node)
        union[TARGET] = len(self.rows)

    def _inside(self, kind: AvroType, node: int) -> None:
        children = self._nodes.nodes[node].children
        if kind.kind == "record":
            self.add(RECORD, node)
            for (_, below), child in zip(kind.fields, children, strict=True):
                self.value(below, child)
        elif kind.items is not None:
            self.add(ITEMS, node)
            start = len(self.rows)
            following = self.add(NEXT, node, int(kind.kind == "map"))
            self.value(kind.items, children[-1])
            self.add(JUMP, node)[TARGET] = start
            following[TARGET] = len(self.rows)
        elif self._nodes.nodes[node].kind == DECIMAL:
            self._decimal(kind, node)
        else:
            if kind.symbols:
                self.symbols[node] = kind.symbols
            argument = kind.size or len(kind.symbols) or kind.factor
            row = self.add(_PRIMITIVES[kind.kind], node, argument)
            low, high = (int(self._nodes.plan.table[node, limit]) for limit in (LOW, HIGH))
            # As they are written: in milliseconds, where the column has microseconds.
            row[LIMIT_LOW], row[LIMIT_HIGH] = -(-low // kind.factor), high // kind.factor

    def _decimal(self, kind: AvroType, node: int) -> None:
        row = self.add(DECIMAL_FIXED if kind.kind == "fixed" else DECIMAL_BYTES, node, kind.size)
        limit = 10 ** int(self._nodes.nodes[node].type.precision)
        row[LIMIT_LOW] = int(np.uint64(limit & 0xFFFF_FFFF_FFFF_FFFF).astype(np.int64))
        row[LIMIT_HIGH] = limit >> 64
