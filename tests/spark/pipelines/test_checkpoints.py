"""Checkpoints that a killed run left behind: half written, or still in use by its Java process."""

from __future__ import annotations

import fcntl
import logging
import threading

import pytest

from millstream.errors import StoreLocked
from millstream.spark.pipelines import Pipeline, TableSource, target
from millstream.spark.pipelines.run import checkpoints
from millstream.spark.pipelines.run.runner import run


@pytest.fixture
def counts():
    """Rows of each batch that a run completed."""
    return []


@pytest.fixture
def pipeline(tmp_path, counts):
    @target(reads="numbers")
    def out(batch, batch_id):
        counts.append(batch.count())

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"n": 1}\n{"n": 2}')
    table = str(tmp_path / "in")
    source = TableSource(name="numbers", table=table, format="json", stream=True, schema="n INT")
    return Pipeline(name="killed", home=str(tmp_path), sources=(source,), targets=(out,))


def run_once(spark, pipeline):
    run(spark, pipeline, observe=lambda _: None, stop=threading.Event(), is_once=True)


@pytest.fixture
def spark_lock(tmp_path):
    """The lock of the Java process of a run that was killed."""
    path = tmp_path / "millstream-pipelines" / "killed" / checkpoints.SPARK_LOCK
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield file


def test_a_run_that_was_killed_while_it_wrote_its_first_offsets_is_resumed(
    spark, pipeline, counts, tmp_path
):
    offsets = tmp_path / "millstream-pipelines" / "killed" / "out" / "offsets"
    offsets.mkdir(parents=True)
    name = "0.f07e5775-2738-4837-9db5-cc04cc2ca25c.tmp"
    (offsets / f".{name}").touch()
    (offsets / f"..{name}.crc").write_bytes(b"crc\0")
    run_once(spark, pipeline)
    assert counts == [2]
    assert {path.name for path in offsets.iterdir()} == {"0", ".0.crc"}


def test_files_of_another_kind_are_not_removed_from_a_checkpoint(spark, pipeline, tmp_path):
    offsets = tmp_path / "millstream-pipelines" / "killed" / "out" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "notes.txt").touch()
    (offsets / ".hidden").touch()
    with pytest.raises(Exception, match="should be empty"):
        run_once(spark, pipeline)
    assert {path.name for path in offsets.iterdir()} == {"notes.txt", ".hidden"}


def test_a_run_waits_until_the_java_process_of_a_killed_one_has_ended(
    spark, pipeline, counts, spark_lock
):
    class Ending(logging.Handler):
        def emit(self, record):
            assert not counts, "nothing is done yet"
            fcntl.lockf(spark_lock, fcntl.LOCK_UN)

    ending = Ending()
    checkpoints.logger.addHandler(ending)
    try:
        run_once(spark, pipeline)
    finally:
        checkpoints.logger.removeHandler(ending)
    assert counts == [2]


def test_a_java_process_that_does_not_end_is_told(spark, pipeline, counts, spark_lock, monkeypatch):
    monkeypatch.setattr(checkpoints, "WAIT_SECONDS", 0)
    with pytest.raises(StoreLocked, match=r"spark-lock is still locked .* end that process"):
        run_once(spark, pipeline)
    assert counts == []
    fcntl.lockf(spark_lock, fcntl.LOCK_UN)
    run_once(spark, pipeline)
    assert counts == [2]
