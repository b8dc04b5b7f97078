"""Avro format: records in Avro's binary encoding."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.avro.avro_program import compile_program
from millstream.formats.avro.avro_schema import (
    AvroType,
    arrow_field,
    parse_schema,
    parse_written,
)
from millstream.formats.avro.avro_writer import write_records
from millstream.formats.avro.read_kernels import FRAME_SIZE, AvroLoops, decode_avro
from millstream.formats.avro.resolution import Resolution
from millstream.formats.layout.assembly import assemble
from millstream.formats.layout.reasons import SOUND, DecodeFailures, describe_failures
from millstream.formats.layout.schema_plan import DEPTH_MAX, SchemaNodes, make_nodes
from millstream.formats.layout.slots import grow, make_slots
from millstream.formats.value_format import (
    SchemaLookup,
    TypedColumns,
    ValueBuffers,
    open_values,
)
from millstream.http1.registered_schema import RegisteredSchema
from millstream.records.kernels.compiler import Int64s, Octets

PROGRAMS_MAX = 1000
"""Schemas of a registry that are kept compiled. Above that, all are compiled again when needed."""


class AvroFraming(enum.Enum):
    """Bytes in front of each record."""

    NONE = "none"
    CONFLUENT = "confluent"
    """A zero byte and a schema id of four bytes."""


class AvroFormat:
    """Records in Avro's binary encoding, as columns of the declared schema.

    With a registry, the schema id in front of a record tells which schema it was written with, and
    its fields are resolved to the declared ones. Without one, all records are taken for written
    with the declared schema; if its id is known, a record with another id is bad: its fields could
    be taken for others. Types that have no column are refused with the field's name;
    `avro_schema.py` has the table of types.
    """

    name = "avro"

    def __init__(
        self,
        schema: str,
        *,
        framing: AvroFraming = AvroFraming.NONE,
        schema_id: int | None = None,
        registry: SchemaLookup | None = None,
    ) -> None:
        """Compile `schema`. Writing with Confluent's framing requires `schema_id`."""
        self._record = parse_schema(schema)
        self._own = _Program(self._record)
        self._framing = framing
        self._schema_id = schema_id
        self._registry = registry if framing is AvroFraming.CONFLUENT else None
        self._written: dict[int, _Written | InvalidConfig] = {}
        fields = self._own.nodes.schema
        self.schema = pa.schema([field.with_nullable(nullable=True) for field in fields])

    def decode(self, values: pa.BinaryArray) -> TypedColumns:
        """See `ValueFormat`. With a registry, raises `Unavailable` if it does not answer."""
        opened = open_values(values)
        framed, ids = self._framed(opened)
        if self._registry is None:
            others = framed[ids != self._schema_id] if self._schema_id is not None else framed[:0]
            opened.is_null[others] = 1
            read = self._own.read(opened, self._frame_size)
            found = ids[ids != self._schema_id].tolist()
            words = [f"schema id must be {self._schema_id}, got {one}" for one in found]
            return _with_bad(read, others, words) if others.size else read
        distinct = np.unique(ids)
        self._find(distinct.tolist())
        if distinct.size == 1 and framed.size == len(values):
            return self._read_as(int(distinct[0]), opened)
        # Rows without an id are described by the reader of the declared schema.
        is_framed = np.zeros(len(values), np.bool_)
        is_framed[framed] = True
        groups = [(-1, np.flatnonzero(~is_framed))]
        groups += [(one, framed[ids == one]) for one in distinct.tolist()]
        groups = [(one, rows) for one, rows in groups if rows.size]
        return _joined(
            self.schema,
            [
                (self._read_as(one, open_values(values.take(pa.array(rows)))), rows)
                for one, rows in groups
            ],
        )

    def _find(self, schema_ids: Sequence[int]) -> None:
        """Compile the schemas with these ids, unless that was done."""
        registry = self._registry
        assert registry is not None, "only values of a registry have ids"
        missing = [one for one in schema_ids if one not in self._written]
        if not missing:
            return
        if len(self._written) + len(missing) > PROGRAMS_MAX:
            self._written.clear()
            missing = list(schema_ids)
        for schema_id, schema in registry.find(missing).items():
            try:
                self._written[schema_id] = self._compile(schema)
            except InvalidConfig as error:
                self._written[schema_id] = error

    def _compile(self, schema: RegisteredSchema) -> _Written:
        if schema.kind != "AVRO":
            raise InvalidConfig(f"it is a schema of {schema.kind}, and the topic's values are Avro")
        if self._is_declared(schema):
            return _Written(self._own, None)
        written = parse_written(schema.text, [text for _, text in schema.references])
        return _Written(_Program(written), Resolution(written, self._record))

    def _is_declared(self, schema: RegisteredSchema) -> bool:
        """Return whether a schema is the declared one, so that nothing has to be resolved."""
        try:
            return not schema.references and parse_schema(schema.text) == self._record
        except InvalidConfig:
            return False

    def _read_as(self, schema_id: int, opened: ValueBuffers) -> TypedColumns:
        """Read values that all have one schema id, or -1 for values without one."""
        if schema_id < 0:
            return self._own.read(opened, self._frame_size)
        found = self._written.get(schema_id)
        if isinstance(found, _Written):
            return found.read(opened)
        reason = (
            f"schema id {schema_id} is not in the registry"
            if found is None
            else f"schema id {schema_id}: {found}"
        )
        rows = opened.is_null.size
        columns = [pa.nulls(rows, field.type) for field in self.schema]
        reasons = pa.array([reason] * rows, pa.string())
        return TypedColumns(columns, np.arange(rows), reasons)

    @property
    def _frame_size(self) -> int:
        return FRAME_SIZE if self._framing is AvroFraming.CONFLUENT else 0

    def _framed(self, opened: ValueBuffers) -> tuple[Int64s, Int64s]:
        """Return the rows that have a frame, and their schema ids."""
        source, ends, is_null = opened
        if self._framing is AvroFraming.NONE or (
            self._registry is None and self._schema_id is None
        ):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        framed = np.flatnonzero((np.diff(ends) >= FRAME_SIZE) & (is_null == 0))
        framed = framed[source[ends[framed]] == 0]
        return framed, _schema_ids(source, ends[framed])

    def encode(self, columns: Sequence[pa.Array]) -> pa.BinaryArray:
        """See `ValueFormat`. Microseconds are truncated if the schema has milliseconds."""
        return write_records(self._own.nodes, self._own.program, columns, frame=self._frame())

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


