"""`millstream lake`: writes a topic to a table, and tells how far it is."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.lake.scan import scan
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
    result = run("lake", "vacuum", "--table", uri, "--json")
    assert json.loads(result.stdout) == {"files_removed": 0}, "they are younger than a week"


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


def test_a_topic_knows_its_table_once_it_is_enabled(node: RunningBroker, tmp_path: Path):
    uri = str(tmp_path / "table")
    create(node, "clicks")
    produce(node, "clicks", [b"a"])
    result = lake(node, "write", "clicks")
    assert (result.exit_code, is_one_line(result.stderr)) == (1, True)
    assert "has no lake table" in result.stderr
    for _ in range(2):  # Again is no error.
        result = lake(node, "enable", "clicks", "--table", uri, "--json")
        assert json.loads(result.stdout) == {"topic": "clicks", "table": uri}
    assert json.loads(lake(node, "write", "clicks", "--json").stdout)["offsets"] == 1
    assert json.loads(lake(node, "status", "clicks", "--json").stdout)["table"] == uri
    with scan("clicks", bootstrap=node.bootstrap) as found:
        assert found.dataset().count_rows() == 1
    result = lake(node, "enable", "clicks", "--table", f"{uri}-2")
    assert (result.exit_code, is_one_line(result.stderr)) == (1, True)
    assert "disable that first" in result.stderr
    create(node, "other")
    result = lake(node, "enable", "other", "--table", uri)
    assert (result.exit_code, is_one_line(result.stderr)) == (1, True)
    assert "needs a table of its own" in result.stderr
    assert json.loads(lake(node, "disable", "clicks", "--json").stdout)["table"] == uri
    assert lake(node, "status", "clicks").exit_code == 1
    assert lake(node, "enable", "nowhere", "--table", uri).exit_code == 1
    assert lake(node, "disable", "nowhere").exit_code == 1
