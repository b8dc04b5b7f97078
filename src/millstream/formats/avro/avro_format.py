"""Values that are records in Avro's binary encoding."""

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
from millstream.formats.layout.reasons import SOUND, DecodeFailures, words_for
from millstream.formats.layout.schema_plan import DEPTH_MAX, SchemaNodes, make_nodes
from millstream.formats.layout.slots import grown, make_slots
from millstream.formats.value_format import TypedColumns, open_values


class AvroFraming(enum.Enum):
    """What stands in front of each record."""

    NONE = "none"
    CONFLUENT = "confluent"
    """A zero and the four bytes of a schema id."""


class AvroFormat:
    """Records in Avro's binary encoding, all written with the declared schema.

    A schema id in front of them is passed over, not looked up: there is no registry, and a topic
    declares one schema. What cannot be a column is refused here, with its name; `avro_schema.py`
    has the table of what can.
    """

    name = "avro"

    def __init__(
        self, schema: str, *, framing: AvroFraming = AvroFraming.NONE, schema_id: int | None = None
    ) -> None:
        """Compile `schema`. To write with Confluent's framing, `schema_id` has to be given."""
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
        failures = DecodeFailures.none_yet(rows)
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
                slots = grown(nodes, slots, level)
        bad = np.flatnonzero(failures.codes != SOUND)
        columns = assemble(source, nodes, slots, self._program.symbols)
        return TypedColumns(columns, bad, words_for(failures, bad, nodes))

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """See `ValueFormat`. Milliseconds are cut off from microseconds where the schema asks."""
        return write_records(self._nodes, self._program, columns, frame=self._frame())

    def _frame(self) -> bytes:
        if self._framing is AvroFraming.NONE:
            return b""
        if self._schema_id is None:
            raise InvalidConfig("framing is confluent, and no schema id is given to write with")
        return struct.pack(">bI", 0, self._schema_id)


def _loops(nodes: SchemaNodes) -> AvroLoops:
    return AvroLoops(
        entries=np.zeros(nodes.level_count, np.int64),
        left=np.zeros(DEPTH_MAX + 2, np.int64),
        counts=np.zeros(nodes.level_count, np.int64),
    )
