"""Values to typed columns and back, on one core, for a record of five fields.

Beside our reading of JSON stands what else reads it in bulk: Arrow's own reader, which cannot tell
bad rows apart, and msgspec, whose objects have to be made columns in Python. Figures count the
processor's time, so that what else runs on the machine does not matter.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.json as pj
from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least, ratio_at_least

from millstream.formats.avro.avro_format import AvroFormat
from millstream.formats.declaration import arrow_schema
from millstream.formats.json.json_format import JsonFormat

SCHEMA = "id BIGINT, name STRING, price DOUBLE, ok BOOLEAN, at TIMESTAMP"
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


def _texts(rows: int) -> list[bytes]:
    return [
        json.dumps(
            {
                "id": row * 7919,
                "name": f"customer {row % 1000}",
                "price": row % 99_991 / 100,
                "ok": row % 2 == 0,
                "at": f"2026-07-01T12:{row % 60:02d}:00.123Z",
            }
        ).encode()
        for row in range(rows)
    ]


def _with_arrow(texts: list[bytes], schema: pa.Schema) -> object:
    plain = pa.schema(
        [(field.name, pa.timestamp("us") if field.name == "at" else field.type) for field in schema]
    )
    joined = b"\n".join(texts)
    return pj.read_json(
        io.BytesIO(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
        parse_options=pj.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore"),
    )


class _Row(msgspec.Struct):
    id: int
    name: str
    price: float
    ok: bool
    at: dt.datetime


def _with_msgspec(texts: list[bytes]) -> object:
    found = msgspec.json.decode(b"[" + b",".join(texts) + b"]", type=list[_Row])
    return [pa.array([getattr(row, name) for row in found]) for name in _Row.__struct_fields__]


@contextmanager
def _arms(scale: Scale, _folder: Path) -> Iterator[Sequence[Arm]]:
    rows = scale.pick(smoke=1_000, quick=200_000, full=1_000_000)
    texts = _texts(rows)
    values = pa.array(texts, pa.binary())
    reader, avro = JsonFormat(arrow_schema(SCHEMA)), AvroFormat(json.dumps(AVRO))
    columns = reader.decode(values).columns
    records = avro.encode(columns)
    avro.decode(records)  # All loops are compiled now.

    def timed(name: str, run: Callable[[], object]) -> Arm:
        def arm() -> Figures:
            started = time.process_time()
            run()
            return {name: rows / (time.process_time() - started) / 1e6}

        return arm

    yield (
        timed("json", lambda: reader.decode(values)),
        timed("arrow", lambda: _with_arrow(texts, reader.schema)),
        timed("msgspec", lambda: _with_msgspec(texts)),
        timed("to json", lambda: reader.encode(columns)),
        timed("avro", lambda: avro.decode(records)),
        timed("to avro", lambda: avro.encode(columns)),
    )


def _row(name: str, ours: str, least: float) -> Row:
    return Row(name=name, unit="M rows/s", ours=ours, goal=at_least(least))


EXPERIMENTS = (
    Experiment(
        title="values and columns",
        note="Long, string, double, boolean and timestamp; 105 bytes as JSON, 40 as Avro.",
        rows=(
            Row(
                name="JSON to columns",
                unit="M rows/s",
                ours="json",
                limit="arrow",
                limit_name="pyarrow.json",
                goal=ratio_at_least(0.5),
            ),
            Row(
                name="JSON to columns, beside msgspec",
                unit="M rows/s",
                ours="json",
                limit="msgspec",
                limit_name="msgspec and pa.array",
                goal=ratio_at_least(1),
            ),
            _row("columns to JSON", "to json", 0.2),
            _row("Avro to columns", "avro", 2),
            _row("columns to Avro", "to avro", 2),
        ),
        arms=_arms,
    ),
)
