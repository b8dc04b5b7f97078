"""The benchmarks run, and leave what they promise. How fast anything is, is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


def run(folder, *arguments):
    command = [sys.executable, str(RUN), *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return run(folder, "--subject", "example", "--smoke"), folder / "benchmarks" / "results"


def test_the_table_has_the_limit_beside_every_figure(example):
    printed, _ = example
    (row,) = [line for line in printed.splitlines() if line.startswith("| read a file  ")]
    _, name, ours, limit, ratio, goal, met, _ = (cell.strip() for cell in row.split("|"))
    assert name == "read a file"
    assert "MB/s" in ours
    assert limit.endswith(": copy in memory")
    assert ratio
    assert goal == "≥ 0.1x"
    assert met.rstrip("?") in ("yes", "NO")


def test_the_json_holds_every_repetition_and_the_machine(example):
    _, results = example
    content = json.loads((results / "example-smoke.json").read_text())
    row = content["rows"][0]
    pairs = zip(row["ours"]["values"], row["limit"]["values"], strict=True)
    assert row["ratio"]["values"] == [ours / limit for ours, limit in pairs]
    assert {"CPU", "kernel", "file system", "Python", "libraries"} <= set(content["facts"])


def test_the_report_shows_the_plot_and_says_what_was_done(example):
    _, results = example
    report = (results / "example-smoke.md").read_text()
    assert "![Every row beside its limit and its peers](example-smoke.png)" in report
    assert "**read a file**: A file in the page cache is read whole." in report
    assert (results / "example-smoke.png").read_bytes().startswith(b"\x89PNG")


def test_no_data_is_left_behind(example):
    _, results = example
    assert sorted(path.suffix for path in results.iterdir()) == [".json", ".md", ".png"]


def test_every_experiment_with_the_log_runs(tmp_path):
    pytest.importorskip("numba")
    run(tmp_path, "--subject", "log", "--smoke")
    content = json.loads((tmp_path / "benchmarks" / "results" / "log-smoke.json").read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


def test_every_experiment_with_the_kafka_door_runs(tmp_path):
    run(tmp_path, "--subject", "kafka", "--smoke")
    content = json.loads((tmp_path / "benchmarks" / "results" / "kafka-smoke.json").read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


@pytest.mark.parametrize("subject", ["http", "queues"])
def test_every_experiment_with_the_http_door_runs(tmp_path, subject):
    run(tmp_path, "--subject", subject, "--smoke")
    found = tmp_path / "benchmarks" / "results" / f"{subject}-smoke.json"
    content = json.loads(found.read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


@pytest.mark.parametrize("subject", ["machine", "start", "memory", "growth", "claims"])
def test_every_experiment_with_a_node_as_a_whole_runs(tmp_path, subject):
    run(tmp_path, "--subject", subject, "--smoke")
    found = tmp_path / "benchmarks" / "results" / f"{subject}-smoke.json"
    content = json.loads(found.read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


def test_the_experiments_with_spark_run(tmp_path):
    pytest.importorskip("pyspark")
    # One shows that session, node and report work; all would take longer than CI has for them.
    only = "100-byte" if os.environ.get("MILLSTREAM_LONG") else "sink"
    run(tmp_path, "--subject", "spark", "--smoke", "--only", only)
    results = tmp_path / "benchmarks" / "results"
    content = json.loads((results / "spark-smoke-part.json").read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])
