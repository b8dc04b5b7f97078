"""How long it takes to plan a read of a table with many files."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale
from measure.rows import at_most

from millstream.lake.history import TableHistory
from millstream.lake.table import LakeFile, LakeTable

OFFSETS = 100_000
PARTITIONS = 10


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    files = scale.pick(smoke=100, quick=10_000, full=10_000)
    uri = str(folder / "table")
    table = LakeTable.create(uri, topic="t", topic_id=uuid.uuid4())
    each = files // PARTITIONS
    for number in range(each):  # As a writer commits them: a file of each partition.
        added = [_file(folder / "table", partition, number) for partition in range(PARTITIONS)]
        table.commit(added, dict.fromkeys(range(PARTITIONS), (number + 1) * OFFSETS))

    def plan() -> Figures:
        started = time.perf_counter()
        history = TableHistory(LakeTable.open(uri), PARTITIONS)
        found = {
            path
            for partition in range(PARTITIONS)
            for number in range(each)
            for path in history.files(partition, number * OFFSETS, (number + 1) * OFFSETS)
        }
        assert len(found) == files
        return {"plan": time.perf_counter() - started}

    yield (plan,)


def _file(root: Path, partition: int, number: int) -> LakeFile:
    path = f"p{partition}-{number}.parquet"
    (root / path).touch()
    first = number * OFFSETS
    bounds = {"partition": partition, "timestamp": "2026-01-01T00:00:00.000Z"}
    statistics = {
        "numRecords": OFFSETS,
        "minValues": {**bounds, "offset": first},
        "maxValues": {**bounds, "offset": first + OFFSETS - 1},
        "nullCount": {"partition": 0, "offset": 0, "timestamp": 0},
    }
    return LakeFile(path, 128 * 1024 * 1024, statistics)


PLAN = Experiment(
    title="plan a read of 10,000 files",
    note=(
        "A table with 10,000 files of 10 partitions, from 1,000 commits with their checkpoints, is"
        " opened, and a task is made for each file, as a union read of Spark does."
    ),
    rows=(Row(name="plan a read of 10,000 files", unit="s", ours="plan", goal=at_most(1)),),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_quick=3,
    repetitions_full=5,
)
