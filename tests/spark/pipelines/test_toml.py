"""Pipelines defined in TOML, and every error that is reported before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines import (
    Pipeline,
    SqlStep,
    TableSource,
    TableTarget,
    TopicSource,
    TopicTarget,
    Watermark,
    load,
)
from millstream.spark.pipelines.definition.toml import parse

WHOLE = """
[pipeline]
name = "orders-by-customer"
checkpoint = "./checkpoints"
trigger = "5 seconds"
bootstrap = "10.0.0.7:9092"
master = "local[2]"
conf = { "spark.sql.shuffle.partitions" = 2, "spark.sql.ansi.enabled" = true }

[sources.orders]
topic = "orders"
schema = "order_id BIGINT, customer_id BIGINT, amount DOUBLE, at TIMESTAMP"
format = "json"
record_columns = ["offset"]
watermark = { column = "at", delay = "10 minutes" }
dead_letter = "orders-dead"
batch_records_max = 1000

[sources.customers]
table = "./customers.parquet"

[steps.totals]
sql = "SELECT customer_id, sum(amount) AS total FROM joined GROUP BY customer_id"

[steps.joined]
sql = "SELECT * FROM orders JOIN customers USING (customer_id)"

[targets.totals]
topic = "order-totals"
key = "customer_id"
mode = "update"

