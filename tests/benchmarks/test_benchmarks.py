"""The benchmarks run and write their files. Speed is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


def run(folder, *arguments, env=None):
    command = [sys.executable, str(RUN), *arguments]
    done = subprocess.run(command, cwd=folder, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    run(tmp_path, "--subject", "kafka", "--smoke", "--peers", "none")
    content = json.loads((tmp_path / "benchmarks" / "results" / "kafka-smoke.json").read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


@pytest.mark.parametrize("subject", ["http", "queues"])
def test_every_experiment_with_the_http_door_runs(tmp_path, subject):
    run(tmp_path, "--subject", subject, "--smoke", "--peers", "none")
    found = tmp_path / "benchmarks" / "results" / f"{subject}-smoke.json"
    content = json.loads(found.read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


@pytest.mark.parametrize(
    ("subject", "only"),
    [("machine", ""), ("start", "empty"), ("memory", "idle node"), ("growth", ""), ("claims", "")],
)
def test_the_experiments_with_a_node_as_a_whole_run(tmp_path, subject, only):
    # Of two subjects one experiment shows it; all of them take as long as a tenth of CI.
    only = "" if os.environ.get("MILLSTREAM_LONG") else only
    run(tmp_path, "--subject", subject, "--smoke", "--only", only)
    part = "-part" if only else ""
    found = tmp_path / "benchmarks" / "results" / f"{subject}-smoke{part}.json"
    content = json.loads(found.read_text())
    assert content["rows"]
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


def test_the_experiments_with_a_cluster_run(tmp_path):
    # One shows that etcd, nodes and report work; all of them start a cluster each.
    only = "" if os.environ.get("MILLSTREAM_LONG") else "leader and followers"
    options = ("--smoke", "--peers", "none", "--rounds", "1")
    run(tmp_path, "--subject", "cluster", *options, "--only", only)
    part = "-part" if only else ""
    found = tmp_path / "benchmarks" / "results" / f"cluster-smoke{part}.json"
    content = json.loads(found.read_text())
    assert all(len(row["ours"]["values"]) == 1 for row in content["rows"])
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


def test_the_experiments_with_spark_run(tmp_path):
    pytest.importorskip("pyspark")
    # One shows that session, node and report work; all would take longer than CI has for them.
    only = "100-byte" if os.environ.get("MILLSTREAM_LONG") else "sink"
    run(tmp_path, "--subject", "spark", "--smoke", "--peers", "none", "--only", only)
    results = tmp_path / "benchmarks" / "results"
    content = json.loads((results / "spark-smoke-part.json").read_text())
    assert all(value > 0 for row in content["rows"] for value in row["ours"]["values"])


if os.environ.get("MILLSTREAM_LONG"):  # Needs what `tools/setup-peers` and Maven bring.

    @pytest.mark.parametrize(
        ("peer", "subject", "only", "name"),
        [
            ("redis", "queues", "claim", "Redis group, always"),
            ("redis", "kafka", "beside Redis", "Redis, always"),
            ("nats", "kafka", "beside Redis", "NATS, default"),
            ("nats", "cluster", "three replicas", "NATS, default"),
            ("nats", "cluster", "fail-over of one", "NATS, nats-py"),
            ("kafka", "cluster", "three replicas", "Kafka, default"),
        ],
    )
    def test_a_peer_is_measured_beside_us(tmp_path, peer, subject, only, name):
        run(tmp_path, "--subject", subject, "--smoke", "--peers", peer, "--only", only)
        found = tmp_path / "benchmarks" / "results" / f"{subject}-smoke-part.json"
        peers = [each for row in json.loads(found.read_text())["rows"] for each in row["peers"]]
        values = [each["figure"]["values"] for each in peers if each["name"] == name]
        assert values
        assert all(value > 0 for each in values for value in each)

    def test_kafka_is_measured_beside_us(tmp_path):
        run(tmp_path, "--subject", "kafka", "--smoke", "--peers", "kafka", "--only", "beside Kafka")
        found = tmp_path / "benchmarks" / "results" / "kafka-smoke-part.json"
        rows = json.loads(found.read_text())["rows"]
        assert all(peer["figure"]["median"] > 0 for row in rows for peer in row["peers"])


def test_a_peer_that_is_not_installed_is_reported_and_stops_nothing(tmp_path):
    # Without a PATH there is no server of anyone's; ours is found beside this Python.
    arguments = ("--subject", "queues", "--smoke", "--peers", "redis")
    printed = run(tmp_path, *arguments, env={**os.environ, "PATH": ""})
    reason = "redis-server is not on the PATH; as root, run: apt-get install --yes redis-server"
    assert f"- peer redis: missing: {reason}" in printed
    assert "Redis group, always: missing: redis-server is not on the PATH" in printed


def test_a_peer_that_nobody_knows_is_refused(tmp_path):
    command = [sys.executable, str(RUN), "--peers", "kafka,carrier-pigeon"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown peer carrier-pigeon; the peers are kafka, redis, nats, all, none" in done.stderr
