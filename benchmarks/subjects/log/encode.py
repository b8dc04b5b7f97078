"""Encoding Arrow columns as batches, on one core."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least

from millstream.records.arrow.encoder import EncodeSettings, RecordColumns, encode_python
from millstream.records.arrow.encoder_vectorized import encode
from millstream.records.arrow.partitioner import partitions_of, rows_by_partition
from millstream.records.compression import Codec
from subjects.log.common import MB, NOW_MS

ROWS = 10_000
"""As many as Spark hands over at once."""

PARTITIONS = 12
BATCH_SIZE = MB
PLAIN_SLICES = 2
"""Enough for the plain encoder, which takes a hundred times as long."""


@contextmanager
def _arms(scale: Scale, _: Path) -> Iterator[Sequence[Arm]]:
    slices = [_columns(number) for number in range(scale.pick(smoke=3, quick=100, full=200))]
    settings = EncodeSettings(
        now_ms=NOW_MS,
        size_max=BATCH_SIZE,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
        codec=Codec.NONE,
    )
    target = memoryview(bytearray(ROWS * 108))
    sources = [bytes(bytearray(len(target))) for _ in slices]

    def rate(started: float, count: int) -> float:
        return ROWS * count / (time.thread_time() - started)

    def copy() -> Figures:
        started = time.thread_time()
        for source in sources:
            target[:] = source
        return {"copy": rate(started, len(sources))}

    def kernels() -> Figures:
        started = time.thread_time()
        for columns in slices:
            for _ in encode(_fresh(columns), None, settings):
                pass
        return {"kernels": rate(started, len(slices))}

    def by_key() -> Figures:
        started = time.thread_time()
        for columns in slices:
            fresh = _fresh(columns)
            found = rows_by_partition(partitions_of(fresh.key, PARTITIONS), PARTITIONS)
            for partition in range(PARTITIONS):
                for _ in encode(fresh, found.of(partition), settings):
                    pass
        return {"by key": rate(started, len(slices))}

    def plain() -> Figures:
        started = time.thread_time()
        for columns in slices[:PLAIN_SLICES]:
            for _ in encode_python(columns, None, settings):
                pass
        return {"plain": rate(started, PLAIN_SLICES)}

    kernels()  # Compiles the kernels, or loads them; so does the next.
    by_key()
    yield copy, kernels, by_key, plain


def _columns(number: int) -> RecordColumns:
    chance = random.Random(number)
    return RecordColumns(
        key=pa.array([chance.randbytes(8) for _ in range(ROWS)]),
        value=pa.array([chance.randbytes(100) for _ in range(ROWS)]),
        timestamp=pa.array([NOW_MS + row // 100 for row in range(ROWS)]),
    )


def _fresh(columns: RecordColumns) -> RecordColumns:
    """Forget what was worked out, since no rows come twice."""
    return RecordColumns(key=columns.key, value=columns.value, timestamp=columns.timestamp)


ENCODE = Experiment(
    title="encode from Arrow",
    note=(
        "Columns of 10,000 rows, as Spark hands them over: a key of 8 bytes, a value of 100, a"
        " timestamp. Written as batches of at most 1 MB, not compressed, with checksums; one"
        " thread, in CPU time. By key, the rows are first spread over 12 partitions by the hash"
        " of their keys. The kernels are compiled, or come from Numba's cache, before the clock"
        " starts."
    ),
    rows=(
        Row(
            name="encode 100 B records from Arrow",
            unit="records/s",
            ours="kernels",
            limit="copy",
            limit_name="copy of the bytes",
            goal=at_least(5_000_000),
        ),
        Row(
            name="encode 100 B records from Arrow, by key into 12 partitions",
            unit="records/s",
            ours="by key",
            limit="copy",
            limit_name="copy of the bytes",
        ),
        Row(
            name="encode 100 B records from Arrow, plain Python",
            unit="records/s",
            ours="plain",
            limit="kernels",
            limit_name="the kernels",
        ),
    ),
    arms=_arms,
    repetitions_quick=5,
    repetitions_full=9,
)
