"""Conversion of Arrow columns to slots, for kernels that write: the inverse of `assembly.py`.

Numbers, text and states are stored as there. A list or map has the index of its first item in
`seconds`, and the index after its last item in `firsts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidRecord
from millstream.formats.layout.schema_plan import (
    BINARY,
    BOOLEAN,
    DECIMAL,
    LEVEL,
    LIST,
    MAP,
    NULL,
    STRUCT,
    TEXT,
    SchemaNode,
    SchemaNodes,
)
from millstream.formats.layout.slots import ABSENT, PRESENT, Slots
from millstream.records.kernels.compiler import Int64s, Octets


class ColumnSlots(NamedTuple):
    """Columns as kernels read them."""

    source: Octets
    """Bytes of all text."""
    slots: Slots


class _Lanes(NamedTuple):
    firsts: Int64s
    seconds: Int64s
    states: Octets


def disassemble(
    nodes: SchemaNodes, columns: Sequence[pa.Array], symbols: Mapping[int, Sequence[str]]
) -> ColumnSlots:
    """Return the slots of columns that have the types of `nodes`.

    Raises `InvalidRecord` if a value of an enum is not one of its symbols.
    """
    disassembly = _Disassembly(nodes, symbols)
    rows = len(columns[0])
    disassembly.put(0, _Lanes(_zeros(rows), _zeros(rows), np.full(rows, PRESENT, np.uint8)))
    for child, column in zip(nodes.nodes[0].children, columns, strict=True):
        disassembly.add(child, column)
    return disassembly.finish()


class _Disassembly:
    def __init__(self, nodes: SchemaNodes, symbols: Mapping[int, Sequence[str]]) -> None:
        self._nodes = nodes
        self._symbols = symbols
        self._lanes: dict[int, _Lanes] = {}
        self._texts: list[Octets] = []
        self._text_size = 0

    def put(self, number: int, lanes: _Lanes) -> None:
        self._lanes[number] = lanes

    def add(self, number: int, column: pa.Array) -> None:
        """Convert the column of a node, and the columns inside it."""
        node = self._nodes.nodes[number]
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        states = np.where(is_valid, PRESENT, ABSENT).astype(np.uint8)
        firsts, seconds = self._numbers(number, node, column)
        self.put(number, _Lanes(firsts, seconds, states))
        if node.kind == STRUCT:
            for index, child in enumerate(node.children):
                self.add(child, column.field(index))
        elif node.kind == LIST:
            self.add(node.children[0], column.values)
        elif node.kind == MAP:
            self.add(node.children[0], column.keys)
            self.add(node.children[1], column.items)

    def _numbers(self, number: int, node: SchemaNode, column: pa.Array) -> tuple[Int64s, Int64s]:
        zeros = _zeros(len(column))
        if not len(column) or node.kind in (STRUCT, NULL):
            return zeros, zeros
        if node.kind in (LIST, MAP):
            offsets = column.offsets.to_numpy().astype(np.int64)
            return offsets[1:], offsets[:-1]
        if number in self._symbols:
            return self._enum(number, node, column), zeros
        if node.kind in (TEXT, BINARY):
            return self._text(column)
        return _plain_numbers(node, column)

    def _enum(self, number: int, node: SchemaNode, column: pa.Array) -> Int64s:
        indices = pc.index_in(column, value_set=pa.array(self._symbols[number], pa.string()))
        unknown = pc.and_(column.is_valid(), indices.is_null())
        if pc.any(unknown).as_py():
            word = column.filter(unknown)[0].as_py()
            raise InvalidRecord(
                f"field {node.path} must be one of {', '.join(self._symbols[number])}, got {word!r}"
            )
        numbers: Int64s = indices.fill_null(0).to_numpy().astype(np.int64)
        return numbers

    def _text(self, column: pa.Array) -> tuple[Int64s, Int64s]:
        _, offsets, data = column.buffers()
        part = slice(column.offset, column.offset + len(column) + 1)
        ends = np.frombuffer(offsets, np.int32)[part].astype(np.int64)
        starts = ends[:-1] + self._text_size
        if data is not None:
            self._texts.append(np.frombuffer(data, np.uint8))
            self._text_size += data.size
        return starts, np.diff(ends)

    def finish(self) -> ColumnSlots:
        """Concatenate the lanes of all nodes."""
        lanes = [self._lanes[number] for number in range(len(self._nodes.nodes))]
        sizes = np.array([lane.states.size for lane in lanes], np.int64)
        counts = np.zeros(self._nodes.level_count, np.int64)
        counts[self._nodes.plan.table[:, LEVEL]] = sizes
        firsts = np.concatenate([lane.firsts for lane in lanes])
        slots = Slots(
            bases=np.cumsum(sizes) - sizes,
            capacities=counts,
            counts=counts,
            firsts=firsts,
            reals=firsts.view(np.float64),
            seconds=np.concatenate([lane.seconds for lane in lanes]),
            states=np.concatenate([lane.states for lane in lanes]),
        )
        return ColumnSlots(np.concatenate([*self._texts, np.zeros(0, np.uint8)]), slots)


def _plain_numbers(node: SchemaNode, column: pa.Array) -> tuple[Int64s, Int64s]:
    if node.kind == BOOLEAN:
        column = column.cast(pa.int8())
    halves = 2 if node.kind == DECIMAL else 1
    data = np.frombuffer(column.buffers()[1], f"int{column.type.bit_width // halves}")
    part = data[column.offset * halves : (column.offset + len(column)) * halves]
    if node.kind == DECIMAL:
        return part[::2].copy(), part[1::2].copy()
    return part.astype(np.int64), _zeros(len(column))


def _zeros(size: int) -> Int64s:
    return np.zeros(size, np.int64)
