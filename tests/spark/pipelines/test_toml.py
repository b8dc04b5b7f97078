"""A pipeline in TOML: what it says, and every way in which it can be wrong, before Spark starts."""

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
    # The file as a whole.
    "no TOML": ("[pipeline", r"it is no TOML: "),
    "unknown section": (HEAD + "[source.s]", r"the file has the key 'source', .*perhaps 'sources'"),
    "section is no table": (HEAD + "[x]\n", r"the file has the key 'x', allowed are pipeline, "),
    "sources are no tables": (HEAD + '[sources]\ns = "in"', r"sources.s is 'in', .*\[sources.s\]"),
    "no name": ('[pipeline]\ntrigger = "1 second"', r"pipeline.name is missing"),
    "no targets": (TOPIC, r"there are no targets, needed is one or more"),
    # Keys and values.
    "unknown key": (
        TOPIC + 'watermarks = "x"',
        r"sources.s has the key 'watermarks', .*'watermark'",
    ),
    "name with a slash": (
        '[pipeline]\nname = "a/b"',
        r"pipeline.name is 'a/b', needed is a name of",
    ),
    "name that hides": ('[pipeline]\nname = ".."', r"pipeline.name is '..', needed"),
    "trigger": (
        '[pipeline]\nname = "p"\ntrigger = "often"',
        r"pipeline.trigger is 'often', needed is \"available-now\", or a time like",
    ),
    "number for text": (HEAD + "[sources.s]\ntopic = 7", r"sources.s.topic is 7, needed is a text"),
    "text for number": (
        TOPIC + 'batch_records_max = "7"',
        r"sources.s.batch_records_max is '7', needed is a whole number of 1 or more",
    ),
    "zero": (TOPIC + "batch_bytes_max = 0", r"batch_bytes_max is 0, needed is a whole number of 1"),
    "truth for number": (TOPIC + "batch_bytes_max = true", r"batch_bytes_max is True, needed"),
    "format": (
        TOPIC + 'format = "xml"',
        r"sources.s.format is 'xml', needed is one of raw, json, ",
    ),
    "record column": (
        TOPIC + 'record_columns = ["ofset"]',
        r"record_columns is \['ofset'\], needed is a list of some of topic, partition, offset",
    ),
    "schema of raw": (TOPIC + 'format = "raw"\nschema = "a INT"', r"a schema and format 'raw'"),
    "two fates of bad records": (
        TOPIC + 'dead_letter = "d"\nbad_records = "null"',
        r"sources.s has dead_letter and bad_records 'null': needed is one",
    ),
    "own dead letters": (
        TOPIC + 'dead_letter = "in"',
        r"dead_letter is 'in', the topic that it reads",
    ),
    "watermark as text": (
        TOPIC + 'watermark = "at"',
        r"sources.s.watermark is 'at', needed is \{ co",
    ),
    "watermark without delay": (
        TOPIC + 'watermark = { column = "at" }',
        r"sources.s.watermark.delay is missing, needed is a time",
    ),
    "watermark with odd delay": (
        TOPIC + 'watermark = { column = "at", delay = "soon" }',
        r"sources.s.watermark.delay is 'soon', needed is a time like",
    ),
    "watermark of what does not stream": (
        HEAD + '[sources.s]\ntable = "./t"\nwatermark = { column = "at", delay = "1 day" }',
        r"sources.s has a watermark, and no stream",
    ),
    "watermark of a topic that does not stream": (
        TOPIC + 'stream = false\nwatermark = { column = "at", delay = "1 day" }',
        r"sources.s has watermark and stream = false: it is for streams",
    ),
    "start of a topic that does not stream": (
        TOPIC + 'stream = false\nstart = "latest"',
        r"sources.s.start is 'latest' and stream = false: all of it is read",
    ),
    "topic that does not stream": (
        TOPIC + "stream = false\n" + TARGET,
        r"targets.t.from is 's', which rests on no stream",
    ),
    "neither topic nor table": (
        HEAD + "[sources.s]",
        r"sources.s has neither, needed is one of topic",
    ),
    "topic and table": (
        TOPIC + 'table = "./t"',
        r"sources.s has topic and table, needed is one of topic, table",
    ),
    "file without a slash": (
        HEAD + '[sources.s]\ntable = "t.parquet"',
        r"sources.s.table is 't.parquet', needed is a path with a slash",
    ),
    "format of a table of the catalog": (
        HEAD + '[sources.s]\ntable = "db.t"\nformat = "csv"',
        r"sources.s.format is 'csv', and Spark's catalog has one for 'db.t'",
    ),
    "view with a dash": (
        HEAD + '[sources.a-b]\ntopic = "in"',
        r"the name of sources.a-b is 'a-b', needed is a name that SQL knows",
    ),
    "step without SQL": (
        TOPIC + "[steps.x]\n" + TARGET,
        r"steps.x.sql is missing, needed is a text",
    ),
    "complete into a topic": (
        TOPIC + TARGET + 'mode = "complete"',
        r"mode is 'complete', needed is",
    ),
    "update of a table": (
        TOPIC + '[targets.t]\nfrom = "s"\ntable = "./t"\nmode = "update"',
        r"targets.t.mode is 'update', needed is one of append, complete",
    ),
    "key of raw records": (
        TOPIC + TARGET + 'key = "a"\nformat = "raw"',
        r"targets.t.key is 'a' with format 'raw', whose key is the column key",
    ),
    # How things hang together.
    "target of nothing": (
        TOPIC + '[targets.t]\nfrom = "r"\ntopic = "out"',
        r"targets.t.from reads 'r', which is no source and no step; there are s",
    ),
    "target that says nothing": (
        TOPIC + '[targets.t]\ntopic = "out"',
        r"targets.t.from reads 't', which is no source and no step",
    ),
    "step of nothing": (
        TOPIC + '[steps.x]\nsql = "SELECT * FROM orderz"\n' + TARGET,
        r"steps.x reads 'orderz', which is no source and no step; there are s, x",
    ),
    "circle": (
        TOPIC
        + '[steps.a]\nsql = "SELECT * FROM b"\n[steps.b]\nsql = "SELECT * FROM s, a"\n'
        + TARGET,
        r"steps need their own results: (a -> b -> a|b -> a -> b)",
    ),
    "step of itself": (
        TOPIC + '[steps.a]\nsql = "SELECT * FROM a"\n' + TARGET,
        r"steps need their own results: a -> a",
    ),
    "one name for two": (
        TOPIC + '[steps.S]\nsql = "SELECT 1"\n' + TARGET,
        r"2 sources and steps are called 's'",
    ),
    "two targets in one directory": (
        TOPIC + TARGET + '[targets.T]\nfrom = "s"\ntopic = "other"',
        r"2 targets are called 't', needed is a name for each",
    ),
    "one table for two": (
        TOPIC + '[targets.a]\nfrom = "s"\ntable = "./t"\n[targets.b]\nfrom = "s"\ntable = "./t/"',
        r"2 targets write the table './t', allowed is one",
    ),
    "name of WITH": (
        TOPIC + '[steps.x]\nsql = "WITH s AS (SELECT 1) SELECT * FROM s"\n' + TARGET,
        r"steps.x.sql gives the name 's' with WITH, which is that of a source or step",
    ),
    "nothing streams": (
        HEAD + '[sources.s]\ntable = "./t"\n' + TARGET,
        r"targets.t.from is 's', which rests on no stream: needed is a topic, or",
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
    with pytest.raises(InvalidPipeline, match=r"ends in '.yaml', allowed are .toml and .py"):
        load(str(tmp_path / "p.yaml"))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path):
    (tmp_path / "p.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidPipeline, match="it is no UTF-8"):
        load(str(tmp_path / "p.toml"))


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path):
    with (tmp_path / "p.toml").open("wb") as file:
        file.truncate(1024 * 1024 + 1)
    with pytest.raises(InvalidPipeline, match="has 1048577 bytes, allowed are 1048576"):
        load(str(tmp_path / "p.toml"))


def test_a_value_does_not_change():
    found = parse(WHOLE, "/shop")
    with pytest.raises(AttributeError):
        found.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        found.conf["spark.x"] = "y"  # type: ignore[index]
