"""Conversion of slots to Arrow columns, one column at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from millstream.formats.layout.json_text_kernels import gather_text
from millstream.formats.layout.schema_plan import (
    BINARY,
    BOOLEAN,
    DECIMAL,
    DOUBLE,
    FLOAT,
    LIST,
    MAP,
    NULL,
    STRUCT,
    TEXT,
    SchemaNode,
    SchemaNodes,
)
from millstream.formats.layout.slot_kernels import write_offsets
from millstream.formats.layout.slots import PRESENT, Slots
from millstream.records.kernels.compiler import Int64s, Octets

Symbols = Mapping[int, Sequence[str]]
"""Symbols of enums, by node. Such a node is text, but its slots have indexes into the symbols."""

_NO_SYMBOLS: Symbols = {}


class _Entries(NamedTuple):
    """All entries of one node."""

    firsts: Int64s
    seconds: Int64s
    states: Octets
    is_present: NDArray[np.bool_]
    validity: pa.Buffer | None


def assemble(
    source: Octets, nodes: SchemaNodes, slots: Slots, symbols: Symbols = _NO_SYMBOLS
) -> list[pa.Array]:
    """Return the columns of the record."""
    assembly = _Assembly(source, nodes, slots, symbols)
    return [assembly.column(child) for child in nodes.nodes[0].children]


class _Assembly:
    def __init__(self, source: Octets, nodes: SchemaNodes, slots: Slots, symbols: Symbols) -> None:
        self._source = source
        self._nodes = nodes
        self._slots = slots
        self._symbols = symbols

    def column(self, number: int) -> pa.Array:
        """Return all entries of a node as an array of its type."""
        node = self._nodes.nodes[number]
        entries = self._entries(number, node)
        if number in self._symbols:
            words = pa.array(self._symbols[number], pa.string())
            return words.take(pa.array(entries.firsts, mask=~entries.is_present))
        if node.kind == NULL:
            return pa.nulls(entries.states.size)
        if node.kind in (STRUCT, LIST, MAP):
            return self._nested(node, entries)
        if node.kind in (TEXT, BINARY):
            return self._text(node.type, entries)
        if node.kind in (FLOAT, DOUBLE):
            return self._real(node.type, entries)
        return _numbers(node, entries)

    def _entries(self, number: int, node: SchemaNode) -> _Entries:
        slots = self._slots
        part = slice(int(slots.bases[number]), int(slots.bases[number] + slots.counts[node.level]))
        states = slots.states[part]
        is_present = states == PRESENT
        validity = None if is_present.all() else _bits(is_present)
        return _Entries(slots.firsts[part], slots.seconds[part], states, is_present, validity)

    def _nested(self, node: SchemaNode, entries: _Entries) -> pa.Array:
        columns = [self.column(child) for child in node.children]
        buffers = [entries.validity]
        if node.kind != STRUCT:
            ends = np.zeros(entries.firsts.size + 1, np.int32)
            ends[1:] = entries.firsts
            buffers.append(pa.py_buffer(ends))
        if node.kind == MAP:
            fields = [node.type.key_field, node.type.item_field]
            columns = [pa.StructArray.from_arrays(columns, fields=fields)]
        return pa.Array.from_buffers(node.type, entries.states.size, buffers, children=columns)

    def _text(self, kind: pa.DataType, entries: _Entries) -> pa.Array:
        ends = np.zeros(entries.states.size + 1, np.int32)
        write_offsets(entries.states, entries.seconds, ends)
        target = np.empty(int(ends[-1]), np.uint8)
        gather_text(self._source, entries.states, entries.firsts, entries.seconds, ends, target)
        buffers = [entries.validity, pa.py_buffer(ends), pa.py_buffer(target)]
        return pa.Array.from_buffers(kind, entries.states.size, buffers)

    def _real(self, kind: pa.DataType, entries: _Entries) -> pa.Array:
        """Return floats. Those that the kernel left as text are parsed by Arrow, exactly."""
        is_text = entries.is_present & (entries.seconds != 0)
        bits = entries.firsts.astype(f"int{kind.bit_width}")
        if not is_text.any():
            buffers = [entries.validity, pa.py_buffer(bits)]
            return pa.Array.from_buffers(kind, bits.size, buffers)
        written = entries._replace(states=is_text.astype(np.uint8), validity=_bits(is_text))
        read = self._text(pa.string(), written).cast(kind)
        if is_text.sum() == entries.is_present.sum():
            return read
        buffers = [_bits(entries.is_present & ~is_text), pa.py_buffer(bits)]
        return pc.coalesce(read, pa.Array.from_buffers(kind, bits.size, buffers))


def _numbers(node: SchemaNode, entries: _Entries) -> pa.Array:
    size = entries.states.size
    if node.kind == BOOLEAN:
        data = _bits((entries.firsts == 1) & entries.is_present)
    elif node.kind == DECIMAL:
        data = pa.py_buffer(np.stack((entries.firsts, entries.seconds), axis=1))
    else:
        width = f"int{node.type.bit_width}"
        data = pa.py_buffer(entries.firsts.astype(width))
    return pa.Array.from_buffers(node.type, size, [entries.validity, data])


def _bits(flags: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
