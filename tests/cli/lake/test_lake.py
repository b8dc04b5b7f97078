"""`millstream lake`: writes a topic to a table, and tells how far it is."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.testing.broker import RunningBroker, running_broker
from tests.cli.commands import is_one_line, run
from tests.spark.topics import create, produce


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


def lake(node: RunningBroker, *words: object):
    return run("lake", *words, "--bootstrap", node.bootstrap)


def test_a_topic_is_written_and_its_lag_is_shown(node: RunningBroker, tmp_path: Path):
    uri = str(tmp_path / "table")
    create(node, "orders")
    produce(node, "orders", [b"a", b"b", b"c"])
    result = lake(node, "write", "orders", "--table", uri, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["offsets"] == 3
    produce(node, "orders", [b"d"])
    result = lake(node, "status", "orders", "--table", uri, "--json")
    assert json.loads(result.stdout)["partitions"] == [
        {"partition": 0, "position": 3, "log_start": 0, "log_end": 4, "lag": 1}
    ]
    assert "lag" in lake(node, "status", "orders", "--table", uri).stdout
    result = lake(node, "write", "orders", "--table", uri)
    assert "offsets: 1, files: 1" in result.stderr
    result = run("lake", "compact", "--table", uri, "--json")
    assert json.loads(result.stdout)["files_removed"] == 2
    assert deltalake.DeltaTable(uri).to_pyarrow_dataset().count_rows() == 4


def test_errors_are_one_line(node: RunningBroker, tmp_path: Path):
    uri = str(tmp_path / "none")
    result = lake(node, "write", "missing", "--table", uri)
    assert (result.exit_code, is_one_line(result.stderr)) == (1, True)
    create(node, "there")
    result = lake(node, "status", "there", "--table", uri)
    assert (result.exit_code, is_one_line(result.stderr)) == (1, True)
    assert "there is no Delta table" in result.stderr
    with KafkaClient(node.bootstrap) as client:
        assert client.topics(["there"])["there"].partitions == 1
