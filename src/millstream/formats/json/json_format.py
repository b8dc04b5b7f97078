"""JSON format: values that are JSON objects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.json.json_writer import write_objects
from millstream.formats.json.object_kernels import JsonStack, decode_json
from millstream.formats.layout.assembly import assemble
from millstream.formats.layout.reasons import SOUND, DecodeFailures, describe_failures
from millstream.formats.layout.schema_plan import (
    BINARY,
    DEPTH_MAX,
    MAP,
    NULL,
    TEXT,
    SchemaNodes,
    make_nodes,
)
from millstream.formats.layout.slots import grow, make_slots
from millstream.formats.value_format import TypedColumns, open_values


class JsonFormat:
    """JSON objects, decoded with a schema.

    A field that is missing or null is null. A field that is not in the schema is skipped, but has
    to be valid JSON. Names are case-sensitive. A row is bad if a value is not of the declared type,
    a number does not fit, a field occurs twice, or a required field is missing.

    Dates and times are strings in ISO 8601 format. Decimals are numbers or strings, and are never
    rounded. Doubles may also be "NaN", "Infinity" and "-Infinity".
    """

    name = "json"

    def __init__(self, schema: pa.Schema) -> None:
        """Compile `schema`; raises `InvalidConfig` for types that JSON does not have."""
        if not len(schema):
            raise InvalidConfig("schema must have at least 1 field, got 0")
        self._nodes = make_nodes(schema)
        _check(self._nodes)
        self.schema = pa.schema([field.with_nullable(nullable=True) for field in schema])

    def decode(self, values: pa.BinaryArray) -> TypedColumns:
        """See `ValueFormat`."""
        nodes, rows = self._nodes, len(values)
        source, ends, is_null = open_values(values)
        slots = make_slots(nodes, rows)
        failures = DecodeFailures.empty(rows)
        stack = _stack(nodes)
        row = 0
        while row < rows:
            row, level = decode_json(source, ends, is_null, nodes.plan, slots, stack, failures, row)
            if row < rows:
                slots = grow(nodes, slots, level)
        bad = np.flatnonzero(failures.codes != SOUND)
        return TypedColumns(
            assemble(source, nodes, slots), bad, describe_failures(failures, bad, nodes)
        )

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """See `ValueFormat`. Fields that are null are omitted."""
        return write_objects(self._nodes, columns)


def _check(nodes: SchemaNodes) -> None:
    for node in nodes.nodes:
        if node.kind in (BINARY, NULL):
            raise InvalidConfig(
                f"field {node.path!r} is of type {node.type}, which JSON does not have: declare it"
                " as a string"
            )
        if node.kind == MAP and nodes.nodes[node.children[0]].kind != TEXT:
            raise InvalidConfig(
                f"keys of field {node.path!r} must be strings in JSON, got {node.type.key_type}"
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
