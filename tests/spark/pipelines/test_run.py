"""Pipelines between topics and tables: run, stopped and resumed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from millstream.errors import InvalidPipeline, SparkFailed, StoreLocked
from millstream.spark.pipelines import (
    Pipeline,
    SqlStep,
    TableSource,
    TableTarget,
    TopicSource,
    TopicTarget,
    load,
    step,
    target,
)
from millstream.spark.pipelines.run.plan import plans
from millstream.spark.pipelines.run.runner import run
from tests.spark.topics import consume, create, produce

ORDERS = "id BIGINT, country STRING, amount DOUBLE"


def run_once(spark, pipeline):
    """Run a pipeline once and return its batches."""
    batches = []
    run(spark, pipeline, observe=batches.append, stop=threading.Event(), is_once=True)
    return batches


def order(number, country="nl"):
    return json.dumps({"id": number, "country": country, "amount": number + 0.5}).encode()


def orders_table(directory: Path, *numbers: int):
    """Return a source of a table that gets one more file with each call."""
    directory.mkdir(exist_ok=True)
    lines = [order(number).decode() for number in numbers]
    (directory / f"{min(numbers)}.json").write_text("\n".join(lines))
    return TableSource(
        name="orders", table=str(directory), format="json", stream=True, schema=ORDERS
    )


def test_a_file_runs_from_a_topic_to_a_topic_and_a_table_and_goes_on_where_it_was(
    spark, node, topic, tmp_path
):
    create(node, topic, partitions=2)
    create(node, f"{topic}-out", partitions=2)
    (tmp_path / "p.toml").write_text(f"""
        [pipeline]
        name = "whole"
        bootstrap = "{node.bootstrap}"
        [sources.orders]
        topic = "{topic}"
        format = "json"
        schema = "{ORDERS}"
        [steps.doubled]
        sql = "SELECT id, country, amount * 2 AS amount FROM known"
        [steps.known]
        sql = "SELECT * FROM orders WHERE country IS NOT NULL"
        [targets.out]
        from = "doubled"
        topic = "{topic}-out"
        key = "id"
        [targets.archive]
        from = "known"
        table = "./archive"
        partition_by = ["country"]
    """)
    pipeline = load(str(tmp_path / "p.toml"))
    for numbers in (range(6), range(6, 10)):
        produce(node, topic, [order(number) for number in numbers])
        batches = run_once(spark, pipeline)
        assert [(one.target, one.rows_in, one.lag) for one in sorted(batches, key=str)] == [
            ("archive", len(numbers), {topic: 0}),
            ("out", len(numbers), {topic: 0}),
        ]
    assert run_once(spark, pipeline) == []
    written = consume(node, f"{topic}-out", partitions=2)
    assert sorted((int(one.key()), json.loads(one.value())) for one in written) == [
        (number, {"id": number, "country": "nl", "amount": 2 * number + 1.0})
        for number in range(10)
    ]
    archive = spark.read.parquet(str(tmp_path / "archive"))
    assert sorted(row.id for row in archive.collect()) == list(range(10))
    assert [path.name for path in (tmp_path / "archive").glob("country=*")] == ["country=nl"]


def test_updates_of_a_topic_are_written_once_for_each_batch(spark, node, topic, tmp_path):
    create(node, topic)
    source = orders_table(tmp_path / "in", 1, 2)
    pipeline = Pipeline(
        name="updates",
        bootstrap=node.bootstrap,
        home=str(tmp_path),
        sources=(source,),
        steps=(SqlStep(name="sums", sql="SELECT country, count(*) AS n FROM orders GROUP BY 1"),),
        targets=(TopicTarget(name="sums", topic=topic, key="country", mode="update"),),
    )
    run_once(spark, pipeline)
    orders_table(tmp_path / "in", 3)
    run_once(spark, pipeline)
    # As after a crash between the write to the topic and the commit in the checkpoint.
    for name in ("1", ".1.crc"):
        (Path(pipeline.checkpoint_of(pipeline.targets[0])) / "commits" / name).unlink()
    run_once(spark, pipeline)
    written = [(one.key(), json.loads(one.value())["n"]) for one in consume(node, topic)]
    assert written == [(b"nl", 2), (b"nl", 3)]


def test_a_topic_that_does_not_stream_is_read_anew_by_each_batch(spark, node, topic, tmp_path):
    create(node, topic)
    produce(node, topic, [b"first"])
    changes = TopicSource(name="changes", topic=topic, stream=False)
    latest = SqlStep(
        name="latest", sql="SELECT max_by(cast(value AS STRING), offset) AS name FROM changes"
    )
    named = SqlStep(name="named", sql="SELECT id, name FROM orders CROSS JOIN latest")
    seen = []

    @target
    def named_rows(batch, batch_id):
        seen.extend((row.id, row.name) for row in batch.collect())
        if batch_id == 0:
            produce(node, topic, [b"second"])

    pipeline = Pipeline(
        name="static",
        bootstrap=node.bootstrap,
        home=str(tmp_path),
        sources=(
            TableSource(
                name="orders",
                table=orders_table(tmp_path / "in", 1).table,
                format="json",
                stream=True,
                schema=ORDERS,
                options={"maxFilesPerTrigger": 1},
            ),
            changes,
        ),
        steps=(latest, named),
        targets=(target(named_rows.function, name="named"),),
    )
    orders_table(tmp_path / "in", 2)
    run_once(spark, pipeline)
    assert sorted(name for _, name in seen) == ["first", "second"]


def test_a_complete_table_holds_the_last_state_and_nothing_else(spark, tmp_path):
    pipeline = Pipeline(
        name="complete",
        home=str(tmp_path),
        sources=(orders_table(tmp_path / "in", 1, 2),),
        steps=(SqlStep(name="sums", sql="SELECT country, count(*) AS n FROM orders GROUP BY 1"),),
        targets=(TableTarget(name="sums", table="./sums", mode="complete"),),
    )
    run_once(spark, pipeline)
    orders_table(tmp_path / "in", 3, 4, 5)
    run_once(spark, pipeline)
    assert [tuple(row) for row in spark.read.parquet(str(tmp_path / "sums")).collect()] == [
        ("nl", 5)
    ]


def test_functions_of_a_file_reach_the_workers(spark, tmp_path):
    orders_table(tmp_path / "in", 1, 2)
    (tmp_path / "p.py").write_text(
        f"""
