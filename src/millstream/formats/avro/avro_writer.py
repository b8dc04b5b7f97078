"""Encoder of Arrow columns as Avro records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidRecord
from millstream.formats.avro.avro_program import AvroProgram
from millstream.formats.avro.read_kernels import AvroLoops
from millstream.formats.avro.write_kernels import encode_avro
from millstream.formats.layout.disassembly import disassemble
from millstream.formats.layout.reasons import SOUND, describe
from millstream.formats.layout.schema_plan import DEPTH_MAX, SchemaNodes

_SIZE_MAX = 2**31 - 1
"""Arrow's binary type has offsets of 32 bits."""

_ROW_SIZE = 64
"""Bytes reserved per record at first; the buffer doubles when it is full."""


def write_records(
    nodes: SchemaNodes, program: AvroProgram, columns: Sequence[pa.Array], *, frame: bytes
) -> pa.BinaryArray:
    """Return one record per row, with `frame` in front."""
    rows = len(columns[0])
    source, slots = disassemble(nodes, columns, program.symbols)
    loops = AvroLoops(
        entries=np.zeros(nodes.level_count, np.int64),
        remaining=np.zeros(DEPTH_MAX + 2, np.int64),
        counts=np.zeros(nodes.level_count, np.int64),
    )
    frame_bytes = np.frombuffer(frame, np.uint8)
    target = np.empty(rows * _ROW_SIZE + _ROW_SIZE, np.uint8)
    ends = np.zeros(rows + 1, np.int64)
    row = 0
    while True:
        row, code, node = encode_avro(
            source, nodes.plan, program.steps, slots, loops, frame_bytes, target, ends, row
        )
        if code != SOUND:
            raise InvalidRecord(f"row {row}: {describe(code, node, nodes)}")
        if row == rows:
            break
        if target.size > _SIZE_MAX:
            raise InvalidRecord(
                f"{rows} rows take more than {_SIZE_MAX} bytes: write fewer rows at once"
            )
        target = np.concatenate([target, np.empty_like(target)])
    if ends[-1] > _SIZE_MAX:
        raise InvalidRecord(
            f"rows must take at most {_SIZE_MAX} bytes, got {ends[-1]} for {rows} rows"
        )
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(target[: ends[-1]])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)