[targets.archive]
from = "joined"
table = "./archive"
partition_by = ["day"]
"""

HEAD = '[pipeline]\nname = "p"\n'
TOPIC = HEAD + '[sources.s]\ntopic = "in"\n'
TARGET = '[targets.t]\nfrom = "s"\ntopic = "out"\n'


def test_a_file_becomes_one_value():
    assert parse(WHOLE, "/shop") == Pipeline(
        name="orders-by-customer",
        checkpoint="./checkpoints",
        trigger="5 seconds",
        bootstrap="10.0.0.7:9092",
        master="local[2]",
        conf={"spark.sql.shuffle.partitions": "2", "spark.sql.ansi.enabled": "true"},
        sources=(
            TopicSource(
                name="orders",
                topic="orders",
                schema="order_id BIGINT, customer_id BIGINT, amount DOUBLE, at TIMESTAMP",
                format="json",
                record_columns=("offset",),
                watermark=Watermark(column="at", delay="10 minutes"),
                dead_letter="orders-dead",
                batch_records_max=1000,
            ),
            TableSource(name="customers", table="./customers.parquet"),
        ),
        steps=(
            SqlStep(
                name="totals",
                sql="SELECT customer_id, sum(amount) AS total FROM joined GROUP BY customer_id",
            ),
            SqlStep(name="joined", sql="SELECT * FROM orders JOIN customers USING (customer_id)"),
        ),
        targets=(
            TopicTarget(name="totals", topic="order-totals", key="customer_id", mode="update"),
            TableTarget(name="archive", reads="joined", table="./archive", partition_by=("day",)),
        ),
        home="/shop",
    )


def test_relative_paths_start_from_the_file_wherever_it_is_run_from(tmp_path: Path, monkeypatch):
    monkeypatch.chdir("/")
    (tmp_path / "p.toml").write_text(WHOLE.replace('checkpoint = "./checkpoints"', ""))
    found = load(str(tmp_path / "p.toml"))
    directory = tmp_path / "millstream-pipelines" / "orders-by-customer"
    assert found.checkpoint_directory == str(directory)
    assert [found.checkpoint_of(target) for target in found.targets] == [
        str(directory / "totals"),
        str(directory / "archive"),
    ]
    assert found.path("./archive") == str(tmp_path / "archive")
    assert found.path("/elsewhere") == "/elsewhere"
    assert found.path("s3a://bucket/archive") == "s3a://bucket/archive"


WRONG = {
    # The file.
    "no TOML": ("[pipeline", r"not valid TOML: "),
    "unknown section": (
        HEAD + "[source.s]",
        r"the file has no key 'source', .*did you mean 'sources'",
    ),
    "section is no table": (HEAD + "[x]\n", r"the file has no key 'x', the keys are pipeline, "),
    "sources are no tables": (
        HEAD + '[sources]\ns = "in"',
        r"sources.s must be a table \(\[sources.s\]\), got 'in'",
    ),
    "no name": ('[pipeline]\ntrigger = "1 second"', r"pipeline.name is required"),
    "no targets": (TOPIC, r"must have at least one target"),
    # Keys and values.
    "unknown key": (
        TOPIC + 'watermarks = "x"',
        r"sources.s has no key 'watermarks', .*'watermark'",
    ),
    "name with a slash": (
        '[pipeline]\nname = "a/b"',
        r"pipeline.name must be a name of .* got 'a/b'",
    ),
    "name that hides": ('[pipeline]\nname = ".."', r"pipeline.name must be .* got '..'"),
    "trigger": (
        '[pipeline]\nname = "p"\ntrigger = "often"',
        r"pipeline.trigger must be \"available-now\", or an interval .* got 'often'",
    ),
    "number for text": (
        HEAD + "[sources.s]\ntopic = 7",
        r"sources.s.topic must be a non-empty string, got 7",
    ),
    "text for number": (
        TOPIC + 'batch_records_max = "7"',
        r"sources.s.batch_records_max must be an integer of at least 1, got '7'",
    ),
    "zero": (
        TOPIC + "batch_bytes_max = 0",
        r"batch_bytes_max must be an integer of at least 1, got 0",
    ),
    "truth for number": (TOPIC + "batch_bytes_max = true", r"batch_bytes_max must be .* got True"),
    "format": (
        TOPIC + 'format = "xml"',
        r"sources.s.format must be one of raw, json, .* got 'xml'",
    ),
    "record column": (
        TOPIC + 'record_columns = ["ofset"]',
        r"record_columns must be a list with elements of topic, .* got \['ofset'\]",
    ),
    "schema of raw": (
        TOPIC + 'format = "raw"\nschema = "a INT"',
        r"must not have a schema with format 'raw'",
    ),
    "two actions for bad records": (
        TOPIC + 'dead_letter = "d"\nbad_records = "null"',
        r"sources.s must have either dead_letter or bad_records",
    ),
    "own dead letters": (
        TOPIC + 'dead_letter = "in"',
        r"dead_letter must not be the topic .* got 'in'",
    ),
    "watermark as text": (
        TOPIC + 'watermark = "at"',
        r"sources.s.watermark must be a table such as \{ co.* got 'at'",
    ),
    "watermark without delay": (
        TOPIC + 'watermark = { column = "at" }',
        r"sources.s.watermark.delay is required: an interval",
    ),
    "watermark with odd delay": (
        TOPIC + 'watermark = { column = "at", delay = "soon" }',
        r"sources.s.watermark.delay must be an interval .* got 'soon'",
    ),
    "watermark of what does not stream": (
        HEAD + '[sources.s]\ntable = "./t"\nwatermark = { column = "at", delay = "1 day" }',
        r"sources.s.watermark requires stream = true",
    ),
    "watermark of a topic that does not stream": (
        TOPIC + 'stream = false\nwatermark = { column = "at", delay = "1 day" }',
        r"sources.s.watermark requires stream = true",
    ),
    "start of a topic that does not stream": (
        TOPIC + 'stream = false\nstart = "latest"',
        r"sources.s.start must be 'earliest' with stream = false, got 'latest'",
    ),
    "topic that does not stream": (
        TOPIC + "stream = false\n" + TARGET,
        r"targets.t.from must depend on a stream .* got 's'",
    ),
    "neither topic nor table": (
        HEAD + "[sources.s]",
        r"sources.s must have either topic or table, got neither",
    ),
    "topic and table": (
        TOPIC + 'table = "./t"',
        r"sources.s must have either topic or table, got topic and table",
    ),
    "file without a slash": (
        HEAD + '[sources.s]\ntable = "t.parquet"',
        r"sources.s.table must be a path with a slash .* got 't.parquet'",
    ),
    "format of a table of the catalog": (
        HEAD + '[sources.s]\ntable = "db.t"\nformat = "csv"',
        r"sources.s.format is for tables .* got 'csv' for 'db.t'",
    ),
    "view with a dash": (
        HEAD + '[sources.a-b]\ntopic = "in"',
        r"the name of sources.a-b must be a name for SQL .* got 'a-b'",
    ),
    "step without SQL": (
        TOPIC + "[steps.x]\n" + TARGET,
        r"steps.x.sql is required: a non-empty string",
    ),
    "complete into a topic": (
        TOPIC + TARGET + 'mode = "complete"',
        r"mode must be .* got 'complete'",
    ),
    "update of a table": (
        TOPIC + '[targets.t]\nfrom = "s"\ntable = "./t"\nmode = "update"',
        r"targets.t.mode must be one of append, complete, got 'update'",
    ),
    "key of raw records": (
        TOPIC + TARGET + 'key = "a"\nformat = "raw"',
        r"targets.t.key must not be set with format 'raw'",
    ),
    # Dependencies between parts.
    "target of nothing": (
        TOPIC + '[targets.t]\nfrom = "r"\ntopic = "out"',
        r"targets.t.from reads 'r', which is neither a source nor a step; there are s",
    ),
    "target that says nothing": (
        TOPIC + '[targets.t]\ntopic = "out"',
        r"targets.t.from reads 't', which is neither a source nor a step",
    ),
    "step of nothing": (
        TOPIC + '[steps.x]\nsql = "SELECT * FROM orderz"\n' + TARGET,
        r"steps.x reads 'orderz', which is neither a source nor a step; there are s, x",
    ),
    "circle": (
        TOPIC
        + '[steps.a]\nsql = "SELECT * FROM b"\n[steps.b]\nsql = "SELECT * FROM s, a"\n'
        + TARGET,
        r"steps depend on themselves: (a -> b -> a|b -> a -> b)",
    ),
    "step of itself": (
        TOPIC + '[steps.a]\nsql = "SELECT * FROM a"\n' + TARGET,
        r"steps depend on themselves: a -> a",
    ),
    "one name for two": (
        TOPIC + '[steps.S]\nsql = "SELECT 1"\n' + TARGET,
        r"names of sources and steps must be distinct, got 's' 2 times",
    ),
    "two targets in one directory": (
        TOPIC + TARGET + '[targets.T]\nfrom = "s"\ntopic = "other"',
        r"names of targets must be distinct, got 't' 2 times",
    ),
    "one table for two": (
        TOPIC + '[targets.a]\nfrom = "s"\ntable = "./t"\n[targets.b]\nfrom = "s"\ntable = "./t/"',
        r"at most one target may write table './t', got 2",
    ),
    "name of WITH": (
        TOPIC + '[steps.x]\nsql = "WITH s AS (SELECT 1) SELECT * FROM s"\n' + TARGET,
        r"steps.x.sql defines 's' with WITH, which is the name of a source or step",
    ),
    "nothing streams": (
        HEAD + '[sources.s]\ntable = "./t"\n' + TARGET,
        r"targets.t.from must depend on a stream .a topic, or a table .*, got 's'",
    ),
    "comes back": (
        TOPIC + '[steps.x]\nsql = "SELECT * FROM s"\n[targets.x]\ntopic = "in"',
        r"targets.x.topic is 'in', which its source 's' reads",
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named_with_the_file_the_key_and_what_is_allowed(
    text: str, message: str, tmp_path: Path
):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(InvalidPipeline, match=message) as caught:
        load(str(path))
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    (tmp_path / "p.yaml").write_text("")
    with pytest.raises(InvalidPipeline, match=r"must end in .toml or .py"):
        load(str(tmp_path / "p.yaml"))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    (tmp_path / "p.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidPipeline, match="not valid UTF-8"):
        load(str(tmp_path / "p.toml"))


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path):
    with (tmp_path / "p.toml").open("wb") as file:
        file.truncate(1024 * 1024 + 1)
    with pytest.raises(InvalidPipeline, match="at most 1048576 bytes, got 1048577"):
        load(str(tmp_path / "p.toml"))


def test_a_value_does_not_change():
    found = parse(WHOLE, "/shop")
    with pytest.raises(AttributeError):
        found.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        found.conf["spark.x"] = "y"  # type: ignore[index]
