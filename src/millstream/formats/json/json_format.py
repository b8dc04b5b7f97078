"""Values that are JSON objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.json.json_writer import write_objects
from millstream.formats.json.object_kernels import JsonStack, decode_json
from millstream.formats.layout.assembly import assemble
from millstream.formats.layout.reasons import SOUND, DecodeFailures, words_for
from millstream.formats.layout.schema_plan import (
    BINARY,
    DEPTH_MAX,
    MAP,
    NULL,
    TEXT,
    SchemaNodes,
    make_nodes,
)
from millstream.formats.layout.slots import grown, make_slots
from millstream.formats.value_format import TypedColumns, open_values


class JsonFormat:
    """JSON objects, read by a schema.

    A field that is missing or null is null; one that no column asks for is passed over, but still
    has to be JSON. Names are compared as they are, capitals included. What is not of the declared
    type makes the row bad, as does a number that does not fit, a field that is there twice, and one
    that must be there and is not.

    Dates and times are strings as in ISO 8601, decimals numbers or strings, and doubles may also
    be "NaN", "Infinity" and "-Infinity". The digits of a decimal are never rounded.
    """

    name = "json"

    def __init__(self, schema: pa.Schema) -> None:
        """Make a plan of `schema`; raises `InvalidConfig` for what JSON cannot say."""
        if not len(schema):
            raise InvalidConfig("schema has no fields, needs at least 1")
        self._nodes = make_nodes(schema)
        _check(self._nodes)
        self.schema = pa.schema([field.with_nullable(nullable=True) for field in schema])

    def decode(self, values: pa.BinaryArray) -> TypedColumns:
        """See `ValueFormat`."""
        nodes, rows = self._nodes, len(values)
        source, ends, is_null = open_values(values)
        slots = make_slots(nodes, rows)
        failures = DecodeFailures.none_yet(rows)
        stack = _stack(nodes)
        row = 0
        while row < rows:
            row, level = decode_json(source, ends, is_null, nodes.plan, slots, stack, failures, row)
            if row < rows:
                slots = grown(nodes, slots, level)
        bad = np.flatnonzero(failures.codes != SOUND)
        return TypedColumns(assemble(source, nodes, slots), bad, words_for(failures, bad, nodes))

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """See `ValueFormat`. Fields that are null are left out."""
        return write_objects(self._nodes, columns)


def _check(nodes: SchemaNodes) -> None:
    for node in nodes.nodes:
        if node.kind in (BINARY, NULL):
            raise InvalidConfig(
                f"field {node.path!r} is of type {node.type}, which JSON cannot say: declare it as"
                " a string"
            )
        if node.kind == MAP and nodes.nodes[node.children[0]].kind != TEXT:
            raise InvalidConfig(
                f"field {node.path!r} has keys of type {node.type.key_type}, in JSON they are"
                " strings"
            )


def _stack(nodes: SchemaNodes) -> JsonStack:
    longest = max(len(node.name.encode()) for node in nodes.nodes)
    return JsonStack(
        nodes=np.zeros(DEPTH_MAX + 2, np.int64),
        entries=np.zeros(DEPTH_MAX + 2, np.int64),
        hints=np.zeros(DEPTH_MAX + 2, np.int64),
        counts=np.zeros(nodes.level_count, np.int64),
        name=np.zeros(longest, np.uint8),
    )
