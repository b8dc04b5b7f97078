"""Exactly-once writes: after any crash, readers of committed records see each record once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.spark import driver
from tests.spark.faults import STEPS
from tests.spark.topics import create, produce, values

ROOT = Path(__file__).parents[2]
IS_LONG = "MILLSTREAM_LONG" in os.environ
RUNS_MAX = 3

COUNT = 100
EXPECTED = sorted(b"%d" % number for number in range(COUNT))


@pytest.fixture
def topics(node, topic):
    """A topic with records, and an empty one to copy them to."""
    source, target = f"{topic}-in", f"{topic}-out"
    create(node, source, partitions=2)
    create(node, target, partitions=2)
    for partition in (0, 1):
        produce(node, source, [b"%d" % n for n in range(partition, COUNT, 2)], partition=partition)
    return source, target


EVERY = [(step, kind) for step in STEPS for kind in ("stream", "batch")]
SAMPLE = [("after write", "stream"), ("before commit", "batch"), ("after commit", "stream")]


@pytest.mark.parametrize(("step", "kind"), EVERY if IS_LONG else SAMPLE)
def test_a_killed_process_of_a_write_neither_loses_nor_doubles(
    spark, node, topics, tmp_path, step, kind
):
    source, target = topics
    runs = 0
    while True:
        runs += 1
        assert runs <= RUNS_MAX
        try:
            driver.run(spark, kind, node.bootstrap, source, target, tmp_path, step, "worker")
        except (PySparkException, Py4JJavaError):
            assert "commit" in step, "Spark itself repeats a task"
        else:
            break
    assert (tmp_path / "died").exists()
    assert values(node, target, partitions=2) == EXPECTED


@pytest.mark.parametrize(("step", "kind"), EVERY if IS_LONG else SAMPLE[-1:])
def test_a_killed_spark_neither_loses_nor_doubles(node, topics, tmp_path, step, kind):
    source, target = topics
    arguments = [kind, node.bootstrap, source, target, str(tmp_path), step, "driver"]
    command = [sys.executable, "-m", "tests.spark.driver", *arguments]
    first = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    _, said = first.communicate(timeout=120)
    assert first.returncode != 0, "it was killed"
    assert (tmp_path / "died").exists(), said.decode()
    _end(first)
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    assert values(node, target, partitions=2) == EXPECTED


def _end(process):
    """Kill processes that a killed Spark left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
