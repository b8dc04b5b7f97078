"""Compiles the kernels that Spark's workers use into Numba's cache beside the code.

`make setup` runs it. Without it, each worker of the first query on a machine compiles them at the
same time, which takes longer than Spark waits for a worker.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from millstream.formats.avro.avro_format import AvroFormat
from millstream.formats.json.json_format import JsonFormat
from millstream.records.arrow.decoder_vectorized import decode
from millstream.records.body import open_bodies
from millstream.records.build import build_batch
from millstream.records.compression import BODY_SIZE_MAX
from millstream.records.record import Record

AVRO = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}


def main() -> None:
    """Call each kernel once."""
    records = [Record(b"value", key=b"key", headers=(("name", b"value"),))]
    batch = build_batch(records, now_ms=0)
    bodies = list(open_bodies(batch, check=True, size_max=BODY_SIZE_MAX))
    decode(batch, bodies, ("offset", "timestamp", "key", "value", "headers"))
    decode(batch, bodies, ("value",))
    JsonFormat(pa.schema([("id", pa.int64())])).decode(pa.array([b'{"id": 1}'], pa.binary()))
    avro = AvroFormat(json.dumps(AVRO))
    ids = pa.array(np.arange(3))
    avro.decode(avro.encode([ids]))


if __name__ == "__main__":
    main()
