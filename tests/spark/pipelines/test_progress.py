"""Progress of a pipeline, from Spark's reports, and its display."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException
from rich.console import Console

from millstream.cli.pipeline.progress_board import ProgressBoard, batch_line
from millstream.spark.pipelines import Pipeline, TopicSource, TopicTarget
from millstream.spark.pipelines.run.progress import BatchProgress, batch_of, lag_of
from millstream.spark.pipelines.run.runner import STARTS_MAX, TargetQuery

REPORT = {
    "batchId": 7,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "numInputRows": 1200,
    "inputRowsPerSecond": 100.0,
    "processedRowsPerSecond": 2400.0,
    "durationMs": {"addBatch": 450, "triggerExecution": 500},
    "eventTime": {"watermark": "2025-12-31T23:50:00.000Z"},
    "sources": [
        {
            "endOffset": {
                "orders": {"0": 10, "1": 20},
                "(lost)": {"orders-0": 3},
                "(topics)": {"orders": "x"},
            },
            "latestOffset": {"orders": {"0": 15, "1": 20}},
        }
    ],
    "sink": {"numOutputRows": 40},
}
BATCH = BatchProgress(
    target="totals",
    batch=7,
    at="2026-01-01T00:00:00.000Z",
    seconds=0.5,
    rows_in=1200,
    rows_out=40,
    rows_per_second_in=100.0,
    rows_per_second_out=2400.0,
    lag={"orders": 5},
    watermark="2025-12-31T23:50:00.000Z",
)


def test_a_report_becomes_a_batch():
    assert batch_of("totals", REPORT) == BATCH


def test_a_report_that_no_batch_ran_is_none():
    assert batch_of("totals", REPORT | {"durationMs": {"triggerExecution": 3}}) is None


def test_what_spark_does_not_count_is_not_made_up():
    found = batch_of("totals", REPORT | {"sink": {"numOutputRows": -1}, "eventTime": {}})
    assert found is not None
    assert (found.rows_out, found.watermark) == (None, None)


@pytest.mark.parametrize("rate", [None, float("nan"), float("inf"), "NaN"])
def test_a_rate_that_is_no_number_is_none(rate):
    found = batch_of("totals", REPORT | {"inputRowsPerSecond": rate})
    assert found is not None
    assert found.rows_per_second_in == 0.0
    json.dumps(found.rows_per_second_in, allow_nan=False)


LAGS = {
    "one topic": ([{"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 9}}}], {"a": 8}),
    "as text": ([{"endOffset": '{"a": {"0": 1}}', "latestOffset": '{"a": {"0": 9}}'}], {"a": 8}),
    "nothing read yet": ([{"endOffset": None, "latestOffset": {"a": {"0": 9}}}], {"a": 9}),
    "new partition": (
        [{"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 1, "1": 2}}}],
        {"a": 2},
    ),
    "further than told": (
        [{"endOffset": {"a": {"0": 9}}, "latestOffset": {"a": {"0": 7}}}],
        {"a": 0},
    ),
    "two sources": (
        [
            {"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 3}}},
            {"endOffset": {"b": {"0": 1}}, "latestOffset": {"b": {"0": 1}}},
        ],
        {"a": 2, "b": 0},
    ),
    "one topic read twice": (
        [
            {"endOffset": {"a": {"0": 3}}, "latestOffset": {"a": {"0": 3}}},
            {"endOffset": {"a": {"0": 1}}, "latestOffset": {"a": {"0": 3}}},
        ],
        {"a": 2},
    ),
    "files": ([{"endOffset": {"logOffset": 3}, "latestOffset": None}], {}),
    "rate": ([{"endOffset": 17, "latestOffset": 18}], {}),
    "no JSON": ([{"endOffset": "x", "latestOffset": "{"}], {}),
}


@pytest.mark.parametrize(("sources", "lag"), LAGS.values(), ids=LAGS.keys())
def test_the_lag_is_what_topics_are_ahead(sources, lag):
    assert lag_of(sources) == lag


def test_a_batch_is_one_line():
    assert batch_line(BATCH) == (
        "2026-01-01T00:00:00.000Z totals batch 7: 1,200 rows in, 40 out, 2,400 rows/s,"
        " lag orders 5, 0.50 s"
    )


def test_the_board_shows_the_last_batch_of_each_target_and_all_rows():
    board = ProgressBoard(
        Pipeline(
            name="p",
            sources=(TopicSource(name="orders", topic="orders"),),
            targets=(
                TopicTarget(name="totals", reads="orders", topic="a"),
                TopicTarget(name="archive", reads="orders", topic="b"),
            ),
        )
    )
    board.add(BATCH)
    board.add(batch_of("totals", REPORT | {"batchId": 8}))
    console = Console(width=120, record=True)
    with console.capture() as shown:
        console.print(board.table())
    lines = [line.split() for line in shown.get().splitlines()]
    assert lines[2][:8] == ["totals", "8", "2,400", "100", "2,400", "orders", "5", "0.50"]
    assert lines[3][:2] == ["archive", "waits"]


class EndedQuery:
    """A fake of a Spark query that has ended."""

    isActive = False  # noqa: N815 - Spark's name.

    def __init__(self, error):
        self.error = error

    def exception(self):
        return self.error


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("Python worker failed to connect back.\n=== Streaming Query ===", STARTS_MAX),
        ("[STREAM_FAILED] Query terminated with exception: something else", 1),
        (None, 1),
    ],
)
def test_a_query_whose_python_is_slow_to_come_up_is_started_again_a_few_times(text, starts):
    started = []

    def start():
        started.append(EndedQuery(text and PySparkException(text)))
        return started[-1]

    query = TargetQuery(TopicTarget(name="t", topic="out"), start)
    for _ in range(STARTS_MAX + 1):
        query.restart_if_slow()
    assert len(started) == starts
    assert query.has_failed() == (text is not None)
