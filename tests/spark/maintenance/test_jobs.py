"""Spark jobs: same results as the commands without Spark, and safe to repeat."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.config.schema import LogConfig
from millstream.errors import CorruptFile, RequestError, SparkFailed
from millstream.records.topic_partition import TopicPartition
from millstream.spark.maintenance.completed_tasks import CompletedTasks
from millstream.spark.maintenance.tasks import run_tasks
from millstream.spark.maintenance.topics import RangeEdge, table_records
from millstream.spark.read.data_directory import DataDirectory
from millstream.spark.session import running_session
from millstream.storage.store import Store
from millstream.testing.broker import running_broker
from tests.servers.kafka.client import RawClient, batch_of
from tests.servers.kafka.conftest import make_topic
from tests.servers.kafka.handlers.test_produce import produce
from tests.spark.read.directories import records
from tests.storage.logs import batch_of as plain_batch


@pytest.fixture
def data(tmp_path):
    """A data directory with two topics of several segments each, closed cleanly."""

    async def fill() -> None:
        config = LogConfig(segment_bytes_max=1024, index_interval_bytes=256)
        async with Store(str(tmp_path / "data"), log_config=config) as store:
            for topic in ("a", "b"):
                log = await store.log(topic)
                for number in range(20):
                    await log.append(plain_batch(b"%d" % number * 100))

    asyncio.run(fill())
    return tmp_path / "data"


def millstream(*arguments: str, status: int = 0):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == status, done.output
    return done


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def segments_of(data: Path, topic: str, suffix: str) -> list[Path]:
    return sorted((data / "topics" / topic / "0").glob(f"*.{suffix}"))


def test_without_pyspark_a_command_says_what_to_install(monkeypatch, data):
    for name in ("pyspark", "pyspark.errors"):
        monkeypatch.setitem(sys.modules, name, None)
    done = millstream("jobs", "verify", "--data", data, status=1)
    assert done.stderr.startswith("Error: PySpark is not installed")
    assert "install millstream[spark]" in done.stderr


def test_a_session_that_was_there_before_is_not_stopped(spark):
    with running_session("another", "local[1]") as found:
        assert found is spark
    assert spark.range(3).count() == 3


# Verify and reindex.


@pytest.mark.parametrize("is_damaged", [False, True])
def test_verify_finds_what_the_command_without_spark_finds(spark, data, is_damaged):
    if is_damaged:
        flip(segments_of(data, "a", "log")[1], 200)
        flip(segments_of(data, "b", "index")[0], 20)
        segments_of(data, "b", "seal")[2].unlink()
    status = 1 if is_damaged else 0
    expected = millstream("segments", "verify", "--data", data, "--json", status=status)
    found = millstream("jobs", "verify", "--data", data, "--json", status=status)
    assert json.loads(found.stdout) == json.loads(expected.stdout)
    assert found.stderr == expected.stderr
    assert len(json.loads(found.stdout)["findings"]) >= (3 if is_damaged else 0)


def test_reindex_writes_what_is_missing_and_then_all_is_sound(spark, data):
    flip(segments_of(data, "a", "index")[0], 20)
    segments_of(data, "b", "index")[1].unlink()
    done = millstream("jobs", "reindex", "--data", data, "--json")
    written = json.loads(done.stdout)["written"]
    assert written == [
        str(segments_of(data, "a", "index")[0]),
        str(segments_of(data, "b", "index")[1]),
    ]
    assert done.stderr == "2 files written, 0 damaged\n"
    assert json.loads(millstream("jobs", "reindex", "--data", data, "--json").stdout) == {
        "written": [],
        "findings": [],
    }
    everything = json.loads(millstream("jobs", "reindex", "--data", data, "--all", "--json").stdout)
    assert len(everything["written"]) == len(
        [*segments_of(data, "a", "index"), *segments_of(data, "b", "index")]
    )


def test_reindex_leaves_a_damaged_log_alone(spark, data):
    log = segments_of(data, "a", "log")[0]
    flip(log, 200)
    before = log.read_bytes()
    done = millstream("jobs", "reindex", "--data", data, status=1)
    assert f"damaged: {log}: byte " in done.stdout
    assert log.read_bytes() == before


def test_reindex_is_refused_while_a_node_runs(spark, tmp_path):
    with running_broker(tmp_path / "data"):
        done = millstream("jobs", "reindex", "--data", tmp_path / "data", status=1)
    assert "is locked by another process" in done.stderr


@pytest.mark.parametrize("command", ["verify", "reindex"])
def test_what_was_finished_before_is_not_done_again(spark, data, tmp_path, command):
    state = tmp_path / "state"
    arguments = ("jobs", command, "--data", data, "--state", state, "--json")
    first = millstream(*arguments)
    assert len(list(state.iterdir())) == sum(
        len(segments_of(data, topic, "log")) for topic in ("a", "b")
    )
    flip(segments_of(data, "a", "log")[0], 200)  # Not read again,
    assert millstream(*arguments).stdout == first.stdout
    next(state.iterdir()).write_text("{")
    assert "delete the file" in millstream(*arguments, status=1).stderr
    for path in state.iterdir():
        path.unlink()
    assert "damaged" in millstream(*arguments, status=1).stdout  # unless there is no state.


def test_a_run_that_was_ended_goes_on_where_it_was(tmp_path):
    def work(number: int) -> list[int]:
        if number in failing:
            raise KeyboardInterrupt
        done.append(number)
        return [number]

    finished, done, failing = CompletedTasks(str(tmp_path), "test", list[int]), [], {2}
    recorded = finished.recording(str, work)
    with pytest.raises(KeyboardInterrupt):
        list(map(recorded, range(4)))
    failing.clear()
    assert [finished.load(str(number)) or recorded(number) for number in range(4)] == [
        [0],
        [1],
        [2],
        [3],
    ]
    assert done == [0, 1, 2, 3]
    other = CompletedTasks(str(tmp_path), "another test", list[int])
    assert other.load("0") is None
    finished._path("0").write_bytes(b"?")
    with pytest.raises(CorruptFile, match="delete the file to repeat its task"):
        finished.load("0")


def test_results_come_in_order_and_all_bytes_are_told(spark):
    told: list[int] = []
    sizes = [100 * 1024 * 1024] * 7
    found = run_tasks(spark, lambda n: n * n, range(7), sizes, progress=told.append)
    assert found == [0, 1, 4, 9, 16, 25, 36]
    assert told == sorted(told)
    assert told[-1] == sum(sizes)


def test_a_job_that_fails_says_why_in_one_line(spark):
    def fail(_: int) -> None:
        raise OSError(5, "the disk is on fire")

    with pytest.raises(SparkFailed, match=r"^OSError: .*the disk is on fire$"):
        run_tasks(spark, fail, [1], [1], progress=lambda _: None)


# Writing to topics.


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("17", {}),
        ("2026-01-31T12:00:00+01:00", {"startingTimestamp": "2026-01-31T12:00:00+01:00"}),
        ("2026-01-31", {"startingTimestamp": "2026-01-31T00:00:00+00:00"}),
    ],
)
def test_a_range_begins_at_an_offset_or_at_a_time(text, options):
    assert RangeEdge.parse(text).options("starting") == options
    assert RangeEdge.parse("17").offset == 17


def test_a_range_that_cannot_be_read_is_refused():
    done = millstream("jobs", "replay", "--from", "a", "--to", "b", "--start", "noon", status=1)
    assert "must be an offset or a time such as" in done.stderr


@pytest.mark.parametrize("kind", ["parquet", "orc", "csv", "json"])
def test_rows_of_a_table_become_records(spark, tmp_path, kind):
    path = str(tmp_path / f"rows.{kind}")
    rows = spark.createDataFrame([("x", 1), ("y", 2)], "name string, number int").coalesce(1)
    rows.write.format(kind).options(**({"header": "true"} if kind == "csv" else {})).save(path)
    found = table_records(spark, path, key="name", value="number").collect()
    assert {(bytes(row.key), bytes(row.value)) for row in found} == {(b"x", b"1"), (b"y", b"2")}
    whole = table_records(spark, path, key="number").collect()
    assert {json.loads(bytes(row.value))["name"] for row in whole} == {"x", "y"}


def test_a_table_that_spark_knows_is_found_by_its_name(spark):
    rows = spark.createDataFrame([(b"\xff", None)], "raw binary, nothing string")
    rows.createOrReplaceTempView("known")
    [row] = table_records(spark, "known", key="raw", value="nothing").collect()
    assert (bytes(row.key), row.value) == (b"\xff", None)
    with pytest.raises(RequestError, match="has no column 'key', its columns are raw, nothing"):
        table_records(spark, "known", key="key")


def test_a_table_of_no_known_format_is_refused(spark, tmp_path):
    with pytest.raises(RequestError, match="use one of parquet, orc, csv, json"):
        table_records(spark, str(tmp_path))


@pytest.mark.parametrize("option", ["nonsense", "=x"])
def test_a_setting_of_spark_is_a_pair(option):
    done = millstream("jobs", "verify", "--conf", option, status=2)
    assert "must be KEY=VALUE" in done.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def client(broker):
    with RawClient(broker.bootstrap) as connected:
        yield connected


@pytest.mark.parametrize("partition_by", ["key", "same"])
def test_a_range_of_a_topic_is_written_into_another_once(spark, broker, client, partition_by):
    source, target = make_topic(client, partitions=2), make_topic(client, partitions=2)
    for number in range(6):
        produce(client, source, batch_of(b"%d" % number, key=b"k"), partition=1)
    arguments = ("--from", source, "--to", target, "--start", "2", "--end", "5")
    where = ("--bootstrap", broker.bootstrap, "--job-id", f"replay-{partition_by}")
    for _ in range(2):
        millstream("jobs", "replay", *arguments, *where, "--partition-by", partition_by)
    directory = DataDirectory(str(broker.data))
    found = {
        index: [value for _, value in records(directory, TopicPartition(target, index))]
        for index in range(directory.topics([target])[target].partitions)
    }
    assert [value for some in found.values() for value in some] == [b"2", b"3", b"4"]
    if partition_by == "same":
        assert found[1] == [b"2", b"3", b"4"]


def test_a_table_is_written_into_a_topic_once(spark, broker, client, tmp_path):
    topic, path = make_topic(client), str(tmp_path / "rows.parquet")
    spark.createDataFrame([("x", 1), ("y", 2)], "name string, number int").write.parquet(path)
    arguments = ("--table", path, "--to", topic, "--key", "name", "--value", "number")
    for _ in range(2):
        done = millstream(
            *("jobs", "backfill", *arguments, "--bootstrap", broker.bootstrap),
            *("--job-id", "backfill-1", "--json"),
        )
        assert json.loads(done.stdout) == {"topic": topic, "job_id": "backfill-1"}
    found = records(DataDirectory(str(broker.data)), TopicPartition(topic, 0))
    assert sorted(value for _, value in found) == [b"1", b"2"]