from pyspark.sql.functions import udf
from millstream.spark.pipelines import Pipeline, TableSource, TableTarget, step

def doubled(amount):
    return amount * FACTOR

FACTOR = 2

@step
def doubles(orders):
    return orders.select("id", udf(doubled, "double")("amount").alias("amount"))

pipeline = Pipeline(
    name="functions",
    sources=[
        TableSource(name="orders", table="./in", format="json", stream=True, schema="{ORDERS}")
    ],
    steps=[doubles],
    targets=[TableTarget(name="doubles", table="./out")],
)
"""
    )
    run_once(spark, load(str(tmp_path / "p.py")))
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(tuple(row) for row in rows) == [(1, 3.0), (2, 5.0)]


def test_a_failure_is_told_in_one_sentence_and_the_others_stop(spark, tmp_path):
    @target(reads="orders")
    def broken(batch, batch_id):
        raise ValueError("the disk is made of cheese")

    @target(reads="orders")
    def sound(batch, batch_id):
        batch.collect()

    pipeline = Pipeline(
        name="failing",
        home=str(tmp_path),
        sources=(orders_table(tmp_path / "in", 1),),
        targets=(sound, broken),
    )
    with pytest.raises(SparkFailed) as caught:
        run(spark, pipeline, observe=lambda _: None, stop=threading.Event())
    assert str(caught.value) == "target broken failed: ValueError: the disk is made of cheese"
    assert not spark.streams.active


def test_a_stop_lets_the_batch_finish_that_runs(spark, tmp_path):
    stop, batches = threading.Event(), []

    @target(reads="orders")
    def slow(batch, batch_id):
        stop.set()
        assert batch.count() == 1

    pipeline = Pipeline(
        name="stopping",
        home=str(tmp_path),
        sources=(orders_table(tmp_path / "in", 1),),
        targets=(slow,),
    )
    run(spark, pipeline, observe=batches.append, stop=stop)
    assert [one.batch for one in batches] == [0]
    assert (Path(pipeline.checkpoint_of(slow)) / "commits" / "0").exists()
    assert not spark.streams.active


WRONG = {
    "steps.x: [UNRESOLVED_COLUMN": SqlStep(name="x", sql="SELECT nothing FROM orders"),
    "steps.x: [PARSE_SYNTAX_ERROR]": SqlStep(name="x", sql="SELECT * FROM orders WHERE ("),
    "steps.x must return a DataFrame, got 7": step(lambda orders: 7, name="x"),
    "targets.x.key must be one of the columns id, country, amount, got 'nothing'": SqlStep(
        name="x", sql="SELECT * FROM orders"
    ),
    "targets.x: [STREAMING_OUTPUT_MODE": SqlStep(
        name="x", sql="SELECT count(*) AS nothing FROM orders"
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_spark_does_not_accept_is_told_with_its_place(message, spark, tmp_path):
    pipeline = Pipeline(
        name="wrong",
        home=str(tmp_path),
        sources=(orders_table(tmp_path / "in", 1),),
        steps=(WRONG[message],),
        targets=(TopicTarget(name="x", topic="out", key="nothing"),),
    )
    with pytest.raises(InvalidPipeline) as caught:
        run_once(spark, pipeline)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_two_cannot_run_one_pipeline_at_a_time(spark, tmp_path):
    @target(reads="orders")
    def out(batch, batch_id):
        with pytest.raises(StoreLocked):
            run_once(spark, pipeline)

    pipeline = Pipeline(
        name="locked",
        home=str(tmp_path),
        sources=(orders_table(tmp_path / "in", 1),),
        targets=(out,),
    )
    assert len(run_once(spark, pipeline)) == 1


def test_a_plan_is_told_and_nothing_runs(spark, tmp_path):
    pipeline = Pipeline(
        name="explained",
        home=str(tmp_path),
        sources=(orders_table(tmp_path / "in", 1),),
        steps=(SqlStep(name="sums", sql="SELECT country, count(*) AS n FROM orders GROUP BY 1"),),
        targets=(TopicTarget(name="sums", topic="out", key="country", mode="update"),),
    )
    (plan,) = plans(spark, pipeline)
    head, *rest = plan.splitlines()
    assert head.startswith("target sums: sums -> topic out, update, checkpoint /")
    assert "StateStoreSave" in "".join(rest)
    assert not (tmp_path / "millstream-pipelines").exists()
