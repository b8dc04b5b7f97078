"""Typed columns of a topic with JSON, beside Spark's own parser of the same values."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale
from pyspark.sql.functions import col, from_json

from subjects.log.common import MIB
from subjects.spark.common import BATCH_SIZE, rate, read_all, running, warmed

TOPIC = "typed"
FIELDS = "id bigint, name string, price double, is_paid boolean, at timestamp"
NAMES = "id,name,price,is_paid,at"


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    total = scale.pick(smoke=4 * BATCH_SIZE, quick=96 * MIB, full=192 * MIB)
    with running(folder) as bench:
        declared = {"millstream.value.format": "json", "millstream.value.schema": FIELDS}
        bench.make_topic(TOPIC, declared)
        records = bench.fill(TOPIC, _values(), total // BATCH_SIZE)
        typed = bench.through_node(TOPIC, columns=NAMES)
        raw = bench.through_node(TOPIC, columns="value")
        parsed = raw.select(from_json(col("value").cast("string"), FIELDS).alias("r")).select("r.*")
        assert typed.first() == parsed.first()

        def ours() -> Figures:
            return {"ours": rate(records, lambda: read_all(typed))}

        def sparks() -> Figures:
            return {"spark": rate(records, lambda: read_all(parsed))}

        yield warmed((sparks, ours), scale)


def _values() -> list[bytes]:
    """Return records of about 100 bytes, as many as make a batch."""
    rng = random.Random(5)
    values = [
        json.dumps(
            {
                "id": number,
                "name": f"customer {rng.randrange(10**6)}",
                "price": round(rng.uniform(1, 1000), 2),
                "is_paid": rng.random() < 0.5,
                "at": f"2026-03-{rng.randrange(1, 29):02}T12:{rng.randrange(60):02}:00Z",
            }
        ).encode()
        for number in range(BATCH_SIZE // 125)
    ]
    assert sum(map(len, values)) < BATCH_SIZE
    return values


TYPED = Experiment(
    title="typed columns of 100-byte records",
    note=(
        "A topic that declares JSON with five fields (bigint, string, double, boolean, timestamp),"
        " about 100 bytes a record, is read as typed columns. The limit is Spark's from_json over"
        " the column `value` of the same topic. Every row is made, and thrown away."
    ),
    rows=(
        Row(
            name="JSON as typed columns",
            unit="million/s",
            ours="ours",
            limit="spark",
            limit_name="from_json",
        ),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_full=4,
    repetitions_quick=2,
)
