"""Duration of a micro-batch, beside one of a source that costs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, ratio_at_most
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from subjects.spark.common import PARTITIONS, Bench, random_values, running

SOURCE = "streamed"
TARGET = "written"
RECORDS = 10_000
"""Records of a micro-batch."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    batches = scale.pick(smoke=2, quick=10, full=20)
    numbers = count()
    with running(folder) as bench:
        bench.make_topic(SOURCE)
        bench.make_topic(TARGET)
        values = random_values(100)
        bench.fill(SOURCE, values, -(-batches * RECORDS // len(values)) + PARTITIONS)

        def ours(name: str, target: str) -> Figures:
            writer = _writer(bench, _topic(bench), target, folder / str(next(numbers)))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return {name: _median_ms(query, batches)}

        def bare() -> Figures:
            writer = _writer(bench, _generated(bench), "noop", folder / str(next(numbers)))
            query = writer.trigger(processingTime="0 seconds").start()
            while (last := query.lastProgress) is None or last["batchId"] < batches:
                query.awaitTermination(0.1)  # type: ignore[arg-type]
            found = {"bare": _median_ms(query, batches)}
            _stop(bench, query)
            return found

        yield bare, lambda: ours("source", "noop"), lambda: ours("both", "millstream")


def _topic(bench: Bench) -> DataStreamReader:
    return bench.spark.readStream.format("millstream").options(
        **{
            "bootstrap.servers": bench.bootstrap,
            "topic": SOURCE,
            "startingOffsets": "earliest",
            "maxRecordsPerTrigger": str(RECORDS),
            "columns": "value",
        }
    )


def _generated(bench: Bench) -> DataStreamReader:
    return bench.spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=RECORDS, numPartitions=PARTITIONS
    )


def _writer(
    bench: Bench, source: DataStreamReader, target: str, checkpoint: Path
) -> DataStreamWriter:
    writer = source.load().writeStream.format(target).option("checkpointLocation", str(checkpoint))
    if target == "noop":
        return writer
    return writer.option("bootstrap.servers", bench.bootstrap).option("topic", TARGET)


def _stop(bench: Bench, query: StreamingQuery) -> None:
    """Stop an endless query, without Spark's message about its last micro-batch."""
    bench.spark.sparkContext.setLogLevel("OFF")
    query.stop()
    bench.spark.sparkContext.setLogLevel("ERROR")


def _median_ms(query: StreamingQuery, batches: int) -> float:
    """Return how long a micro-batch took, without the first, which starts what the others use."""
    whole = [one for one in query.recentProgress if one["numInputRows"] == RECORDS]
    assert len(whole) >= batches, f"{len(whole)} micro-batches of {batches}"
    return statistics.median(one["durationMs"]["triggerExecution"] for one in whole[1:batches])


STREAM = Experiment(
    title="micro-batches of 100-byte records",
    note=(
        "A query reads 10,000 records of 100 bytes of 4 partitions with each micro-batch, and"
        " throws them away, or writes them into another topic. The limit is the same with Spark's"
        " source `rate-micro-batch`, which makes its rows itself. The median of all micro-batches"
        " but the first, as Spark reports them (`triggerExecution`); checkpoints are on the disk."
    ),
    rows=(
        Row(
            name="micro-batch from a topic",
            unit="ms",
            ours="source",
            limit="bare",
            limit_name="rate-micro-batch",
            goal=ratio_at_most(2.0),
        ),
        Row(
            name="micro-batch from a topic into a topic",
            unit="ms",
            ours="both",
            limit="bare",
            limit_name="rate-micro-batch, into nothing",
        ),
    ),
    arms=_arms,
    repetitions_smoke=1,
    repetitions_full=3,
    repetitions_quick=2,
)
