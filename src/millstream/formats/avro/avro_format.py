"""Avro format: records in Avro's binary encoding."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.avro.avro_program import compile_program
from millstream.formats.avro.avro_schema import arrow_field, parse_schema
from millstream.formats.avro.avro_writer import write_records
from millstream.formats.avro.read_kernels import FRAME_SIZE, AvroLoops, decode_avro
from millstream.formats.layout.assembly import assemble
from millstream.formats.layout.reasons import SOUND, DecodeFailures, describe_failures
from millstream.formats.layout.schema_plan import DEPTH_MAX, SchemaNodes, make_nodes
from millstream.formats.layout.slots import grow, make_slots
from millstream.formats.value_format import TypedColumns, open_values


class AvroFraming(enum.Enum):
    """Bytes in front of each record."""

    NONE = "none"
    CONFLUENT = "confluent"
    """A zero byte and a schema id of four bytes."""


class AvroFormat:
    """Records in Avro's binary encoding, all written with the declared schema.

    A schema id in front of a record is skipped, not looked up: there is no registry, and a topic
    declares one schema. Types that have no column are refused with the field's name;
    `avro_schema.py` has the table of types.
    """

    name = "avro"

    def __init__(
        self, schema: str, *, framing: AvroFraming = AvroFraming.NONE, schema_id: int | None = None
    ) -> None:
        """Compile `schema`. Writing with Confluent's framing requires `schema_id`."""
        record = parse_schema(schema)
        fields = [arrow_field(*field) for field in record.fields]
        self._nodes = make_nodes(pa.schema(fields))
        self._program = compile_program(record, self._nodes)
        self._framing = framing
        self._schema_id = schema_id
        self.schema = pa.schema([field.with_nullable(nullable=True) for field in fields])

    def decode(self, values: pa.BinaryArray) -> TypedColumns:
        """See `ValueFormat`."""
        nodes, rows = self._nodes, len(values)
        source, ends, is_null = open_values(values)
        slots = make_slots(nodes, rows)
        failures = DecodeFailures.empty(rows)
        loops = _loops(nodes)
        frame = FRAME_SIZE if self._framing is AvroFraming.CONFLUENT else 0
        row = 0
        while row < rows:
            row, level = decode_avro(
                source,
                ends,
                is_null,
                nodes.plan,
                self._program.steps,
                slots,
                loops,
                failures,
                frame,
                row,
            )
            if row < rows:
                slots = grow(nodes, slots, level)
        bad = np.flatnonzero(failures.codes != SOUND)
        columns = assemble(source, nodes, slots, self._program.symbols)
        return TypedColumns(columns, bad, describe_failures(failures, bad, nodes))

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """See `ValueFormat`. Microseconds are truncated if the schema has milliseconds."""
        return write_records(self._nodes, self._program, columns, frame=self._frame())

    def _frame(self) -> bytes:
        if self._framing is AvroFraming.NONE:
            return b""
        if self._schema_id is None:
            raise InvalidConfig("writing with avroFraming confluent requires avroSchemaId")
        return struct.pack(">bI", 0, self._schema_id)


def _loops(nodes: SchemaNodes) -> AvroLoops:
    return AvroLoops(
        entries=np.zeros(nodes.level_count, np.int64),
        remaining=np.zeros(DEPTH_MAX + 2, np.int64),
        counts=np.zeros(nodes.level_count, np.int64),
    )
