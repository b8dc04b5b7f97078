"""`millstream bench`: measurements, comparisons and cleanup."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from millstream.testing.broker import RunningBroker
from tests.cli.commands import run, started, told
from tests.cli.nodes import PATIENCE, wait_until

MACHINE = [
    "disk: write", "disk: write, fdatasync",
    "log: ephemeral", "log: memory", "log: disk", "log: fsync",
]  # fmt: skip
NODE = ["http: append", "http: read", "kafka: produce", "kafka: fetch"]


def test_the_machine_is_measured_where_no_node_is(tmp_path: Path) -> None:
    words = ("bench", "--data", tmp_path, "--seconds", 0.01)
    result = run(*words, "--json", server="http://127.0.0.1:1")
    assert result.exit_code == 0
    assert result.stderr.startswith("Measuring only this machine: no node answers at")
    found = {one["what"]: one for one in json.loads(result.stdout)}
    assert list(found) == MACHINE
    assert all(one["bytes_per_second"] > 0 and one["p50_ms"] > 0 for one in found.values())
    log, limit = found["log: fsync"], found["disk: write, fdatasync"]
    assert log["limit"] == limit["what"]
    expected = log["bytes_per_second"] / limit["bytes_per_second"]
    assert log["of_limit"] == pytest.approx(expected, rel=0.01)
    assert found["log: ephemeral"]["of_limit"] is None
    assert os.listdir(tmp_path) == []


def test_a_node_is_measured_through_both_servers_and_left_as_it_was(
    node: RunningBroker, tmp_path: Path
) -> None:
    data = tmp_path / "bench"
    data.mkdir()
    words = ("bench", "--data", data, "--seconds", 0.01, "--bootstrap", node.bootstrap)
    result = run(*words, server=node.url)
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert head.split("  ")[0] == "WHAT"
    assert [row.split("  ")[0] for row in rows] == [*MACHINE, *NODE]
    assert rows[MACHINE.index("log: fsync")].rstrip().endswith("of disk: write, fdatasync")
    assert os.listdir(data) == []
    assert told("topic", "list", server=node.url)["topics"] == []


def test_a_kafka_server_of_another_node_is_left_alone(node: RunningBroker, tmp_path: Path) -> None:
    words = ("bench", "--data", tmp_path, "--seconds", 0.01, "--bootstrap", "127.0.0.1:1")
    result = run(*words, "--json", server=node.url)
    assert result.exit_code == 0
    assert [one["what"] for one in json.loads(result.stdout)] == [*MACHINE, *NODE[:2]]
    assert "Kafka is not measured" in result.stderr


def test_a_node_that_has_to_be_there_and_is_not_is_an_error(tmp_path: Path) -> None:
    words = ("bench", "--data", tmp_path, "--seconds", 0.01, "--node")
    result = run(*words, server="http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: no node answers at")


def test_ctrl_c_leaves_nothing_behind(node: RunningBroker, tmp_path: Path) -> None:
    data = tmp_path / "bench"
    data.mkdir()
    for seconds, has_begun in (
        (60, lambda: os.listdir(data)),
        (0.01, node.server.broker.topics.all),
    ):
        words = ("bench", "--data", data, "--seconds", seconds, "--server", node.url)
        with started(*words, "--bootstrap", node.bootstrap) as process:
            wait_until(has_begun)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
        assert process.returncode in (0, 130)  # It may have finished before the signal.
        assert os.listdir(data) == []
        assert told("topic", "list", server=node.url)["topics"] == []


@pytest.mark.parametrize("options", [("--data", "/nowhere"), ("--seconds", 0), ("--seconds", 61)])
def test_what_cannot_be_measured_is_wrong_usage(options: tuple[object, ...]) -> None:
    assert run("bench", *options).exit_code == 2
