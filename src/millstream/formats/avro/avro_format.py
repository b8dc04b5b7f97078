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
from millstream.records.kernels.compiler import Int64s, Octets


class AvroFraming(enum.Enum):
    """Bytes in front of each record."""

    NONE = "none"
    CONFLUENT = "confluent"
    """A zero byte and a schema id of four bytes."""


class AvroFormat:
    """Records in Avro's binary encoding, all written with the declared schema.

    A schema id in front of a record is not looked up: there is no registry, and a topic declares
    one schema. If the id of that schema is known, a record with another id is bad: its fields
    could be taken for others. Types that have no column are refused with the field's name;
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
        others = self._rows_of_others(source, ends, is_null)
        is_null[others] = 1
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
        reasons = describe_failures(failures, bad, nodes)
        if others.size:
            ids = _schema_ids(source, ends[others])
            words = [f"schema id must be {self._schema_id}, got {found}" for found in ids.tolist()]
            order = np.argsort(np.concatenate([bad, others]))
            bad = np.concatenate([bad, others])[order]
            reasons = pa.concat_arrays([reasons, pa.array(words, pa.string())]).take(order)
        return TypedColumns(columns, bad, reasons)

    def _rows_of_others(self, source: Octets, ends: Int64s, is_null: Octets) -> Int64s:
        """Return the rows whose frame has another schema id than the one that is known."""
        if self._framing is AvroFraming.NONE or self._schema_id is None:
            return np.zeros(0, np.int64)
        sizes = np.diff(ends)
        framed = np.flatnonzero((sizes >= FRAME_SIZE) & (is_null == 0))
        framed = framed[source[ends[framed]] == 0]
        others: Int64s = framed[_schema_ids(source, ends[framed]) != self._schema_id]
        return others

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """See `ValueFormat`. Microseconds are truncated if the schema has milliseconds."""
        return write_records(self._nodes, self._program, columns, frame=self._frame())

    def _frame(self) -> bytes:
        if self._framing is AvroFraming.NONE:
            return b""
        if self._schema_id is None:
            raise InvalidConfig("writing with avroFraming confluent requires avroSchemaId")
        return struct.pack(">bI", 0, self._schema_id)


def _schema_ids(source: Octets, starts: Int64s) -> Int64s:
    """Return the schema ids in the frames that begin at `starts`."""
    octets = source[starts[:, None] + np.arange(1, FRAME_SIZE)].astype(np.int64)
    ids: Int64s = octets @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    return ids


def _loops(nodes: SchemaNodes) -> AvroLoops:
    return AvroLoops(
        entries=np.zeros(nodes.level_count, np.int64),
        remaining=np.zeros(DEPTH_MAX + 2, np.int64),
        counts=np.zeros(nodes.level_count, np.int64),
    )
