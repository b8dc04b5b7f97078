"""The job that writes a lake table: same commits as the writer, exactly once, restartable."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.config.schema import MIB
from millstream.errors import LakeConflict, SparkFailed
from millstream.lake import writer as writer_module
from millstream.lake.table import LakeTable
from millstream.lake.writer import LakePart, LakeWriter, write_part
from millstream.spark.maintenance import lake as lake_job
from millstream.spark.maintenance.lake import write_lake
from millstream.spark.maintenance.tasks import run_tasks
from millstream.spark.options import SourceOptions
from tests.cli.commands import run
from tests.spark.topics import create, produce


@pytest.fixture
def client(node):
    with KafkaClient(node.bootstrap) as client:
        yield client


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "table")


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


def rows_of(uri):
    table = deltalake.DeltaTable(uri).to_pyarrow_dataset().to_table()
    columns = ("partition", "offset", "value")
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def expected(*partitions):
    return [
        (number, offset, value)
        for number, written in enumerate(partitions)
        for offset, value in enumerate(written)
    ]


def write(spark, node, topic, uri):
    options = SourceOptions(bootstrap=node.bootstrap)
    return write_lake(spark, options, topic, uri, file_bytes=128 * MIB, part_bytes=200)


def test_a_job_writes_in_parallel_and_the_writer_goes_on_where_it_stopped(
    spark, node, client, topic, uri
):
    create(node, topic, partitions=2)
    produce(node, topic, values(40), **{"batch.num.messages": 4})
    produce(node, topic, values(10), partition=1)
    done = write(spark, node, topic, uri)
    assert (done.offsets, done.commits) == (50, 1)
    assert done.files > 2, "several parts of a partition"
    assert rows_of(uri) == expected(values(40), values(10))
    produce(node, topic, values(5, first=40))
    assert LakeWriter(client, topic, uri).run().offsets == 5
    client.alter_topic_configs(topic, {"millstream.lake.table": uri})
    produce(node, topic, values(5, first=45))
    result = run("jobs", "lake", topic, "--bootstrap", node.bootstrap, "--json")
    assert json.loads(result.stdout)["offsets"] == 5
    assert rows_of(uri) == expected(values(50), values(10))
    Path(uri, "blocked").touch()
    part = LakePart(topic, LakeTable.open(uri).topic_id, f"{uri}/blocked", 0, 0, 5, 128 * MIB, ())
    options = SourceOptions(bootstrap=node.bootstrap)
    with pytest.raises(SparkFailed, match="blocked"):  # After as many attempts as Spark has.
        run_tasks(
            spark, lambda item: lake_job._write(options, item), [part], [1], progress=lambda _: None
        )


@pytest.mark.parametrize("moment", ["first file", "second file", "before", "after"])
def test_a_job_that_is_killed_at_any_step_is_continued_without_gap_or_duplicate(
    node, client, topic, uri, monkeypatch, moment
):
    class Killed(BaseException):
        """The driver ends here."""

    create(node, topic, partitions=2)
    for number in range(2):
        produce(node, topic, values(50), partition=number)
    commit = LakeTable.commit
    log = writer_module.open_log(client, topic)

    def tasks(_spark, _work, items, _sizes, **_):
        files = []
        for count, part in enumerate(items, start=1):
            files.append(write_part(log, part))
            if (moment, count) in (("first file", 1), ("second file", 2)):
                raise Killed
        return files

    def commit_or_die(table, *arguments, **options):
        if moment == "before":
            raise Killed
        commit(table, *arguments, **options)
        raise Killed

    monkeypatch.setattr(lake_job, "run_tasks", tasks)
    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "commit", commit_or_die)
        with pytest.raises(Killed):
            write(None, node, topic, uri)
    produce(node, topic, values(5, first=50))
    monkeypatch.setattr(
        lake_job, "run_tasks", lambda _s, _w, items, _, **__: [write_part(log, i) for i in items]
    )
    write(None, node, topic, uri)
    assert rows_of(uri) == expected(values(55), values(50))


def test_of_two_jobs_at_once_one_is_refused_and_leaves_no_file(
    node, client, topic, uri, monkeypatch
):
    create(node, topic)
    produce(node, topic, values(10))
    log = writer_module.open_log(client, topic)
    monkeypatch.setattr(
        lake_job, "run_tasks", lambda _s, _w, items, _, **__: [write_part(log, i) for i in items]
    )
    commit = LakeTable.commit

    def commit_after_the_other(table, *arguments, **options):
        monkeypatch.setattr(LakeTable, "commit", commit)
        write(None, node, topic, uri)
        commit(table, *arguments, **options)

    monkeypatch.setattr(LakeTable, "commit", commit_after_the_other)
    with pytest.raises(LakeConflict):
        write(None, node, topic, uri)
    assert rows_of(uri) == expected(values(10))
    files = {Path(file).name for file in LakeTable.open(uri).file_uris()}
    assert {path.name for path in Path(uri).glob("*.parquet")} == files


def test_a_store_that_fails_in_a_task_fails_the_job_and_the_next_one_writes_everything(
    node, client, topic, uri, monkeypatch
):
    create(node, topic)
    produce(node, topic, values(10))
    log = writer_module.open_log(client, topic)
    failures = iter([OSError("no answer")])

    def tasks(_spark, _work, items, _sizes, **_):
        for error in failures:
            raise SparkFailed(str(error))
        return [write_part(log, item) for item in items]

    monkeypatch.setattr(lake_job, "run_tasks", tasks)
    with pytest.raises(SparkFailed, match="no answer"):
        write(None, node, topic, uri)
    assert LakeTable.open(uri).position(0) is None
    write(None, node, topic, uri)
    assert rows_of(uri) == expected(values(10))
