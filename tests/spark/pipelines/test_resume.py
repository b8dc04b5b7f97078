"""A pipeline process that is killed or stopped in a batch, and resumed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from millstream.spark.pipelines import load
from millstream.spark.pipelines.run.runner import run
from tests.spark.topics import consume, create, produce

LONG = bool(os.environ.get("MILLSTREAM_LONG"))
ROUNDS = 30
RECORDS = 200
SEED = 1
PATIENCE = 280

COMMAND = [sys.executable, "-c", "from millstream.cli.main import main; main()", "pipeline", "run"]
OPTIONS = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"]

FILE = '''
import os
from millstream.spark.pipelines import Pipeline, TableTarget, TopicSource, TopicTarget, step

HERE = os.path.dirname(os.path.abspath(__file__))

def hold(rows, here=HERE):
    """Block one task in the middle of its rows until the test lets it continue."""
    for number, batch in enumerate(rows):
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        if number == 0 and 0 in batch.column("partition").to_pylist():
            try:
                with open(f"{here}/in-a-batch", "w") as pipe:
                    pipe.write("now")
                with open(f"{here}/go-on") as pipe:
                    pipe.read()
            except FileNotFoundError:
                pass
        yield batch.slice(half)

@step
def held(numbers):
    return numbers.select("partition", "value").mapInArrow(hold, "partition INT, value BINARY")

@step
def values(held):
    return held.select("value")

pipeline = Pipeline(
    name="resumed",
    bootstrap=os.environ["NODE"],
    sources=[TopicSource(name="numbers", topic=os.environ["TOPIC"], batch_records_max=120)],
    steps=[held, values],
    targets=[
        TopicTarget(name="values", topic=os.environ["TOPIC"] + "-out"),
        TableTarget(name="archive", reads="numbers", table="./archive"),
    ],
)
'''


class Process:
    """`millstream pipeline run` in its own process group, as in a shell."""

    def __init__(self, folder: Path, node, topic: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, str(folder / "p.py"), *OPTIONS, *options],
            env={**os.environ, "NODE": node.bootstrap, "TOPIC": topic},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, number: int) -> None:
        """Send a signal to the group, as Ctrl-C does."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """Kill the driver alone; its child processes have to notice."""
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)

    def end(self) -> tuple[int, str, str]:
        """Return the exit status and the output."""
        out, error = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, error


@contextlib.contextmanager
def running(folder, node, topic, *options):
    """Kill all processes of a test at its end."""
    process = Process(folder, node, topic, *options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.signal(signal.SIGKILL)
        process.process.communicate()


def fill(node, topic, numbers):
    for partition in (0, 1):
        produce(
            node, topic, [b"%d" % n for n in numbers if n % 2 == partition], partition=partition
        )


def assert_exactly_once(spark, node, topic, folder, numbers):
    expected = Counter(b"%d" % n for n in numbers)
    assert Counter(one.value() for one in consume(node, f"{topic}-out")) == expected
    rows = spark.read.parquet(str(folder / "archive")).select("value").collect()
    assert Counter(bytes(row.value) for row in rows) == expected


@pytest.mark.timeout(600)
def test_a_pipeline_killed_and_stopped_within_a_batch_goes_on_without_loss_or_doubles(
    spark, node, topic, tmp_path, monkeypatch
):
    create(node, topic, partitions=2)
    create(node, f"{topic}-out")
    fill(node, topic, range(RECORDS))
    (tmp_path / "p.py").write_text(FILE)
    os.mkfifo(tmp_path / "in-a-batch")
    os.mkfifo(tmp_path / "go-on")

    with running(tmp_path, node, topic) as killed:
        assert (tmp_path / "in-a-batch").read_text() == "now"
        killed.kill()
    assert list(consume(node, f"{topic}-out")) == [], "a batch is seen whole or not at all"

    with running(tmp_path, node, topic, "--once") as stopped:
        assert (tmp_path / "in-a-batch").read_text() == "now"
        stopped.signal(signal.SIGINT)
        (tmp_path / "in-a-batch").unlink()
        (tmp_path / "go-on").write_text("go")
        (tmp_path / "go-on").unlink()
        status, said, error = stopped.end()
    assert status == 0, error
    assert " values batch 0: 120 rows in" in said
    assert len(consume(node, f"{topic}-out")) in (120, RECORDS), "whole batches"

    monkeypatch.setenv("NODE", node.bootstrap)
    monkeypatch.setenv("TOPIC", topic)
    pipeline = load(str(tmp_path / "p.py"))
    run(spark, pipeline, observe=lambda _: None, stop=threading.Event(), is_once=True)
    assert_exactly_once(spark, node, topic, tmp_path, range(RECORDS))


if LONG:  # It takes an hour.

    @pytest.mark.timeout(ROUNDS * 480)
    def test_a_pipeline_that_is_killed_again_and_again_neither_loses_nor_doubles(
        spark, node, topic, tmp_path
    ):
        create(node, topic, partitions=2)
        create(node, f"{topic}-out")
        (tmp_path / "p.py").write_text(FILE)
        chance = random.Random(SEED)
        for number in range(ROUNDS):
            fill(node, topic, range(number * RECORDS, (number + 1) * RECORDS))
            with running(tmp_path, node, topic, "--once") as killed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    killed.process.wait(chance.uniform(1, 30))
                killed.kill()
            with running(tmp_path, node, topic, "--once") as resumed:
                status, _, error = resumed.end()
            assert status == 0, f"round {number}: {error}"
        assert_exactly_once(spark, node, topic, tmp_path, range(ROUNDS * RECORDS))
