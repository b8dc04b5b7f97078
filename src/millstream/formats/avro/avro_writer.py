"""Arrow columns to records in Avro's binary encoding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidRecord
from millstream.formats.avro.avro_program import AvroProgram
from millstream.formats.avro.read_kernels import AvroLoops
from millstream.formats.avro.write_kernels import encode_avro
from millstream.formats.layout.disassembly import disassemble
from millstream.formats.layout.reasons import SOUND, reason
from millstream.formats.layout.schema_plan import DEPTH_MAX, SchemaNodes

_SIZE_MAX = 2**31 - 1
"""Arrow's binary type counts bytes in an int32."""

_ROW_SIZE = 64
"""Bytes of a record to begin with; there is more room as soon as it is needed."""


def write_records(
    nodes: SchemaNodes, program: AvroProgram, columns: Sequence[pa.Array], *, frame: bytes
) -> pa.BinaryArray:
    """Return one record for each row, `frame` in front of it."""
    rows = len(columns[0])
    source, slots = disassemble(nodes, columns, program.symbols)
    loops = AvroLoops(
        entries=np.zeros(nodes.level_count, np.int64),
        left=np.zeros(DEPTH_MAX + 2, np.int64),
        counts=np.zeros(nodes.level_count, np.int64),
    )
    front = np.frombuffer(frame, np.uint8)
    target = np.empty(rows * _ROW_SIZE + _ROW_SIZE, np.uint8)
    ends = np.zeros(rows + 1, np.int64)
    row = 0
    while True:
        row, code, node = encode_avro(
            source, nodes.plan, program.steps, slots, loops, front, target, ends, row
        )
        if code != SOUND:
            raise InvalidRecord(f"row {row}: {reason(code, node, nodes)}")
        if row == rows:
            break
        if target.size > _SIZE_MAX:
            raise InvalidRecord(f"{rows} rows take over {_SIZE_MAX} bytes: write fewer at once")
        target = np.concatenate([target, np.empty_like(target)])
    if ends[-1] > _SIZE_MAX:
        raise InvalidRecord(f"{rows} rows take {ends[-1]} bytes, limit is {_SIZE_MAX}")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(target[: ends[-1]])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)
