"""Decoding batches to Arrow columns, on one core."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least

from millstream import Record
from millstream.records.arrow.decoder import arrow_batches, decode_python
from millstream.records.arrow.decoder_vectorized import decode
from millstream.records.batch import stamp
from millstream.records.body import open_bodies
from millstream.records.build import build_batch
from millstream.records.compression import BODY_SIZE_MAX
from subjects.log.common import MIB, NOW_MS

COLUMNS = ("offset", "timestamp", "key", "value")
RECORDS_PER_BATCH = 140
BATCHES_PER_SLICE = 64
"""Together as much as a read returns: 64 batches of 16 KB."""

LOADING_SLICES = 3
"""After so many, `arrow_batches` finds the kernels worth loading."""

PLAIN_SLICES = 2
"""Enough for the plain decoder, which takes a hundred times as long."""


@contextmanager
def _arms(scale: Scale, _: Path) -> Iterator[Sequence[Arm]]:
    slice_ = _slice()
    records = RECORDS_PER_BATCH * BATCHES_PER_SLICE
    slices = [bytes(bytearray(slice_)) for _ in range(scale.pick(smoke=2, quick=200, full=400))]
    target = memoryview(bytearray(len(slice_)))

    def rate(started: float, count: int) -> float:
        return records * count / (time.thread_time() - started)

    def copy() -> Figures:
        started = time.thread_time()
        for data in slices:
            target[:] = data
        return {"copy": rate(started, len(slices))}

    def kernels() -> Figures:
        started = time.thread_time()
        for data in slices:
            for _ in arrow_batches(data, columns=COLUMNS):
                pass
        return {"kernels": rate(started, len(slices))}

    def value() -> Figures:
        started = time.thread_time()
        for data in slices:
            for _ in arrow_batches(data, columns=("value",)):
                pass
        return {"value": rate(started, len(slices))}

    def count() -> Figures:
        started = time.thread_time()
        for data in slices:
            for _ in arrow_batches(data, columns=()):
                pass
        return {"count": rate(started, len(slices))}

    def plain() -> Figures:
        started = time.thread_time()
        for data in slices[:PLAIN_SLICES]:
            bodies = list(open_bodies(data, check=True, size_max=BODY_SIZE_MAX))
            decode_python(data, bodies, COLUMNS)
        return {"plain": rate(started, PLAIN_SLICES)}

    decode(slice_, list(open_bodies(slice_, check=True, size_max=BODY_SIZE_MAX)), COLUMNS)
    for _ in range(LOADING_SLICES):  # Few records do without the kernels.
        for _ in arrow_batches(slice_, columns=COLUMNS):
            pass
    yield copy, kernels, value, count, plain


def _slice() -> bytes:
    """Return what one read of a log with small records returns."""
    chance = random.Random(1)
    batches = []
    for number in range(BATCHES_PER_SLICE):
        records = [
            Record(chance.randbytes(100), key=chance.randbytes(8), timestamp_ms=NOW_MS + number)
            for _ in range(RECORDS_PER_BATCH)
        ]
        batch = build_batch(records, now_ms=NOW_MS)
        batches.append(stamp(batch, base_offset=number * RECORDS_PER_BATCH, leader_epoch=0))
    joined = b"".join(batches)
    assert 0.9 * MIB < len(joined) < 1.1 * MIB
    return joined


DECODE = Experiment(
    title="decode to Arrow",
    note=(
        "Slices of 1 MiB as a read returns them, of batches of 16 KB with 140 records: a key of 8"
        " bytes and a value of 100. Columns offset, timestamp, key and value; sums verified; one"
        " thread, in time of the CPU. The kernels are compiled, or come from Numba's cache, before"
        " the clock starts."
    ),
    rows=(
        Row(
            name="decode 100 B records to Arrow",
            unit="records/s",
            ours="kernels",
            limit="copy",
            limit_name="copy of the bytes",
            goal=at_least(5_000_000),
        ),
        Row(
            name="decode 100 B records to Arrow, value alone",
            unit="records/s",
            ours="value",
            limit="copy",
            limit_name="copy of the bytes",
            goal=at_least(8_000_000),
        ),
        Row(
            name="count 100 B records, no columns",
            unit="records/s",
            ours="count",
            limit="copy",
            limit_name="copy of the bytes",
        ),
        Row(
            name="decode 100 B records to Arrow, plain Python",
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