class _Program:
    """A schema compiled for reading and writing."""

    def __init__(self, record: AvroType) -> None:
        fields = [arrow_field(*field) for field in record.fields]
        self.nodes = make_nodes(pa.schema(fields))
        self.program = compile_program(record, self.nodes)

    def read(self, opened: ValueBuffers, frame: int) -> TypedColumns:
        """Decode values that were written with this schema."""
        source, ends, is_null = opened
        nodes, rows = self.nodes, is_null.size
        slots = make_slots(nodes, rows)
        failures = DecodeFailures.empty(rows)
        loops = _loops(nodes)
        row = 0
        while row < rows:
            row, level = decode_avro(
                source,
                ends,
                is_null,
                nodes.plan,
                self.program.steps,
                slots,
                loops,
                failures,
                frame,
                row,
            )
            if row < rows:
                slots = grow(nodes, slots, level)
        bad = np.flatnonzero(failures.codes != SOUND)
        columns = assemble(source, nodes, slots, self.program.symbols)
        return TypedColumns(columns, bad, describe_failures(failures, bad, nodes))


class _Written(NamedTuple):
    """A schema of the registry: how its values are read, and resolved unless it is our own."""

    program: _Program
    resolution: Resolution | None

    def read(self, opened: ValueBuffers) -> TypedColumns:
        read = self.program.read(opened, FRAME_SIZE)
        if self.resolution is None:
            return read
        is_read = opened.is_null == 0
        is_read[read.bad] = False
        record, faults = self.resolution.apply(read.columns, is_read)
        columns = [record.field(index) for index in range(record.type.num_fields)]
        unread = np.flatnonzero(~is_read)
        reasons: dict[int, str] = {}
        for fault in faults:
            for row in np.flatnonzero(fault.entries).tolist():
                reasons.setdefault(row, fault.reason)
        rows = np.array(sorted(reasons), np.int64)
        resolved = TypedColumns(columns, read.bad, read.reasons)
        if rows.size:
            resolved = _with_bad(resolved, rows, [reasons[row] for row in rows.tolist()])
        # Defaults are in all rows, also in those without a record.
        emptied = np.union1d(unread, rows)
        return resolved._replace(columns=_nulled(resolved.columns, emptied))


def _nulled(columns: Sequence[pa.Array], rows: Int64s) -> Sequence[pa.Array]:
    """Return the columns with nulls in these rows."""
    if not rows.size:
        return columns
    size = len(columns[0])
    mask = np.zeros(size, np.bool_)
    mask[rows] = True
    places = pa.array(np.arange(size), mask=mask)
    return [column.take(places) for column in columns]


def _with_bad(read: TypedColumns, rows: Int64s, reasons: Sequence[str]) -> TypedColumns:
    """Return the columns with more bad rows."""
    bad = np.concatenate([read.bad, rows])
    order = np.argsort(bad)
    joined = pa.concat_arrays([read.reasons, pa.array(reasons, pa.string())])
    return TypedColumns(read.columns, bad[order], joined.take(pa.array(order)))


def _joined(schema: pa.Schema, parts: Sequence[tuple[TypedColumns, Int64s]]) -> TypedColumns:
    """Return the columns of all rows, from parts with the numbers of their rows."""
    rows = np.concatenate([numbers for _, numbers in parts] or [np.zeros(0, np.int64)])
    places = np.empty(rows.size, np.int64)
    places[rows] = np.arange(rows.size)
    columns = [
        pa.concat_arrays(
            [part.columns[index] for part, _ in parts] or [pa.nulls(0, field.type)]
        ).take(pa.array(places))
        for index, field in enumerate(schema)
    ]
    joined = TypedColumns(columns, np.zeros(0, np.int64), pa.array([], pa.string()))
    for part, numbers in parts:
        joined = _with_bad(joined, numbers[part.bad], part.reasons.to_pylist())
    return joined


def _loops(nodes: SchemaNodes) -> AvroLoops:
    return AvroLoops(
        entries=np.zeros(nodes.level_count, np.int64),
        remaining=np.zeros(DEPTH_MAX + 2, np.int64),
        counts=np.zeros(nodes.level_count, np.int64),
    )
